"""Test the parameters for training on several nodes."""

from typing import Any

import pytest

from tests.errors import raises


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
    (server, _) = made.manifests[2]["spec"]["template"]["spec"]["containers"]
    assert server["resources"]["limits"].get("nvidia.com/gpu", "0") == str(job.get("rollout_gpus", min(1, gpus)))


@pytest.mark.parametrize(
    ("nodes", "node_selector", "value"), [(0, {}, "nodes: "), (2, {"pool": 1}, "node_selector.pool: ")]
)
def test_invalid_options_of_several_nodes_are_refused(nodes: int, node_selector: dict[str, Any], value: str) -> None:
    from gumshoe_pipelines.trainjob_step import TrainJobOptions

    with raises("pipelines.invalid-nodes", value):
        TrainJobOptions.of(nodes, 0, {}, "trainer", node_selector, [])


def test_steps_request_only_the_gpus_they_use() -> None:
    """Evaluation requests one. Training requests all, or none if a TrainJob trains."""
    from gumshoe_pipelines.placement import plan_run

    gpus: tuple[Any, ...] = (4, {"pool": "gpus"}, [{"operator": "Exists"}])
    assert tuple(plan_run.python_func("r1", "job", 1, *gpus)) == ("r1", 1, *gpus)
    assert tuple(plan_run.python_func("", "job", 2, *gpus)) == ("job", 1, 0, {}, [])
    assert tuple(plan_run.python_func("r1", "job", 1, 0, {}, [])) == ("r1", 0, 0, {}, [])


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
        ({"job": {"servers": 1}}, "trainjob.invalid-job", "job: "),
        ({"nodes": 2, "job": {"servers": 1}}, "trainjob.invalid-job", "job: "),
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
    for sampled in ({"rollouts.engine": "transformers"}, {"rollouts.servers": ["http://elsewhere:8000"]}):
        several = {"nodes": 2, "job": {"rollout_servers": 0}, "settings": sampled, "store": "s3://bucket/mail"}
        check_arguments(several, is_local=False)
