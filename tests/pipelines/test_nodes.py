"""Test the parameters for training on several nodes."""

from types import SimpleNamespace
from typing import Any

import pytest

from gumshoe.cluster.trainjob import SECRET_KEYS
from tests.errors import raises

KEYS = {key for keys in SECRET_KEYS.values() for key in keys}
_TRANSFORMERS = {"settings": {"rollouts.engine": "transformers"}}


def test_nodes_and_servers_use_the_same_addresses() -> None:
    from gumshoe_pipelines.trainjob_step import TrainJobOptions, build_settings

    options = TrainJobOptions.of(2, 8, {}, "trainer", {}, [])
    assert build_settings(options, "gumshoe-r1", "s3://bucket/mail/runs/r1/") == {
        "optimizer.processes": 16,
        "rollouts.servers": ["http://gumshoe-r1-rollout:8000"],
        "rollouts.handover": "s3://bucket/mail/runs/r1/policies",
    }
    assert build_settings(TrainJobOptions.of(2, 0, {"rollout_servers": 0}, "trainer", {}, []), "n", "s") == {
        "optimizer.processes": 2
    }


@pytest.mark.parametrize(("own", "waits"), [(1800, 3600), (7200, 7800)])
def test_a_training_without_progress_ends_itself_before_the_step_ends_it(own: float, waits: float) -> None:
    from gumshoe.training.settings_sources import resolve
    from gumshoe_pipelines.trainjob_step import build_timeouts

    assert build_timeouts(resolve("tiny", {"output.stall_seconds": own}).settings).stall == waits


@pytest.mark.parametrize(
    ("gpus", "job", "expected"),
    [
        (8, {}, {"--dtype": "bfloat16"}),
        (8, {"rollout_gpus": 4}, {"--dtype": "bfloat16", "--tensor-parallel-size": "4"}),
        (0, {}, {"--dtype": "auto"}),
    ],
)
def test_servers_use_their_gpus_and_the_dtype_of_training(
    gpus: int, job: dict[str, Any], expected: dict[str, str]
) -> None:
    from gumshoe.training.settings_sources import resolve
    from gumshoe.training.train_request import TrainRequest
    from gumshoe_pipelines.trainjob_step import TrainJobOptions, build_training_job

    options = TrainJobOptions.of(2, gpus, job, "trainer", {}, [])
    settings = {"output.checkpoints": "s3://bucket/mail/runs/r1"}
    request = TrainRequest(index="index", scenarios="scenarios", config="tiny", settings=settings)
    made = build_training_job("r1", request, resolve("tiny", {"rollouts.gpu_memory": 0.7}).settings, options)
    assert made.rollout is not None
    flags = made.rollout.server[3:]
    given = dict(zip(flags[::2], flags[1::2], strict=True))
    assert {name: given.get(name) for name in ("--dtype", "--tensor-parallel-size") if name in given} == expected
    assert given.get("--gpu-memory-utilization") == ("0.7" if gpus else None), "only set with GPUs"
    assert given["--adapters"] == "/adapters", "vLLM loads adapters from the loader's directory only"
    (server, loader) = made.manifests[3]["spec"]["template"]["spec"]["containers"]
    assert {each["name"] for each in server["env"]} & KEYS == {"HF_TOKEN", "VLLM_API_KEY"}
    assert {each["name"] for each in loader["env"]} & KEYS == {"VLLM_API_KEY", *SECRET_KEYS["gumshoe-s3"]}
    trainer = made.manifests[2]["spec"]["trainer"]
    assert {each["name"] for each in trainer["env"]} >= KEYS
    for container in (server, loader, trainer):
        names = [each["name"] for each in container["env"]]
        assert len(names) == len(set(names)), "Kubernetes rejects a variable with two sources"
    assert server["resources"]["limits"].get("nvidia.com/gpu", "0") == str(job.get("rollout_gpus", min(1, gpus)))


@pytest.mark.parametrize(
    ("model", "gpus", "fits"), [("tiny", 1, 1), ("tiny", 2, 1), ("unknown", 8, 8)]
)  # the tiny policy has 6 heads, and 3 of keys and values
def test_servers_have_as_many_gpus_as_divide_the_heads(model: str, gpus: int, fits: int) -> None:
    from gumshoe.training.settings_sources import resolve
    from gumshoe_pipelines.trainjob_step import TrainJobOptions, check_server_gpus

    known = resolve("tiny", {"model.name": model}).settings

    def check(number: int) -> None:
        check_server_gpus(known, TrainJobOptions.of(2, 8, {"rollout_gpus": number}, "trainer", {}, []))

    if fits < gpus:
        with raises("pipelines.gpus-do-not-divide-heads", f"job.rollout_gpus to {fits}"):
            check(gpus)
    check(fits)


@pytest.mark.parametrize(
    ("nodes", "node_selector", "value"), [(0, {}, "nodes: "), (2, {"pool": 1}, "node_selector.pool: ")]
)
def test_invalid_options_of_several_nodes_are_refused(nodes: int, node_selector: dict[str, Any], value: str) -> None:
    from gumshoe_pipelines.trainjob_step import TrainJobOptions

    with raises("pipelines.invalid-nodes", value):
        TrainJobOptions.of(nodes, 0, {}, "trainer", node_selector, [])


def plan(nodes: int = 1, gpus: int = 4, run: str = "r1", **others: Any) -> dict[str, Any]:
    """Run the step that plans a run. Return its outputs by name."""
    from gumshoe_pipelines.placement import plan_run

    amounts = {"cpus_per_gpu": 4, "memory_per_gpu": "32Gi", "worker_cpus": "500m", "worker_memory": "2Gi"}
    nodes_of = {"node_selector": {"pool": "gpus"}, "tolerations": [{"operator": "Exists"}]}
    images = {"agent": "", "worker_image": "worker", "trainer_image": "trainer"}
    corpus: dict[str, Any] = {"environment": "email", "embedding": "intfloat/e5-base-v2", "index": {}}
    given = {"gpu_resource": "nvidia.com/gpu", **amounts, **nodes_of, **images, **corpus, **others}
    outputs = plan_run.component_spec.outputs
    return dict(zip(outputs, plan_run.python_func(run=run, job="job", nodes=nodes, gpus=gpus, **given), strict=True))


def test_steps_request_only_what_they_use() -> None:
    """Evaluation requests one GPU. Training requests all, or none if a TrainJob trains."""
    alone, several, none = plan(), plan(nodes=2, run=""), plan(gpus=0)
    assert [each["run"] for each in (alone, several)] == ["r1", "job"]

    def amounts(found: dict[str, Any], pod: str) -> tuple[Any, ...]:
        return found[pod], found[f"{pod}_cpus"], found[f"{pod}_memory"]

    for found in (alone, several):
        assert amounts(found, "measuring") == (1, "4", "32Gi")
        assert amounts(found, "whole") == (4, "16", "128Gi")
    assert amounts(alone, "training") == (4, "16", "128Gi")
    assert amounts(several, "training") == (0, "500m", "2Gi")
    assert {amounts(none, pod) for pod in ("measuring", "whole", "training")} == {(0, "500m", "2Gi")}
    assert (alone["node_selector"], alone["tolerations"]) == ({"pool": "gpus"}, [{"operator": "Exists"}])
    assert (several["node_selector"], several["tolerations"]) == ({}, [])
    assert (alone["agent_image"], plan(agent="a.b:c")["agent_image"]) == ("worker", "trainer")
    assert amounts(plan(cpus_per_gpu=12, memory_per_gpu="1.5Ti"), "whole") == (4, "48", "6Ti")


@pytest.mark.parametrize(
    ("given", "image"),
    [
        ({}, "worker"),
        ({"index": {"embedding": "none"}}, "worker"),
        ({"index": {"embedding": "openai:m@http://e"}}, "worker"),
        ({"index": {"embedding": "intfloat/e5-base-v2"}}, "trainer"),
        ({"environment": "documents"}, "trainer"),
        ({"environment": "documents", "embedding": "none"}, "worker"),
        ({"environment": "documents", "embedding": "openai:m@http://e"}, "worker"),
        ({"environment": "wiki"}, "worker"),
    ],
)
def test_only_an_index_with_an_embedding_model_is_built_in_the_image_with_torch(
    given: dict[str, Any], image: str
) -> None:
    assert plan(**given)["ingest_image"] == image


@pytest.mark.parametrize(
    ("given", "code", "values"),
    [
        ({"gpus": -1}, "pipelines.invalid-gpus", ["gpus: ", "-1"]),
        ({"gpu_resource": "gpu.nvidia.com"}, "pipelines.invalid-gpu-resource", ["gpu_resource: ", "'gpu.nvidia.com'"]),
        ({"gpu_resource": "nvidia.com/mig-1g.10gb", "gpus": 2}, "pipelines.several-mig-devices", ["gpus: ", "mig-1g"]),
        ({"cpus_per_gpu": 0}, "pipelines.invalid-resources", ["cpus_per_gpu: ", "0"]),
        ({"memory_per_gpu": "32 GB"}, "pipelines.invalid-resources", ["memory_per_gpu: ", "'32 GB'"]),
        ({"memory_per_gpu": "8K"}, "pipelines.invalid-resources", ["memory_per_gpu: ", "'8K'"]),
        ({"worker_cpus": "half"}, "pipelines.invalid-resources", ["worker_cpus: ", "'half'"]),
        ({"worker_memory": ""}, "pipelines.invalid-resources", ["worker_memory: ", "''"]),
    ],
)
def test_invalid_resources_are_refused_at_once_and_by_the_first_step(
    given: dict[str, Any], code: str, values: list[str]
) -> None:
    from gumshoe_pipelines.run_arguments import check_arguments

    with raises(code, *values):
        check_arguments(given, is_local=False)
    with raises(code, *values):
        plan(**given)
    fine: dict[str, Any] = {
        "gpu_resource": "nvidia.com/mig-1g.10gb",
        "gpus": 1,
        "worker_cpus": "0.5",
        "memory_per_gpu": "64G",
    }
    check_arguments(fine, is_local=False)
    assert plan(**fine)["whole_memory"] == "64G"


def test_a_trainjob_has_the_options_of_the_pipeline_s_pods_unless_it_has_its_own() -> None:
    from gumshoe_pipelines.trainjob_step import TrainJobOptions

    pods = {"queue": "lq", "cache": "models", "image_pull_secret": "registry"}
    amounts = {"gpu_resource": "amd.com/gpu", "cpus_per_gpu": 8, "memory_per_gpu": "64Gi"}
    found = TrainJobOptions.of(2, 8, {"queue": "own"}, "trainer", {}, [], pods, **amounts)
    assert (found.job.queue, found.job.cache, found.image_pull_secret) == ("own", "models", "registry")
    assert (found.gpu_resource, found.cpus_per_gpu, found.memory_per_gpu) == tuple(amounts.values())


def test_the_training_step_passes_its_inputs_to_the_trainjob(monkeypatch: pytest.MonkeyPatch) -> None:
    from gumshoe.errors import GumshoeError
    from gumshoe_pipelines import trainjob_step
    from gumshoe_pipelines.grpo_step import train_grpo

    def start(_: object, options: trainjob_step.TrainJobOptions) -> None:
        raise GumshoeError("test.started", repr(options))

    monkeypatch.setattr(trainjob_step, "train_on_cluster", start)
    artifact = SimpleNamespace(path="none", metadata={})
    places: dict[str, Any] = dict.fromkeys(("index", "scenarios", "adapter", "metrics", "plots"), artifact)
    learning = {"base_model": "tiny", "config": "", "settings": {}, "checkpoints": "s3://bucket/mail/runs/r1"}
    amounts = {"gpus": 8, "gpu_resource": "amd.com/gpu", "cpus_per_gpu": 6, "memory_per_gpu": "48Gi"}
    pods = {"queue": "lq", "image_pull_secret": "registry"}
    where = {"node_selector": {"pool": "gpus"}, "tolerations": [], "image": "trainer:1", "pods": pods}
    job: dict[str, Any] = {"rollout_servers": 2.0, "fs_group": None}
    given = {**places, **learning, **amounts, **where, "job": job}
    with raises("test.started") as started:
        train_grpo.python_func(**given, nodes=2)
    expected = trainjob_step.TrainJobOptions.of(
        2,
        8,
        {**job, "queue": "lq"},
        "trainer:1",
        {"pool": "gpus"},
        [],
        {"image_pull_secret": "registry"},
        gpu_resource="amd.com/gpu",
        cpus_per_gpu=6,
        memory_per_gpu="48Gi",
    )
    assert started.value.message == repr(expected)
    with raises("pipelines.job-of-one-node", "rollout_servers"):
        train_grpo.python_func(**given, nodes=1)


@pytest.mark.parametrize(
    ("arguments", "code", "value"),
    [
        ({"nodes": 0}, "pipelines.invalid-nodes", "nodes: "),
        ({"nodes": 2, "store": "file:///store"}, "pipelines.several-faults", "nodes: other nodes cannot read"),
        (
            {"nodes": 2, "settings": {"rollouts.engine": "transformers"}},
            "pipelines.rollout-servers-without-vllm",
            "transformers",
        ),
        ({"nodes": 2, "job": {"rollout_servers": 0}}, "pipelines.no-rollout-servers", "job.rollout_servers"),
        (
            {
                "nodes": 2,
                "job": {"rollout_servers": 0},
                "sweep": [
                    {"name": "a", "settings": {"rollouts.engine": "transformers"}},
                    {"name": "b", "settings": {}},
                ],
            },
            "pipelines.no-rollout-servers",
            "job.rollout_servers",
        ),
        ({"job": {"queue": "lq"}}, "pipelines.job-of-one-node", "got queue"),
        ({"nodes": 1, "job": {"memory": "8Gi"}}, "pipelines.job-of-one-node", "got memory"),
        ({"nodes": 2, "job": {"servers": 1}}, "trainjob.invalid-job", "job: "),
        ({"nodes": 2, "job": {"priority": "high"}}, "pipelines.priority-without-queue", "job: "),
        (
            {"nodes": 2, "queue": "lq", "job": {"priority": "high", "queue": ""}},
            "pipelines.priority-without-queue",
            "job: ",
        ),
        (
            {"nodes": 2, "job": {"rollout_servers": 0, "scheduler": "volcano", "rollout_gpus": 2}, **_TRANSFORMERS},
            "pipelines.no-servers-for-options",
            "rollout_gpus, scheduler",
        ),
        (
            {"nodes": 2, "job": {"rollout_gpus": 2}, "gpu_resource": "nvidia.com/mig-3g.40gb"},
            "pipelines.several-mig-devices",
            "got 2",
        ),
        ({"node_selector": {"gpu": True}}, "pipelines.invalid-node-selector", "'gpu': True"),
        ({"tolerations": ["gpu"]}, "pipelines.invalid-tolerations", "got 'gpu'"),
        ({"tolerations": [{"key": "gpu", "value": True}]}, "pipelines.invalid-tolerations", "True"),
        ({"tolerations": [{"name": "gpu"}]}, "pipelines.invalid-tolerations", "name"),
        ({"gpus": -1}, "pipelines.invalid-gpus", "gpus: "),
        ({"worker_image": ""}, "pipelines.empty-image", "worker_image: "),
        ({"trainer_image": " "}, "pipelines.empty-image", "trainer_image: "),
    ],
)
def test_invalid_nodes_are_refused_before_anything_starts(arguments: dict[str, Any], code: str, value: str) -> None:
    from gumshoe_pipelines.run_arguments import check_arguments

    given = {"store": "s3://bucket/mail", **arguments}
    with raises(code, value):
        check_arguments(given, is_local=False)
    with raises("pipelines.single-machine", "got 2"):
        check_arguments({"nodes": 2, "store": "s3://bucket/mail"}, is_local=True)
    check_arguments({"nodes": 1, "job": {}, "store": "s3://bucket/mail"}, is_local=True)
    placed = {"node_selector": {"gpu": "true"}, "tolerations": [{"key": "gpu", "tolerationSeconds": 60}]}
    waiting = {"queue": "lq", "priority": "low", "job": {"priority": "high"}}
    check_arguments({"nodes": 2, "store": "s3://bucket/mail", **placed, **waiting}, is_local=False)
    for sampled in (_TRANSFORMERS["settings"], {"rollouts.servers": ["http://elsewhere:8000"]}):
        several = {"nodes": 2, "job": {"rollout_servers": 0}, "settings": sampled, "store": "s3://bucket/mail"}
        check_arguments(several, is_local=False)
