"""Test the compiled pipelines: complete, up to date, and free of known compiler bugs."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gumshoe_pipelines.graphs import (
    PIPELINES,
    Graph,
    compile_graph,
    compile_manifests,
    read_documents,
    read_values,
    split_parameters,
)
from tests.errors import raises

COMPILED = Path(__file__).parents[2] / "pipelines" / "compiled"
ANN = "ann@example.com"
MAIL = "maildir:s3://bucket/mail"
IMAGES = {"worker_image": "worker", "trainer_image": "trainer"}
KUBEFLOW_VARIABLES = {"http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY"}
"""Variables that Kubeflow sets in steps if its administrator has configured a proxy."""
MAIL_ENV = {"environment": "email"}
ON_GPU = {"warm-start", "train-grpo", "evaluate-policy"}


def check_compiled(name: str, values: dict[str, Any]) -> dict[str, str]:
    """Check the parameters that are compiled into a pipeline."""
    from gumshoe_pipelines.run_arguments import check_compiled as check

    return check(name, values)


def check_arguments(arguments: dict[str, Any], *, is_local: bool) -> None:
    """Check the arguments of a pipeline before anything starts."""
    from gumshoe_pipelines.run_arguments import check_arguments as check

    check(arguments, is_local=is_local)


@cache
def compile_once(name: str, compiled: tuple[tuple[str, str], ...] = ()) -> Graph:
    return compile_graph(name, dict(compiled))


@pytest.fixture(scope="module", params=list(PIPELINES))
def graph(request: pytest.FixtureRequest) -> Graph:
    return compile_once(request.param)


def list_components(spec: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the pipeline and its components by name."""
    yield "root", spec["root"]
    yield from spec["components"].items()


def find_missing_inputs(text: str) -> list[str]:
    """Return the inputs that steps take from their graph although the graph does not have them."""
    spec, *platforms = read_documents(text)
    executors = platforms[0]["platforms"]["kubernetes"]["deploymentSpec"]["executors"] if platforms else {}
    found = []
    for name, part in list_components(spec):
        inputs = part.get("inputDefinitions", {})
        known = {*inputs.get("parameters", {}), *inputs.get("artifacts", {})}
        for task, described in part.get("dag", {}).get("tasks", {}).items():
            own = known | {described.get("parameterIterator", {}).get("itemInput")}
            given = described.get("inputs", {})
            wanted = [
                each.get("componentInputParameter") or each.get("componentInputArtifact")
                for each in [*given.get("parameters", {}).values(), *given.get("artifacts", {}).values()]
            ]
            executor = spec["components"][described["componentRef"]["name"]].get("executorLabel", "")
            wanted += re.findall(r"'componentInputParameter': '([^']+)'", str(executors.get(executor, {})))
            found += [f"{name}/{task}: {each}" for each in wanted if each and each not in own]
    return found


def test_graphs_have_all_inputs_of_their_steps(graph: Graph) -> None:
    assert find_missing_inputs(graph.text) == []


@pytest.mark.parametrize("name", ["train-agent", "evaluate-agent"])
def test_a_published_adapter_is_not_tested_on_questions_that_it_has_seen(name: str) -> None:
    tasks = compile_once(name).spec["components"]["comp-exit-handler-1"]["dag"]["tasks"]
    current = tasks["load-scenarios"]["inputs"]["parameters"]["current"]
    assert current["taskOutputParameter"]["producerTask"] == "fetch-adapter"


def test_the_known_compiler_bug_is_detected(tmp_path: Path) -> None:
    """The GPU limit of a step in a condition is a parameter, which the step does not take as an input."""
    from kfp import compiler, dsl

    @dsl.component(base_image="x", install_kfp_package=False)
    def step() -> bool:
        return True

    @dsl.pipeline(name="faulty")
    def faulty(gpus: int = 1) -> None:
        with dsl.If(step().output == True):  # noqa: E712
            step().set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(gpus)

    path = tmp_path / "faulty.yaml"
    compiler.Compiler().compile(faulty, str(path))
    assert find_missing_inputs(path.read_text()) == ["comp-condition-1/step-2: pipelinechannel--gpus"]


_MODELS = {"gumshoe-s3", "gumshoe-models"}
SECRETS_OF_STEPS: dict[str, set[str]] = {
    "plan-run": set(),
    "notify": {"gumshoe-s3", "gumshoe-webhook"},
    "ingest": _MODELS | {"gumshoe-imap"},
    **dict.fromkeys(["look-at-sources", "load-scenarios", "check-agent", "check-training"], _MODELS),
    **dict.fromkeys(["evaluate-policy", "warm-start", "train-grpo"], _MODELS),
}
"""Secrets of the steps that need others than those of the store."""
WITH_KEYS_OF_AGENTS = {"check-agent", "check-training", "evaluate-policy", "train-grpo", "warm-start"}
"""Steps that open an agent, a judge, a reward function or an environment of one's own."""


@pytest.mark.ci
def test_steps_can_import_what_they_use() -> None:
    """In a step, Kubeflow sets a variable with which `kfp.dsl` lacks the names that only compilation needs."""
    imports = set()
    for name in PIPELINES:
        for step in compile_once(name).spec["deploymentSpec"]["executors"].values():
            own = step.get("container", {}).get("command", [""])[-1]
            imports |= {
                f"from {node.module} import {', '.join(each.name for each in node.names)}"
                for node in ast.walk(ast.parse(own if "def " in own else ""))
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gumshoe")
            }
    assert any("trainjob_step" in each for each in imports)
    code = "\n".join(sorted(imports))
    ended = subprocess.run([sys.executable, "-c", code], env={**os.environ, "_KFP_RUNTIME": "true"}, check=False)
    assert ended.returncode == 0, code


def executors(graph: Graph) -> dict[str, dict[str, Any]]:
    """Return the Kubernetes settings of each step by name."""
    return read_executors(graph.text)


@cache
def read_executors(text: str) -> dict[str, dict[str, Any]]:
    _, platform = read_documents(text)
    found: dict[str, dict[str, Any]] = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    return {name.removeprefix("exec-"): each for name, each in found.items()}


def test_each_step_without_a_gpu_has_an_image_with_its_libraries(graph: Graph) -> None:
    """Only the worker's image can deploy, and only the trainer's can embed, run agents and load base models."""
    others = {
        "ingest": "plan-run-ingest_image",
        "check-agent": "plan-run-agent_image",
        "check-training": "trainer_image",
    }
    for name, each in graph.spec["deploymentSpec"]["executors"].items():
        step = re.sub(r"^exec-|-\d+$", "", name)
        image = "trainer_image" if step in ON_GPU else others.get(step, "worker_image")
        assert each["container"]["image"] == f"{{{{$.inputs.parameters['pipelinechannel--{image}']}}}}", step


@pytest.mark.parametrize(
    ("arguments", "parameter"),
    [
        ({"deploy": "canary", "worker_image": "registry.example.com:5000/trainer:1"}, "deploy"),
        ({"feedback": {"since": "90d"}, "worker_image": "trainer@sha256:0"}, "iban, card, phone in feedback"),
        ({"feedback": {"redact": ["email", "phone"]}, "worker_image": "trainer:1"}, "redact phone in feedback"),
        ({"feedback": {"redact": "none"}, "worker_image": "trainer:1"}, None),
        ({"feedback": {"redact": ["credential", "email", "ip"]}, "worker_image": "trainer:1"}, None),
        ({"deploy": "full", "worker_image": "worker:1"}, None),
        ({"deploy": "none", "feedback": {}, "worker_image": "trainer:1"}, None),
    ],
)
def test_the_image_of_the_trainer_is_refused_for_steps_that_it_cannot_run(
    arguments: dict[str, Any], parameter: str | None
) -> None:
    given = {"store": "s3://bucket/project", **arguments}
    if parameter is None:
        check_arguments(given, is_local=False)
        return
    with raises("pipelines.trainer-as-worker", arguments["worker_image"], parameter):
        check_arguments(given, is_local=False)
    check_arguments({**given, "store": "store", "deploy": "none"}, is_local=True)


def test_every_step_has_labels_optional_secrets_and_a_timeout(graph: Graph) -> None:
    from gumshoe_pipelines.run_labels import STEP_LABEL

    for name, settings in executors(graph).items():
        assert settings["podMetadata"]["labels"][STEP_LABEL] == name
        assert int(settings["activeDeadlineSeconds"]) > 0
        assert settings["podMetadata"]["labels"]["sidecar.istio.io/inject"] == "false"
        env = graph.spec["deploymentSpec"]["executors"][f"exec-{name}"]["container"]["env"]
        assert {"name": "GUMSHOE_STEP_SECONDS", "value": settings["activeDeadlineSeconds"]} in env
        secrets = settings.get("secretAsEnv", [])
        assert all(each["optional"] for each in secrets)
        assert {each["secretName"] for each in secrets} == SECRETS_OF_STEPS.get(
            re.sub(r"-\d+$", "", name), {"gumshoe-s3"}
        )
        keys_of_agents = [(each["secretName"], each["optional"]) for each in settings.get("secretAsVolume", [])]
        assert keys_of_agents == [("gumshoe-agent", True)] * (re.sub(r"-\d+$", "", name) in WITH_KEYS_OF_AGENTS)
        keys = {one["secretKey"] for each in secrets for one in each["keyToEnv"]}
        assert ("WANDB_API_KEY" in keys) == (name in ("warm-start", "train-grpo")), name


def test_every_step_has_the_certificates_and_the_proxy_of_its_namespace_and_no_fixed_user(graph: Graph) -> None:
    for settings in executors(graph).values():
        (trust,) = settings["configMapAsVolume"]
        assert (trust["configMapName"], trust["mountPath"], trust["optional"]) == (
            "gumshoe-ca",
            "/etc/gumshoe-trust",
            True,
        )
        (proxy,) = settings["configMapAsEnv"]
        assert (proxy["configMapName"], proxy["optional"]) == ("gumshoe-proxy", True)
        assert [each["configMapKey"] for each in proxy["keyToEnv"]] == ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"]
        names = [
            each["envVar"]
            for part in ("configMapAsEnv", "secretAsEnv")
            for one in settings.get(part, [])
            for each in one["keyToEnv"]
        ]
        assert not {*names} & KUBEFLOW_VARIABLES, "Kubernetes rejects a variable with a value and a source"
        assert len(names) == len({*names})
        assert settings["securityContext"] == {"runAsNonRoot": True}


def test_steps_request_what_the_parameters_say(graph: Graph) -> None:
    containers = graph.spec["deploymentSpec"]["executors"]
    pods = {"evaluate-policy": "measuring", "warm-start": "whole", "train-grpo": "training"}
    for name, settings in executors(graph).items():
        step = re.sub(r"-\d+$", "", name)
        resources = containers[f"exec-{name}"]["container"]["resources"]
        cpus, memory = resources["resourceCpuRequest"], resources["resourceMemoryRequest"]
        accelerator = resources.get("accelerator", {})
        assert bool(accelerator) == (step in ON_GPU)
        assert ("nodeSelector" in settings, "tolerations" in settings) == (step in ON_GPU,) * 2
        if step not in ON_GPU:
            assert ("--worker_cpus'" in cpus, "--worker_memory'" in memory) == (True, True)
            continue
        assert "--gpu_resource'" in accelerator["resourceType"]
        for value, suffix in ((accelerator["resourceCount"], ""), (cpus, "_cpus"), (memory, "_memory")):
            assert re.search(rf"plan-run(-\d+)?-{pods[step]}{suffix}'", value)
        (shared,) = settings["emptyDirMounts"]
        assert (shared["medium"], shared["mountPath"]) == ("Memory", "/dev/shm")


POD_OPTIONS = {"queue": "lq", "priority": "high", "cache": "models", "image_pull_secret": "registry"}


@pytest.mark.parametrize("name", list(PIPELINES))
def test_pod_options_are_compiled_into_the_steps(name: str) -> None:
    graph, plain = compile_once(name, tuple(POD_OPTIONS.items())), compile_once(name)
    assert find_missing_inputs(graph.text) == []
    containers = graph.spec["deploymentSpec"]["executors"]
    for step, settings in executors(graph).items():
        (volume,) = settings["pvcMount"]
        assert (volume["constant"], volume["mountPath"]) == ("models", "/cache")
        assert {"name": "HF_HOME", "value": "/cache/huggingface"} in containers[f"exec-{step}"]["container"]["env"]
        (secret,) = settings["imagePullSecret"]
        assert secret["secretName"] == "registry"
        queue = {
            key.partition("/")[2]: value
            for key, value in settings["podMetadata"]["labels"].items()
            if key.startswith("kueue.x-k8s.io/")
        }
        on_gpu = re.sub(r"-\d+$", "", step) in ON_GPU
        assert queue == ({"queue-name": "lq", "priority-class": "high"} if on_gpu else {})
        seen = [each["fieldPath"] for each in settings.get("fieldPathAsEnv", [])]
        assert seen == ["metadata.labels['kueue.x-k8s.io/managed']"] * on_gpu
    if "exec-train-grpo" in containers:
        assert "image_pull_secret: registry" in graph.text, "for the pods of a TrainJob"
    assert not any({"pvcMount", "imagePullSecret"} & settings.keys() for settings in executors(plain).values())
    assert graph.parameters == plain.parameters
    assert not POD_OPTIONS.keys() & plain.parameters.keys()


def test_steps_are_retried_and_only_pure_ones_are_cached(graph: Graph) -> None:
    tasks = [item for _, part in list_components(graph.spec) for item in part.get("dag", {}).get("tasks", {}).items()]
    steps = {name: each for name, each in tasks if "executorLabel" in graph.spec["components"][f"comp-{name}"]}
    timeouts = {name: int(each["activeDeadlineSeconds"]) for name, each in executors(graph).items()}
    for name, each in steps.items():
        policy, label = each["retryPolicy"], graph.spec["components"][f"comp-{name}"]["executorLabel"]
        assert policy["maxRetryCount"] == 3
        # Argo counts from the first start, and ends a retry that still runs then.
        assert int(policy["backoffMaxDuration"].removesuffix("s")) > 10 * timeouts[label.removeprefix("exec-")]
    cached = {name for name, each in steps.items() if each.get("cachingOptions", {}).get("enableCache")}
    assert cached <= {"ingest", "load-scenarios", "evaluate-policy", "warm-start"}
    for name in cached:
        assert "code" in steps[name]["inputs"]["parameters"], "changed code must not reuse results"
    for name in cached & {"evaluate-policy"}:
        assert "agent_code" in steps[name]["inputs"]["parameters"], "a changed agent must not reuse results"
    for name in cached | {"ingest", "load-scenarios"}:
        assert "state" in steps[name]["inputs"]["parameters"], "changed sources or settings must not reuse results"


def test_steps_install_nothing_and_images_are_parameters(graph: Graph) -> None:
    for each in graph.spec["deploymentSpec"]["executors"].values():
        container = each["container"]
        assert "pip install" not in str(container["command"])
        assert container["command"][2].count("exec python3 -m gumshoe_pipelines.step_runner kfp.dsl.executor_main") == 1
        assert re.fullmatch(r"\{\{\$\.inputs\.parameters\['pipelinechannel--[\w-]+_image'\]\}\}", container["image"])


@pytest.mark.parametrize("name", list(PIPELINES))
def test_the_committed_pipelines_are_up_to_date(name: str) -> None:
    """`make pipelines` compiles them again."""
    graph = compile_once(name)
    assert (COMPILED / f"{name}.yaml").read_text(encoding="utf-8") == graph.text
    assert (COMPILED / f"{name}.k8s.yaml").read_text(encoding="utf-8") == compile_manifests(graph)


@pytest.mark.ci
def test_the_compile_command_takes_the_compiled_parameters(run: Callable[..., Any], tmp_path: Path) -> None:
    done = run("pipeline", "compile", "evaluate-agent", "--out", str(tmp_path), "-p", "cache=models")
    assert done.status == 0, done.err
    expected = compile_once("evaluate-agent", (("cache", "models"),))
    assert (tmp_path / "evaluate-agent.yaml").read_text(encoding="utf-8") == expected.text
    assert (tmp_path / "evaluate-agent.k8s.yaml").read_text(encoding="utf-8") == compile_manifests(expected)
    done = run("pipeline", "compile", "evaluate-agent", "--out", str(tmp_path / "none"), "-p", "gpus=2")
    assert (done.status, "[pipelines.not-compiled]" in done.err) == (2, True)
    assert not (tmp_path / "none").exists()


def test_each_entry_of_a_sweep_has_its_own_checkpoints() -> None:
    spec = compile_once("sweep-agent").spec
    (loop,) = [
        part
        for name, part in list_components(spec)
        if "train-grpo" in part.get("dag", {}).get("tasks", {}) and name != "root"
    ]
    inputs = loop["dag"]["tasks"]["train-grpo"]["inputs"]["parameters"]
    for name, key in (("entry", "name"), ("settings", "settings")):
        assert inputs[name]["componentInputParameter"] == "pipelinechannel--sweep-loop-item"
        assert inputs[name]["parameterExpressionSelector"] == f'parseJson(string_value)["{key}"]'


def test_a_version_name_depends_on_the_content() -> None:
    graph = compile_once("evaluate-agent")
    names = [
        [each["metadata"]["name"] for each in read_documents(compile_manifests(Graph(graph.name, text)))]
        for text in (graph.text, graph.text + "# other")
    ]
    assert [each[0] for each in names] == ["evaluate-agent"] * 2
    assert names[0][1] != names[1][1]


def test_the_kubernetes_resources_are_valid(
    assert_valid: Callable[..., None],
) -> None:
    files = [*COMPILED.glob("*.k8s.yaml")]
    assert len(files) == len(PIPELINES)
    assert_valid(each for file in files for each in read_documents(file.read_text()))


def test_parameters_are_read_from_a_file_and_then_from_pairs(tmp_path: Path) -> None:
    path = tmp_path / "parameters.yaml"
    path.write_text("seed: 1\nsources: [a]\n")
    given = ["seed=2", "settings={a.b: 1e-3}", "config=", "feedback={since: 2026-05-01, until: 2026-06-01T12:00Z}"]
    assert read_values(given, path) == {
        "seed": 2,
        "feedback": {"since": "2026-05-01", "until": "2026-06-01T12:00Z"},  # text, although dates in YAML
        "sources": ["a"],
        "settings": {"a.b": "1e-3"},  # in YAML 1.1, 1e-3 is a string; settings convert it
        "config": "",
    }


@pytest.mark.parametrize(
    ("pairs", "text", "code", "value"),
    [
        (["seed"], None, "pipelines.invalid-parameter-option", "'seed'"),
        (["seed=[1"], None, "pipelines.invalid-yaml", "[1"),
        ([], "- a\n", "pipelines.parameters-not-a-mapping", "parameters.yaml"),
        ([], None, "pipelines.parameters-unreadable", "parameters.yaml"),
    ],
)
def test_unreadable_parameters_are_refused(
    pairs: list[str], text: str | None, code: str, value: str, tmp_path: Path
) -> None:
    path = tmp_path / "parameters.yaml"
    if text is not None:
        path.write_text(text)
    with raises(code, value):
        read_values(pairs, None if pairs else path)


def test_a_missing_parameter_is_described() -> None:
    graph = compile_once("train-agent")
    description = graph.parameters["scenarios"]["description"].rstrip(".")
    with raises("pipelines.missing-parameter", "scenarios", description):
        graph.check({"sources": ["a"], "store": "s", **IMAGES})


def test_quantities_may_be_numbers() -> None:
    given = {"sources": ["a"], "scenarios": "b", "store": "s", **IMAGES}
    found = compile_once("train-agent").check({**given, "worker_cpus": 0.5, "memory_per_gpu": 34359738368})
    assert (found["worker_cpus"], found["memory_per_gpu"]) == ("0.5", "34359738368")
    with raises("pipelines.wrong-parameter-type", "worker_memory", "true"):
        compile_once("train-agent").check({**given, "worker_memory": True})


def test_compiled_parameters_are_checked_too() -> None:
    assert split_parameters("train-agent", {"queue": "lq", "seed": 2}) == ({"queue": "lq"}, {"seed": 2})
    with raises("pipelines.wrong-parameter-type", "cache", "true"):
        split_parameters("train-agent", {"cache": True})
    assert check_compiled("evaluate-agent", POD_OPTIONS) == POD_OPTIONS
    with raises("pipelines.not-compiled", "seed", "evaluate-agent"):
        check_compiled("evaluate-agent", {**POD_OPTIONS, "seed": 2})
    for name, value in (("queue", "My queue"), ("cache", "models.v1"), ("image_pull_secret", "-")):
        with raises("pipelines.invalid-object-name", f"{name}: ", repr(value)):
            check_compiled("train-agent", {name: value})
    for volume in ("shm", "gumshoe-ca"):
        with raises("pipelines.invalid-object-name", "cache: ", volume):
            check_compiled("train-agent", {"cache": volume})
    with raises("pipelines.priority-without-queue", "priority: ", "'high'"):
        check_compiled("train-agent", {"priority": "high"})


def test_a_date_of_yaml_is_text() -> None:
    given = {"sources": ["a"], "scenarios": "b", "store": "s", **IMAGES}
    checked = compile_once("train-agent").check({**given, **read_values(["run=2024-05-03"], None)})
    assert checked["run"] == "2024-05-03"


def test_all_wrong_parameters_are_reported_with_their_codes() -> None:
    given = {"scenarios": "b", "store": "s", "run": "r", "gpus": True, "colour": "blue", **IMAGES}
    each = ("[pipelines.missing-parameter]", "[pipelines.wrong-parameter-type]", "[pipelines.unknown-parameter]")
    with raises("pipelines.several-faults", "3", "sources", "gpus", "colour", *each):
        compile_once("train-agent").check(given)


@pytest.mark.parametrize(
    ("sweep", "code", "value"),
    [
        ([], "pipelines.empty-sweep", "sweep"),
        ([{"name": "a", "settings": {}}] * 2, "pipelines.duplicate-sweep-name", ": a;"),
        ([{"name": "1", "settings": {}}, {"name": 1, "settings": {}}], "pipelines.duplicate-sweep-name", ": 1;"),
        ([{"name": "a/", "settings": {}}], "pipelines.invalid-sweep-entry", "1: name: must consist"),
        ([{"name": True, "settings": {}}], "pipelines.invalid-sweep-entry", "'True'"),
        ([{"name": "a", "settings": {}}, {"settings": {}}], "pipelines.invalid-sweep-entry", "2: name: field required"),
        ([{"name": "a", "settings": []}], "pipelines.invalid-sweep-entry", "settings: must be a mapping, got []"),
        ([{"name": "a", "settings": {}, "seed": 1}], "pipelines.invalid-sweep-entry", "seed: "),
        (["a"], "pipelines.invalid-sweep-entry", "must be a mapping, got 'a'"),
        ([{"name": "a", "settings": {"optimizer.lerning_rate": 1}}], "settings.unknown-name", "lerning_rate"),
    ],
)
def test_an_invalid_sweep_is_refused_before_anything_starts(sweep: list[Any], code: str, value: str) -> None:
    with raises(code, "sweep: ", value):
        check_arguments({"sweep": sweep, "config": "tiny"}, is_local=False)
    check_arguments({"sweep": [{"name": "a", "settings": {"optimizer.learning_rate": 1e-6}}]}, is_local=False)


@pytest.mark.parametrize(
    ("arguments", "code", "value"),
    [
        ({"environment": "wiki"}, "pipelines.unknown-environment", "'wiki'"),
        ({"sources": ["maildir:s3://bucket/mail"]}, "sources.unknown-form", "maildir:s3://bucket/mail"),
        ({"sources": ["dir:documents"]}, "pipelines.not-readable-from-pods", "read documents;"),
        ({"sources": [{"source": "dir:s3://bucket/x", "owner": ANN}]}, "sources.owner-not-allowed", ANN),
        ({"index": {"max_body": 0}}, "documents.invalid-index-options", "max_body"),
        ({"index": {"embedding": "none"}}, "documents.invalid-index-options", "embedding: "),
        ({"index": {"tokens": 3}}, "documents.invalid-chunk-size", "3"),
        ({"index": {"language": "German"}}, "documents.invalid-language", "'German'"),
    ],
)
def test_invalid_document_arguments_are_refused_before_anything_starts(
    arguments: dict[str, Any], code: str, value: str
) -> None:
    given = {"environment": "documents", "embedding": "none", "sources": ["dir:s3://bucket/documents"]}
    with raises(code, value):
        check_arguments({**given, **arguments}, is_local=False)
    check_arguments(given, is_local=False)


@pytest.mark.parametrize(
    ("arguments", "code", "values"),
    [
        ({"deploy": "some"}, "pipelines.unknown-deploy-mode", ["'some'", "none, canary, full"]),
        ({"deploy": "full", "store": "file:///store"}, "pipelines.store-not-in-s3", ["file:///store"]),
        ({"deploy": "canary", "deployment": {"percent": "x"}}, "deploy.invalid-target", ["percent", "'x'"]),
        (
            {"deploy": "canary", "deployment": {"promote_when": "success >= 90"}},
            "deploy.invalid-condition",
            ["success", "90%"],
        ),
        (
            {"deploy": "full", "deployment": {"promote_when": "success >= 90%"}},
            "pipelines.watch-without-canary",
            ["full"],
        ),
        (
            {"deploy": "canary", "deployment": {"promote_when": "default", "metrics": ["prometheus:9090"]}},
            "deploy.invalid-metrics-url",
            ["'prometheus:9090'"],
        ),
        (
            {"deployment": {"release": "a"}},
            "deploy.invalid-target",
            ["release: ", "name (str, 'gumshoe' by default), namespace"],
        ),
    ],
)
def test_an_invalid_deployment_is_refused_before_anything_starts(
    arguments: dict[str, Any], code: str, values: list[str]
) -> None:
    given = {"deploy": "none", "store": "s3://bucket/project", **arguments}
    with raises(code, "deploy: ", *values):
        check_arguments(given, is_local=True)


@pytest.mark.parametrize(
    ("limits", "values"),
    [
        ({"max_turns": 0}, ["max_turns: ", "got 0"]),
        ({"max_turns": True, "max_tokens": 60.5}, ["max_turns: ", "got True", "max_tokens: ", "got 60.5"]),
        (
            {"turns": 3},
            ["turns: ", "max_turns (int, optional), max_tokens", "environment (EnvironmentSettings, optional)"],
        ),
    ],
)
def test_invalid_limits_are_refused_before_anything_starts(limits: dict[str, Any], values: list[str]) -> None:
    with raises("evaluation.invalid-limits", "limits: ", *values):
        check_arguments({"limits": limits}, is_local=False)
    check_arguments({"limits": {"max_turns": 8, "max_context": 4096.0}}, is_local=False)


@pytest.mark.parametrize("config", ["tiny", "s3://bucket/train.yaml"])
@pytest.mark.parametrize(
    ("setting", "value", "code"),
    [
        ("rewards.functions", [{"name": "exakt"}], "rewards.unknown-reward"),
        ("optimizer.algorithm", {"turn_level": {"values": {"sorce": 1}}}, "settings.invalid-algorithm-setting"),
        ("evaluation.judge", "exat", "judges.unknown-judge"),
        ("environment", {"email": {"hits": 0}}, "environments.invalid-settings"),
    ],
)
def test_what_training_settings_name_is_checked_before_anything_starts(
    config: str, setting: str, value: Any, code: str
) -> None:
    with raises(code, "config: "):
        check_arguments({"config": config, "settings": {setting: value}}, is_local=False)


@pytest.mark.parametrize(
    ("setting", "value", "code"),
    [
        ("rewards.functions", [{"name": "on_the_image.rewards:brevity"}], "rewards.import-failed"),
        ("rewards.functions", [{"name": "ruler"}], "models.no-api-key"),
        ("optimizer.algorithm", "on_the_image.algorithms:Reinforce", "settings.algorithm-not-importable"),
        ("environment", "on_the_image.wiki:Wiki", "environments.import-failed"),
    ],
)
def test_keys_and_modules_of_training_may_be_missing_where_a_run_is_submitted(
    monkeypatch: pytest.MonkeyPatch, setting: str, value: Any, code: str
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    given = {"config": "tiny", "settings": {setting: value}}
    check_arguments(given, is_local=False)
    with raises(code, "config: "):
        check_arguments(given, is_local=True)


def test_evaluations_cannot_have_other_chat_settings_than_training() -> None:
    given: dict[str, Any] = {"config": "", "settings": {"chat.thinking_budget": 64}, "base_model": "tiny"}
    with raises("pipelines.other-chat-settings", "thinking_budget", 64):
        check_arguments({**given, "limits": {"chat": {"thinking_budget": 65}}}, is_local=False)
    check_arguments({**given, "limits": {"chat": {"thinking_budget": 64.0}}}, is_local=False)
    check_arguments({**given, "limits": {}}, is_local=False)


def test_evaluations_cannot_have_another_environment_than_training() -> None:
    small = {"email": {"hits": 4, "handles": True}}
    given: dict[str, Any] = {"config": "", "settings": {"environment": small}, "base_model": "tiny"}
    for environment in ("email", {"email": {"hits": 5, "handles": True}}):
        with raises("pipelines.other-environment", '"hits": 4'):
            check_arguments({**given, "limits": {"environment": environment}}, is_local=False)
    check_arguments({**given, "limits": {"environment": {"email": {"hits": 4.0, "handles": True}}}}, is_local=False)
    check_arguments({**given, "settings": {"environment": "email"}, "limits": {}}, is_local=False)


@pytest.mark.parametrize(
    ("arguments", "parameter"),
    [
        ({"config": "smollm2-cpu"}, "settings"),
        ({"config": "", "settings": MAIL_ENV}, "settings"),
        ({"config": "s3://b/c.yaml", "settings": MAIL_ENV}, "settings"),
        ({"config": "", "settings": {**MAIL_ENV, "mode": "simple"}}, "settings"),
        ({"config": "", "sweep": [{"name": "a", "settings": MAIL_ENV}]}, "settings"),
        ({"limits": MAIL_ENV}, "limits"),
        ({"environment": "email", "config": "", "settings": {"environment": {"documents": {}}}}, "settings"),
    ],
)
def test_an_index_of_another_kind_than_training_and_evaluations_use_is_refused(
    arguments: dict[str, Any], parameter: str
) -> None:
    given = {"environment": "documents", "embedding": "none", "gpus": 0, **arguments}
    with raises("pipelines.other-environment", f"{parameter}={{environment: "):
        check_arguments(given, is_local=False)


def test_an_environment_of_the_user_fits_every_index() -> None:
    custom = {"environment": "my_package.wiki:Wiki"}
    check_arguments({"environment": "documents", "embedding": "none", "config": "", "settings": custom}, is_local=False)
    own: dict[str, Any] = {"environment": {"documents": {}}}
    given = {"environment": "documents", "embedding": "none", "gpus": 0, "config": "smollm2-cpu", "settings": own}
    check_arguments(given, is_local=False)
    check_arguments({**given, "limits": {}}, is_local=False)


def test_evaluations_of_a_sweep_have_the_environment_and_the_chat_settings_of_each_entry() -> None:
    for name, value in (("environment", {"email": {"handles": True}}), ("chat", {"thinking_budget": 64})):
        sweep = [{"name": "a", "settings": {name: value}}]
        given: dict[str, Any] = {"config": "", "sweep": sweep, "base_model": "tiny", "limits": {}}
        with raises(f"pipelines.other-{'chat-settings' if name == 'chat' else name}", "sweep: ", f"limits.{name}"):
            check_arguments(given, is_local=False)
        check_arguments({**given, "limits": {name: value}}, is_local=False)


def test_evaluations_have_what_training_has_unless_limits_say_otherwise() -> None:
    from gumshoe.environments.registry import EnvironmentSettings
    from gumshoe.evaluation.evaluation_step import EvaluationLimits
    from gumshoe.rollouts.chat_format.chat_settings import ChatSettings
    from gumshoe_pipelines.run_arguments import complete_arguments

    small = {"email": {"hits": 4, "handles": True}}
    settings = {"environment": small, "rollouts.max_turns": 6, "chat.thinking_budget": 64}
    given: dict[str, Any] = {"config": "tiny", "settings": settings, "base_model": "tiny", "limits": {"max_tokens": 99}}
    limits = EvaluationLimits.from_mapping(complete_arguments(given, is_local=False)["limits"])
    assert (limits.max_turns, limits.max_tokens, limits.max_context) == (6, 99, 8192)
    assert limits.environment == EnvironmentSettings.parse(small)
    assert limits.chat == ChatSettings(thinking_budget=64)
    check_arguments(complete_arguments(given, is_local=False), is_local=False)
    assert complete_arguments({"limits": {}}, is_local=False) == {"limits": {}}, "a pipeline that does not train"


def test_an_invalid_choice_is_refused_before_anything_starts() -> None:
    for choice, code, value in (
        ({"samples": 1, "choose": "majority"}, "rewards.invalid-choice-settings", "or equal to 2"),
        ({"samples": 8, "choose": "best", "choose_by": "heuristic"}, "rewards.chooser-needs-reference", "'heuristic'"),
        ({"choose": "majority"}, "rewards.invalid-choice-settings", "samples: field required"),
    ):
        with raises(code, "choice: ", value):
            check_arguments({"choice": choice}, is_local=False)
    check_arguments({"choice": {}}, is_local=False)
    check_arguments({"choice": {"samples": 8, "choose": "best", "choose_by": "ruler:m"}}, is_local=False)


def test_missing_demonstrations_are_refused_before_anything_starts(tmp_path: Path) -> None:
    """Only if this machine can read them."""
    arguments = {"demonstrations": str(tmp_path / "none.jsonl"), "thresholds": {"min_gains": 0.1}}
    each = ("none.jsonl", "[store.not-found]", "min_gains", "[gate.invalid-threshold]")
    with raises("pipelines.several-faults", "demonstrations: ", "thresholds: ", *each):
        check_arguments(arguments, is_local=True)
    with raises("gate.invalid-threshold", "min_gains") as elsewhere:
        check_arguments({**arguments, "demonstrations": "s3://bucket/none.jsonl"}, is_local=False)
    assert "demonstrations" not in str(elsewhere.value)
    (tmp_path / "none.jsonl").touch()
    check_arguments({"demonstrations": str(tmp_path / "none.jsonl")}, is_local=True)
    check_arguments({"demonstrations": "gold"}, is_local=True)
    check_arguments({"demonstrations": "gold"}, is_local=False)


def test_an_unknown_pipeline_is_refused() -> None:
    with raises("pipelines.unknown-pipeline", "'train'", *PIPELINES):
        compile_graph("train")


@pytest.mark.parametrize(
    ("arguments", "code", "value"),
    [
        ({"sources": [{"maildir": "s3://bucket/mail"}]}, "pipelines.source-not-a-string", "{'maildir': "),
        ({"sources": [[MAIL]]}, "pipelines.source-not-a-string", f"['{MAIL}']"),
        ({"sources": [{"source": MAIL, "ovner": ANN}]}, "mail.invalid-source-list", "ovner: "),
        ({"sources": [{"source": MAIL, "aliases": ANN}]}, "mail.invalid-source-list", "aliases: "),
        ({"sources": [{"source": MAIL, "owner": "ann"}]}, "mail.invalid-owner", "'ann'"),
        ({"sources": [{"source": "dir:x", "owner": ANN}]}, "sources.unknown-form", "'dir:x'"),
        ({"sources": [{"source": "maildir:x", "owner": ANN}]}, "pipelines.not-readable-from-pods", "read x;"),
        ({"index": {"max_bdy": 0}}, "mail.invalid-index-options", "max_bdy: "),
        ({"index": {"skip": ["old"]}}, "mail.invalid-index-options", "'old'"),
        ({"index": {"embedding": 3}}, "mail.invalid-index-options", "embedding: "),
    ],
)
def test_invalid_mail_arguments_are_refused_before_anything_starts(
    arguments: dict[str, Any], code: str, value: str
) -> None:
    owned = {"source": MAIL, "owner": ANN, "aliases": ["a.lee@example.com"]}
    given = {"sources": [owned, MAIL], "index": {"max_body": 0.0, "max_recipients": 0.0, "skip": []}}
    check_arguments(given, is_local=False)
    with raises(code, value):
        check_arguments({**given, **arguments}, is_local=False)


def test_the_state_of_a_source_does_not_depend_on_its_owner(tmp_path: Path) -> None:
    from gumshoe.scenarios.component import look_at_sources

    (tmp_path / "mail.jsonl").touch()
    uri = f"jsonl:{tmp_path / 'mail.jsonl'}"
    states = {look_at_sources.python_func([each], uri, "", {}) for each in (uri, {"source": uri, "owner": ANN})}
    assert len(states) == 1
