"""Test `gumshoe deploy`, `promote`, `rollback` and `deployments` with a fake Kubernetes API."""

import json
import re
import shlex
import shutil
from collections import deque
from collections.abc import Callable
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from gumshoe.artifacts.storage import StorageError
from gumshoe.artifacts.store import Store
from gumshoe.cluster import deployment_record, helm_program, pipeline_deployment, readiness
from gumshoe.cluster.kubernetes_api import Cluster
from gumshoe.cluster.pipeline_deployment import DeployTarget, deploy_published
from gumshoe.cluster.releases import Releases, find_chart
from tests.cluster.fake_kubernetes import Controllers, FakeKubernetes, write_kubeconfig
from tests.cluster.helm_programs import run_kubectl
from tests.conftest import CommandResult
from tests.errors import raises

BASE = "Qwen/Qwen2.5-7B-Instruct"
IMAGE = "registry.example.com/gumshoe/agent"
ACCESS = ["--set", "agent.access.existingSecret=gumshoe-keys", "--set", f"agent.image.repository={IMAGE}"]
AGENT, MODEL = "mail-gumshoe-agent-agent", "mail-gumshoe-agent-predictor"
NOT_READY = {"type": "Ready", "status": "False"}
SHORT_TIMEOUT = ["--timeout", "0.01"]
"""For tests in which the deployment never becomes ready."""


@pytest.fixture
def cluster(cluster: FakeKubernetes, monkeypatch: pytest.MonkeyPatch) -> FakeKubernetes:
    """Use Helm's library, which is quicker than its program (`test_helm.py` tests both), and check more often."""
    monkeypatch.setattr(helm_program, "find_program", lambda: None)
    monkeypatch.setattr(readiness, "_EVERY", 0.1)
    cluster.settle = Controllers(cluster).settle
    return cluster


@pytest.fixture(scope="module")
def shared() -> dict[str, str]:
    """URIs of the stores that several tests use, by name. The first test that needs a store creates it."""
    return {}


@pytest.fixture
def store(s3_bucket: str, shared: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Four published adapters: r1 to r3 for one base model, and one for another. Publish no others there."""
    made = Store(shared.setdefault("project", f"s3://{s3_bucket}/project"))
    if made.latest("adapters") is None:
        for name, base, rank in (("r1", BASE, 8), ("r2", BASE, 64), ("r3", BASE, 8), ("other", "Qwen/Qwen3-8B", 8)):
            publish(made, tmp_path / "adapters" / name, name, {"base_model_name_or_path": base, "r": rank})
    monkeypatch.setenv("GUMSHOE_STORE", made.uri)
    return made


@pytest.fixture
def unservable(s3_bucket: str, shared: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create a store with one adapter that can be served, and four that cannot."""
    made = Store(shared.setdefault("unservable", f"s3://{s3_bucket}/project"))
    monkeypatch.setenv("GUMSHOE_STORE", made.uri)
    if made.latest("adapters") is not None:
        return
    publish(made, tmp_path / "r1", "r1", {"base_model_name_or_path": BASE, "r": 8})
    publish(made, tmp_path / "nowhere", "nowhere", {"base_model_name_or_path": "/models/mine", "r": 8})
    record = {"name": "outputs/base", "fingerprint": "4e2c", "revision": None}
    publish(made, tmp_path / "here", "here", {"base_model_name_or_path": "outputs/base", "r": 8}, record)
    publish(made, tmp_path / "huge", "huge", {"base_model_name_or_path": BASE, "r": 8, "rank_pattern": {"q": 1024}})
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes").write_text("-")
    made.publish(tmp_path / "empty", "adapters", "empty")


def publish(
    store: Store, directory: Path, version: str, shape: dict[str, Any], base: dict[str, Any] | None = None
) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    if base is not None:
        (directory / "base_model.json").write_text(json.dumps(base))
    (directory / "adapter_config.json").write_text(json.dumps(shape))
    (directory / "adapter_model.safetensors").write_bytes(version.encode())
    store.publish(directory, "adapters", version)


@pytest.fixture
def controllers(cluster: FakeKubernetes) -> Controllers:
    played = Controllers(cluster)
    cluster.settle = played.settle
    return played


def agent_settings(cluster: FakeKubernetes) -> dict[str, Any]:
    text = cluster.objects["configmaps", "agents", AGENT]["data"]["settings.yaml"]
    return dict(yaml.load(text, yaml.CSafeLoader)["model"])


def get_traffic(cluster: FakeKubernetes) -> tuple[str, str | None, float | None]:
    """Return the adapter, the canary and its percentage in the agent server's settings."""
    model = agent_settings(cluster)
    return model["policy"].rpartition("#")[2], model.get("canary"), model.get("canary_percent")


def list_loaded(cluster: FakeKubernetes) -> list[str]:
    """Return the adapters that vLLM is started with."""
    arguments = cluster.objects["deployments", "agents", MODEL]["spec"]["template"]["spec"]["containers"][0]["args"]
    return [json.loads(each)["name"] for each in arguments[arguments.index("--lora-modules") + 1 :]]


@pytest.fixture(scope="module")
def after_first() -> dict[tuple[str, str, str], dict[str, Any]]:
    """Hold the cluster's objects after the first deployment of r1, created once for all tests."""
    return {}


@pytest.fixture
def deployed(
    run: Callable[..., CommandResult],
    cluster: FakeKubernetes,
    store: Store,  # noqa: ARG001
    after_first: dict[tuple[str, str, str], dict[str, Any]],
) -> str:
    """Deploy r1, and return the name of the deployment."""
    if not after_first:
        done = run("deploy", "mail", "--adapter", "r1", *ACCESS)
        assert done.status == 0, done.err
        after_first |= deepcopy(cluster.objects)
    cluster.restore(after_first)
    return "mail"


def test_a_published_adapter_is_deployed(
    run: Callable[..., CommandResult], cluster: FakeKubernetes, deployed: str, store: Store
) -> None:
    assert get_traffic(cluster) == ("r1", None, None)
    spec = cluster.of("InferenceService")[0]["spec"]["predictor"]
    uris = {each["mountPath"]: each["uri"] for each in spec["storageUris"]}
    manifest = store.manifest("adapters/r1")
    assert uris == {
        "/mnt/models": f"hf://{BASE}",
        "/mnt/lora/r1": f"{store.uri}/adapters/r1/{manifest.data}/",
    }
    (listed,) = json.loads(run("deployments", "--json").out)
    assert (listed["name"], listed["adapter"], listed["traffic"]) == ("mail", "r1", {"r1": 100})
    assert (listed["health"], listed["is_ready"], listed["mode"]) == ("ready", True, "standard")
    shown = run("deployments", "show", deployed)
    assert "r1 takes 100 %" in shown.out
    assert f"{AGENT}-0  ready" in shown.out


@pytest.mark.ci
def test_a_new_adapter_is_loaded_before_it_gets_questions(
    run: Callable[..., CommandResult], cluster: FakeKubernetes, controllers: Controllers, deployed: str
) -> None:
    states: list[tuple[str, list[str]]] = []

    def settle(made: dict[str, Any]) -> None:
        controllers.settle(made)
        if made["kind"] == "ConfigMap":
            policy = yaml.safe_load(made["data"]["settings.yaml"])["model"]["policy"]
            states.append((policy.rpartition("#")[2], list_loaded(cluster)))

    cluster.settle = settle
    done = run("deploy", deployed, "--adapter", "r2")
    assert (done.status, "warning" in done.err) == (0, False)
    assert [name for name, _ in states] == ["r1", "r2"]
    assert states[1][1] == ["r1", "r2"], "vLLM had already loaded r2"
    assert (get_traffic(cluster), list_loaded(cluster)) == (("r2", None, None), ["r1", "r2"])
    runtime = cluster.of("ServingRuntime")[0]["spec"]["containers"][0]["args"]
    assert "--max-lora-rank=64" in runtime
    assert "--max-loras=2" in runtime


@pytest.mark.ci
def test_a_canary_is_promoted_and_rolled_back_without_a_restart_of_vllm(
    run: Callable[..., CommandResult], cluster: FakeKubernetes, controllers: Controllers, deployed: str
) -> None:
    done = run("deploy", deployed, "--adapter", "r2", "--canary", "10")
    assert done.status == 0, done.err
    assert "r1 takes 90 %, r2 takes 10 %" in done.out
    assert get_traffic(cluster) == ("r1", "r2", 10)
    controllers.rollouts.clear()

    assert run("deploy", deployed, "--adapter", "r2", "--canary", "50").status == 0
    assert get_traffic(cluster) == ("r1", "r2", 50)
    assert run("promote", deployed).status == 0
    assert get_traffic(cluster) == ("r2", None, None)
    again = run("promote", deployed)
    assert (again.status, again.code) == (2, "deploy.no-canary")
    assert run("rollback", deployed).status == 0
    assert get_traffic(cluster) == ("r1", None, None)
    assert list_loaded(cluster) == ["r1", "r2"]
    assert set(controllers.rollouts) == {AGENT}, "vLLM has loaded both and is not restarted"

    assert run("rollback", deployed).status == 0, "a second rollback does not bring r2 back"
    assert (get_traffic(cluster), list_loaded(cluster)) == (("r1", None, None), ["r1"])
    more = run("rollback", deployed)
    assert (more.status, more.code) == (2, "deploy.nothing-to-roll-back")
    assert "r1" in more.err


@pytest.mark.ci
def test_a_rollback_stops_a_canary(run: Callable[..., CommandResult], cluster: FakeKubernetes, deployed: str) -> None:
    run("deploy", deployed, "--adapter", "r2", "--canary", "10")
    assert run("rollback", deployed).status == 0
    assert get_traffic(cluster) == ("r1", None, None)
    assert run("promote", deployed).code == "deploy.no-canary"


@pytest.mark.ci
def test_a_rollback_returns_to_the_previous_adapter(
    run: Callable[..., CommandResult], cluster: FakeKubernetes, controllers: Controllers, deployed: str
) -> None:
    for name in ("r2", "r3", "r2"):
        assert run("deploy", deployed, "--adapter", name).status == 0
    assert (get_traffic(cluster)[0], list_loaded(cluster)) == ("r2", ["r2", "r3"])
    controllers.rollouts.clear()
    assert run("rollback", deployed).status == 0
    assert (get_traffic(cluster)[0], set(controllers.rollouts)) == ("r3", {AGENT})


@pytest.mark.ci
def test_a_rollback_removes_an_adapter_that_cannot_be_loaded(
    run: Callable[..., CommandResult], cluster: FakeKubernetes, controllers: Controllers, deployed: str
) -> None:
    """The adapter in service stays; the previous one does not return."""
    assert run("deploy", deployed, "--adapter", "r2").status == 0
    controllers.broken = "model"
    done = run("deploy", deployed, "--adapter", "r3", "--canary", "10", *SHORT_TIMEOUT)
    assert (done.status, done.code) == (75, "deploy.not-ready")
    assert "`gumshoe rollback mail --revision 3`" in done.err
    controllers.repair()
    assert run("rollback", deployed).status == 0
    assert (get_traffic(cluster), list_loaded(cluster)) == (("r2", None, None), ["r2"])
    assert run("rollback", deployed, "--revision", "3").status == 0
    assert (get_traffic(cluster)[0], list_loaded(cluster)) == ("r2", ["r1", "r2"])


@pytest.mark.nightly
def test_values_can_be_changed_without_changing_adapters(
    run: Callable[..., CommandResult], cluster: FakeKubernetes, deployed: str
) -> None:
    run("deploy", deployed, "--adapter", "r2", "--canary", "10")
    for more in ([], ["--adapter", "r1"]):
        assert run("deploy", deployed, *more, "--set", f"agent.replicas={4 + len(more)}").status == 0
        assert get_traffic(cluster) == ("r1", "r2", 10)
        assert cluster.objects["deployments", "agents", AGENT]["spec"]["replicas"] == 4 + len(more)
    without = run("deploy", "other")
    assert (without.status, without.code) == (2, "deploy.first-without-adapter")
    assert "other" in without.err


def test_a_store_is_only_required_with_an_adapter(
    run: Callable[..., CommandResult], cluster: FakeKubernetes, deployed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GUMSHOE_STORE")
    assert run("deploy", deployed, "--set", "agent.replicas=5").status == 0
    assert cluster.objects["deployments", "agents", AGENT]["spec"]["replicas"] == 5
    refused = run("deploy", deployed, "--adapter", "r2")
    assert (refused.status, refused.code) == (2, "deploy.store-not-named")
    assert "r2" in refused.err


@pytest.mark.ci
def test_promote_and_rollback_refuse_another_chart_version(
    run: Callable[..., CommandResult], deployed: str, tmp_path: Path
) -> None:
    chart = shutil.copytree(find_chart(), tmp_path / "chart")
    (chart / "Chart.yaml").write_text((chart / "Chart.yaml").read_text().replace("version: 0.1.0", "version: 0.2.0", 1))
    run("deploy", deployed, "--adapter", "r2", "--canary", "10")
    for command in ("promote", "rollback"):
        done = run(command, deployed, "--chart", chart)
        assert (done.status, done.code) == (2, "deploy.other-chart-version")
        assert "chart 0.1.0" in done.err
        assert "chart 0.2.0" in done.err


@pytest.mark.nightly
def test_a_given_base_model_uri_is_kept(
    run: Callable[..., CommandResult], cluster: FakeKubernetes, deployed: str
) -> None:
    pinned = f"hf://{BASE}:abc123"
    assert run("deploy", deployed, "--set", f"model.uri={pinned}").status == 0
    assert run("deploy", deployed, "--adapter", "r2", "--canary", "10").status == 0
    spec = cluster.of("InferenceService")[0]["spec"]["predictor"]
    assert {"uri": pinned, "mountPath": "/mnt/models"} in spec["storageUris"]


def test_an_adapter_in_another_store_is_refused(
    run: Callable[..., CommandResult], deployed: str, store: Store, tmp_path: Path
) -> None:
    other = Store(f"{store.uri.rpartition('/')[0]}/other")
    publish(other, tmp_path / "elsewhere", "r9", {"base_model_name_or_path": BASE, "r": 8})
    done = run("deploy", deployed, "--adapter", "r9", "--store", other.uri)
    assert (done.status, done.code) == (2, "deploy.other-store")
    assert f"r9 is in {other.uri}" in done.err
    assert f"reads from {store.uri}" in done.err


@pytest.mark.ci
def test_a_rollback_to_a_revision_restores_all_values(
    run: Callable[..., CommandResult], cluster: FakeKubernetes, deployed: str
) -> None:
    run("deploy", deployed, "--adapter", "r1", "--set", "agent.replicas=5")
    assert cluster.objects["deployments", "agents", AGENT]["spec"]["replicas"] == 5
    assert run("rollback", deployed, "--revision", "1").status == 0
    assert cluster.objects["deployments", "agents", AGENT]["spec"]["replicas"] == 2
    none = run("rollback", deployed, "--revision", "9")
    assert (none.status, none.code) == (2, "deploy.no-such-revision")
    assert "revision 9 of mail" in none.err
    assert "3, 2, 1" in none.err


def test_repeating_a_deployment_changes_nothing(run: Callable[..., CommandResult], deployed: str) -> None:
    before = json.loads(run("deployments", "show", deployed, "--json").out)
    done = run("deploy", deployed, "--adapter", "r1", *ACCESS, "--json")
    assert json.loads(done.out)["revision"] == before["revision"]
    assert [each["revision"] for each in before["history"]] == [1]


def test_a_dry_run_prints_the_values_and_changes_nothing(
    run: Callable[..., CommandResult], cluster: FakeKubernetes, store: Store, tmp_path: Path
) -> None:
    file = tmp_path / "values.yaml"
    agent = f"{{access: {{existingSecret: gumshoe-keys}}, image: {{repository: {IMAGE}}}, replicas: 3}}"
    file.write_text(f"agent: {agent}\nserving: {{gpus: 2}}\n")
    done = run("deploy", "mail", "--adapter", "latest", "-f", str(file), "--set", "serving.gpus=4", "--dry-run")
    assert done.status == 0, done.err
    values = yaml.safe_load(done.out)
    assert values["adapter"]["name"] == "other"
    assert values["adapter"]["uri"].startswith(f"{store.uri}/adapters/other/sha256-")
    assert (values["serving"]["gpus"], values["agent"]["replicas"]) == (4, 3)
    assert values["model"]["uri"] == "hf://Qwen/Qwen3-8B"
    (command,) = re.findall("helm upgrade.*", done.err)
    words = ["helm", "upgrade", "--install", "mail", str(find_chart()), "--namespace", "agents"]
    assert shlex.split(command) == [*words, "--values", "values.mail.yaml"]
    assert cluster.objects == {}


@pytest.mark.parametrize(
    ("arguments", "code", "values"),
    [
        (["--adapter", "r9"], "artifacts.not-found", ["r9"]),
        (["--adapter", "r1"], "deploy.values-rejected", ["agent.image.repository", "images/build.sh"]),
        (["--adapter", "r1", *ACCESS[2:]], "deploy.values-rejected", ["agent.access", "existingSecret", "jwksUrl"]),
        (["--adapter", "r1", *ACCESS, "--set", "serving.gpu=2"], "deploy.values-rejected", ["/serving", "'gpu'"]),
        (["--adapter", "r1", *ACCESS, "--canary", "10"], "deploy.canary-without-deployment", ["mail"]),
        (["--adapter", "r1", *ACCESS, "--set", "serving"], "deploy.invalid-set-option", ["'serving'"]),
        (["--adapter", "r1", *ACCESS, "-f", "none.yaml"], "deploy.values-unreadable", ["none.yaml"]),
        (["--adapter", "r1", *ACCESS, "--context", "prod"], "cluster.unknown-context", ["prod", "fake"]),
        (["--adapter", "r1", *ACCESS, "--chart", "none"], "deploy.chart-unreadable", []),
        (["--adapter", "nowhere", *ACCESS], "deploy.base-model-not-located", ["/models/mine", "--set model.uri="]),
        (["--adapter", "here", *ACCESS], "deploy.base-model-not-located", ["outputs/base", "--set model.uri="]),
        (["--adapter", "huge", *ACCESS], "deploy.rank-too-high", ["1024", "512"]),
        (["--adapter", "empty", *ACCESS], "deploy.not-an-adapter", ["adapters/empty"]),
        (["--adapter", "r1", "--store", "own-disk", *ACCESS], "deploy.store-not-in-s3", ["own-disk"]),
    ],
)
@pytest.mark.usefixtures("unservable")
def test_an_invalid_deployment_is_refused_before_any_change(
    run: Callable[..., CommandResult],
    cluster: FakeKubernetes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: str,
    values: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("deploy", "mail", *arguments)
    assert done.status != 0
    assert done.code == code
    for value in values:
        assert value in done.err
    assert cluster.objects == {}


@pytest.mark.parametrize("name", ["Mail", "m" * 54, "mail_1"])
@pytest.mark.usefixtures("cluster", "store")
def test_invalid_release_names_are_refused(run: Callable[..., CommandResult], name: str) -> None:
    done = run("deploy", name, "--adapter", "r1", *ACCESS)
    assert (done.status, done.code) == (2, "deploy.invalid-name")


def test_a_canary_of_another_base_model_or_of_itself_is_refused(
    run: Callable[..., CommandResult], deployed: str
) -> None:
    other = run("deploy", deployed, "--adapter", "other", "--canary", "10")
    assert (other.status, other.code) == (2, "deploy.other-base-model")
    assert "--set model.uri=" in other.err
    named = run("deploy", deployed, "--adapter", "other", "--canary", "10", "--set", "model.uri=hf://Qwen/Qwen3-8B")
    assert (named.status, named.code) == (2, "deploy.canary-of-other-base-model")
    itself = run("deploy", deployed, "--adapter", "r1", "--canary", "10")
    assert (itself.status, itself.code) == (2, "deploy.canary-already-in-service")
    without = run("deploy", deployed, "--canary", "10")
    assert (without.status, without.code) == (2, "deploy.canary-without-adapter")


@pytest.mark.ci
@pytest.mark.usefixtures("controllers")
def test_a_canary_that_was_trained_differently_is_refused(
    run: Callable[..., CommandResult], s3_bucket: str, tmp_path: Path
) -> None:
    store = Store(f"s3://{s3_bucket}/trained")
    small = {"name": "email", "arguments": {"hits": 4}}
    records: dict[str, dict[str, Any]] = {
        "r1": {"environment.json": small, "chat_settings.json": {"thinking_budget": None}},
        "other-hits": {"environment.json": {**small, "arguments": {"hits": 5}}},
        "marks": {"environment.json": {**small, "arguments": {"hits": 4, "marks": True}}},
        "chat": {"chat_settings.json": {"thinking_budget": 64}},
        "same": {"environment.json": {**small, "arguments": {"hits": 4, "marks": False}}, "chat_settings.json": {}},
    }
    records["r1"]["metadata.json"] = {"settings": {"rollouts": {"max_turns": 6, "max_tokens": 160}}}
    records["same"]["metadata.json"] = {"settings": {"rollouts": {"max_turns": 8, "max_tokens": 160}}}
    for name, files in records.items():
        place = tmp_path / name
        place.mkdir()
        for file, content in files.items():
            (place / file).write_text(json.dumps(content))
        publish(store, place, name, {"base_model_name_or_path": BASE, "r": 8})
    assert run("deploy", "mail", "--store", store.uri, "--adapter", "r1", *ACCESS).status == 0
    for name, what in (
        ("other-hits", "environment: hits"),
        ("marks", "environment: marks"),
        ("chat", "chat settings: thinking_budget"),
    ):
        done = run("deploy", "mail", "--store", store.uri, "--adapter", name, "--canary", "10")
        assert (done.status, done.code) == (2, "deploy.canary-trained-differently"), done.err
        assert what in done.err
    done = run("deploy", "mail", "--store", store.uri, "--adapter", "same", "--canary", "10")
    assert done.status == 0, done.err
    assert "max_turns 6 and 8:" in done.err, "limits may differ, with a warning"


def test_an_adapter_of_another_base_model_replaces_both(
    run: Callable[..., CommandResult], cluster: FakeKubernetes, deployed: str
) -> None:
    done = run("deploy", deployed, "--adapter", "other", "--set", "model.uri=hf://Qwen/Qwen3-8B")
    assert done.status == 0, done.err
    assert "warning" in done.err
    assert get_traffic(cluster) == ("other", None, None)
    assert list_loaded(cluster) == ["other"]


@pytest.mark.ci
@pytest.mark.parametrize("part", ["agent", "model"])
def test_a_failed_rollout_is_explained(
    run: Callable[..., CommandResult], cluster: FakeKubernetes, controllers: Controllers, deployed: str, part: str
) -> None:
    controllers.broken = part
    done = run("deploy", deployed, "--adapter", "r2", *SHORT_TIMEOUT)
    assert (done.status, done.code) == (75, "deploy.not-ready")
    message = " ".join(done.err.split())
    assert f"{part}: ImagePullBackOff" in message
    assert get_traffic(cluster)[0] == "r1", "r2 gets no questions before it is ready"
    if part == "model":
        assert "PredictorReady: MinimumReplicasUnavailable" in message
    listed = run("deployments")
    assert "ImagePullBackOff" in listed.out

    controllers.repair()
    assert run("deploy", deployed, "--adapter", "r2").status == 0, "repeating the command continues"
    assert get_traffic(cluster)[0] == "r2"


@pytest.mark.ci
@pytest.mark.parametrize("part", ["agent", "model"])
def test_refused_pods_are_explained_until_the_cause_is_gone(
    run: Callable[..., CommandResult], controllers: Controllers, deployed: str, part: str
) -> None:
    """No pod exists that could say so: only the Deployment does."""
    controllers.broken = part
    controllers.refusal = "exceeded quota: gumshoe, requested: pods=1, used: pods=50, limited: pods=50"
    done = run("deploy", deployed, "--adapter", "r2", *SHORT_TIMEOUT)
    assert (done.status, done.code) == (75, "deploy.not-ready")
    deployment = AGENT if part == "agent" else MODEL
    told = f"{part}: Deployment {deployment}: the cluster refuses the pod: quota gumshoe is used up"
    said, _, error = done.err.partition("error: ")
    assert told in error
    assert said.count("waits:") == said.count(told) == 1, "it is said while the command waits, once"
    assert "namespace agents" in said
    assert told in run("deployments", "show", deployed, "--json").out

    controllers.repair()
    assert run("deploy", deployed, "--adapter", "r2").status == 0
    assert "refuses" not in run("deployments").out


@pytest.mark.ci
def test_a_pod_that_can_never_start_ends_the_wait(
    run: Callable[..., CommandResult], controllers: Controllers, deployed: str
) -> None:
    controllers.broken, controllers.pod_problem = "agent", "InvalidImageName"
    image = f"{IMAGE}:v1:v2"
    given = ("--set", "agent.image.tag=v1:v2")
    back = run("deploy", deployed, *given, "--rollback-on-failure")
    assert (back.status, back.code) == (1, "deploy.rolled-back")
    assert "rolled back to revision 1" in back.err
    done = run("deploy", deployed, *given)
    assert (done.status, done.code) == (1, "deploy.invalid-image")
    for value in (f"{AGENT}-0", "namespace agents", image, "agent.image", "gumshoe rollback mail --revision 3"):
        assert value in done.err


@pytest.mark.ci
def test_a_repeated_command_waits_again_until_the_adapter_is_loaded(
    run: Callable[..., CommandResult], cluster: FakeKubernetes, controllers: Controllers, deployed: str
) -> None:
    controllers.broken = "model"
    for _ in range(2):
        assert run("deploy", deployed, "--adapter", "r2", "--no-wait", *SHORT_TIMEOUT).code == "deploy.not-ready"
        assert get_traffic(cluster) == ("r1", None, None)


@pytest.mark.nightly
def test_a_rollback_does_not_wait_for_broken_pods(
    run: Callable[..., CommandResult], cluster: FakeKubernetes, controllers: Controllers, deployed: str
) -> None:
    run("deploy", deployed, "--adapter", "r2", "--canary", "10")
    controllers.broken = "agent"
    assert run("promote", deployed, *SHORT_TIMEOUT).code == "deploy.not-ready"
    assert run("rollback", deployed, "--no-wait").status == 0
    assert get_traffic(cluster) == ("r1", None, None)


@pytest.mark.ci
def test_a_failed_deployment_is_rolled_back_on_request(
    run: Callable[..., CommandResult], cluster: FakeKubernetes, controllers: Controllers, deployed: str
) -> None:
    controllers.broken = "model"
    done = run("deploy", deployed, "--adapter", "r2", *SHORT_TIMEOUT, "--rollback-on-failure")
    assert (done.status, done.code) == (75, "deploy.rolled-back")
    assert "revision 1" in done.err
    assert list_loaded(cluster) == ["r1"]


@pytest.mark.ci
def test_a_stopped_canary_gets_no_questions_again_if_its_deployment_fails(
    run: Callable[..., CommandResult], cluster: FakeKubernetes, controllers: Controllers, deployed: str
) -> None:
    """It was loaded before the command, so the revision without questions is the one to go back to."""
    assert run("deploy", deployed, "--adapter", "r2", "--canary", "10").status == 0
    assert run("rollback", deployed).status == 0
    controllers.broken = "agent"
    done = run("deploy", deployed, "--adapter", "r2", *SHORT_TIMEOUT, "--rollback-on-failure")
    assert (done.status, done.code) == (75, "deploy.rolled-back")
    assert "revision 4" in done.err
    assert (get_traffic(cluster), list_loaded(cluster)) == (("r1", None, None), ["r1", "r2"])


@pytest.mark.usefixtures("store")
def test_an_idle_kserve_is_reported(run: Callable[..., CommandResult], controllers: Controllers) -> None:
    controllers.broken = "kserve"
    done = run("deploy", "mail", "--adapter", "r1", *ACCESS, *SHORT_TIMEOUT)
    assert (done.status, done.code) == (75, "deploy.not-ready")
    assert "InferenceService" in done.err


def test_failures_that_kserve_reports_are_shown(
    run: Callable[..., CommandResult], cluster: FakeKubernetes, deployed: str
) -> None:
    canary = ["serving.runtimeCanary.percent=20", "serving.runtimeCanary.tag=v0.32.0", "serving.replicas.max=1"]
    sets = [each for value in canary for each in ("--set", value)]
    assert run("deploy", deployed, "--adapter", "r1", *sets).status == 0
    cluster.settle = lambda _: None
    (service,) = cluster.of("InferenceService")
    name = service["spec"]["canary"][0]["predictor"]["name"]

    def show(ready: str, *canaries: dict[str, Any]) -> str:
        failure = {"transitionStatus": "BlockedByFailedLoad", "lastFailureInfo": {"message": "out of memory", "new": 1}}
        status = {
            "conditions": [{"type": "Ready", "status": ready}],
            "modelStatus": failure,
            "canaryStatuses": [{"trafficPercent": 20, "modelStatus": failure, **each} for each in canaries],
            "newer": {"field": 1},
        }
        cluster.change("inferenceservices", "agents", service["metadata"]["name"], status=status)
        return str(json.loads(run("deployments", "show", deployed, "--json").out)["health"])

    assert show("True", {"name": name, "ready": True}, {"name": "removed", "ready": False}) == "ready"
    assert "vLLM failed: out of memory" in show("False")
    health = show("True", {"name": name, "ready": False})
    assert f"canary {name}" in health
    assert health.count("out of memory") == 1


def test_a_warning_of_kserve_is_shown_while_it_creates_nothing(
    run: Callable[..., CommandResult], cluster: FakeKubernetes, deployed: str
) -> None:
    cluster.settle = lambda _: None
    (service,) = cluster.of("InferenceService")
    name = service["metadata"]["name"]
    late = {"type": "PredictorReady", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "timed out"}
    cluster.change("inferenceservices", "agents", name, status={"conditions": [NOT_READY, late]})
    health = json.loads(run("deployments", "show", deployed, "--json").out)["health"]
    assert "timed out" not in health
    assert "longer than 10 minutes" in health

    cluster.delete("deployments", "agents", MODEL)
    about = {"kind": "InferenceService", "name": name, "namespace": "agents"}
    event = {"type": "Warning", "reason": "InternalError", "message": "the webhook denied the Deployment"}
    seen = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}Z"
    meta = {"name": "e", "namespace": "agents"}
    cluster.put({"kind": "Event", "metadata": meta, "involvedObject": about, "lastTimestamp": seen, **event})
    health = json.loads(run("deployments", "show", deployed, "--json").out)["health"]
    assert "(InternalError: the webhook denied the Deployment)" in health


@pytest.mark.ci
def test_old_pods_do_not_count_as_ready(
    run: Callable[..., CommandResult], cluster: FakeKubernetes, controllers: Controllers, deployed: str
) -> None:
    """KServe keeps reporting ready until it has processed the change."""
    controllers.broken = "kserve"
    done = run("deploy", deployed, "--adapter", "r2", *SHORT_TIMEOUT)
    assert (done.status, done.code) == (75, "deploy.not-ready")
    assert "KServe" in done.err
    assert get_traffic(cluster)[0] == "r1"
    controllers.repair()
    controllers.broken = "kserve"
    image = run("deploy", deployed, "--set", "serving.image.tag=v0.32.0", *SHORT_TIMEOUT)
    assert (image.status, image.code) == (75, "deploy.not-ready")
    assert "KServe" in image.err


@pytest.mark.parametrize(
    ("fault", "code", "value"),
    [
        ({"refused": ("patch", "inferenceservices")}, "cluster.access-denied", "patch inferenceservices.serving"),
        ({"refused": ("list", "secrets")}, "cluster.access-denied", 'list resource "secrets"'),
        ({"refused": ("list", "deployments")}, "cluster.access-denied", 'list resource "deployments"'),
        ({"token": "another"}, "cluster.unauthenticated", "401"),
    ],
)
def test_missing_permissions_are_reported(
    run: Callable[..., CommandResult],
    cluster: FakeKubernetes,
    deployed: str,
    fault: dict[str, Any],
    code: str,
    value: str,
) -> None:
    for name, setting in fault.items():
        setattr(cluster, name, setting)
    done = run("deploy", deployed, "--adapter", "r1", "--set", "agent.replicas=4")
    assert (done.status, done.code) == (1, code)
    assert value in done.err
    for name in fault:
        setattr(cluster, name, None)
    assert run("deploy", deployed, "--adapter", "r1", "--set", "agent.replicas=4").status == 0


@pytest.mark.ci
def test_changes_of_other_programs_are_overwritten_on_request(
    run: Callable[..., CommandResult], cluster: FakeKubernetes, deployed: str
) -> None:
    def get_replicas() -> int:
        return int(cluster.objects["deployments", "agents", AGENT]["spec"]["replicas"])

    commands = (
        ("deploy", "--set", "agent.resources.limits.memory=3Gi"),
        ("deploy", "--adapter", "r2", "--canary", "10"),
        ("promote",),
        ("rollback",),
        ("rollback", "--revision", "1"),
        ("deploy",),
    )
    for command, *options in commands:
        run_kubectl("scale", f"deployment/{AGENT}", "--replicas=7")
        if options or command != "deploy":  # without a change, nothing is applied
            done = run(command, deployed, *options)
            assert (done.status, done.code, get_replicas()) == (1, "deploy.conflict", 7)
            assert "spec.replicas is 7 (by kubectl), the release has 2" in done.err
        done = run(command, deployed, *options, "--force")
        assert (done.status, get_replicas()) == (0, 2), done.err


def test_a_removal_without_permission_changes_nothing(
    run: Callable[..., CommandResult], cluster: FakeKubernetes, deployed: str
) -> None:
    before = deepcopy(cluster.objects)
    cluster.refused = ("delete", "inferenceservices")
    done = run("deployments", "remove", deployed, "--yes")
    assert (done.status, done.code) == (1, "cluster.access-denied")
    for value in ('"ann" may not delete inferenceservices', "namespace agents", "gumshoe-operate"):
        assert value in done.err
    assert cluster.objects == before


@pytest.mark.parametrize(
    ("fault", "code"),
    [("503", "cluster.api-unhealthy"), ("429", "cluster.api-unhealthy"), ("reset", "cluster.unreachable")],
)
def test_a_failing_cluster_ends_with_75(
    run: Callable[..., CommandResult], cluster: FakeKubernetes, deployed: str, fault: str, code: str
) -> None:
    cluster.faults.append(fault)
    done = run("deployments", "show", deployed)
    assert (done.status, done.code) == (75, code)


def test_a_temporary_error_while_waiting_is_retried(
    run: Callable[..., CommandResult], cluster: FakeKubernetes, controllers: Controllers, deployed: str
) -> None:
    def settle(made: dict[str, Any]) -> None:
        controllers.settle(made)
        if made["kind"] == "Secret" and made["metadata"]["labels"]["status"] == "deployed":
            cluster.request_faults["get inferenceservices"] = deque(["503"])

    cluster.settle = settle
    assert run("deploy", deployed, "--adapter", "r1", "--set", "agent.replicas=4").status == 0
    assert not cluster.request_faults["get inferenceservices"]


@pytest.mark.ci
def test_a_killed_operation_is_recovered_after_its_deadline(
    run: Callable[..., CommandResult], cluster: FakeKubernetes, deployed: str
) -> None:
    run("deploy", deployed, "--adapter", "r1", "--set", "agent.replicas=4")
    newest = cluster.objects["secrets", "agents", "sh.helm.release.v1.mail.v2"]
    whole = newest["data"]["release"]
    newest["data"]["release"], newest["metadata"]["labels"]["status"] = make_pending(whole, 0), "pending-upgrade"
    done = run("deploy", deployed, "--adapter", "r2")
    assert (done.status, done.code) == (75, "deploy.change-in-progress")
    assert "4 minutes" in done.err
    assert "`gumshoe rollback mail --revision N`" in done.err
    assert "Helm: pending-upgrade" in run("deployments").out
    newest["data"]["release"] = make_pending(whole, 300)
    assert run("deploy", deployed, "--adapter", "r2").status == 0
    assert get_traffic(cluster)[0] == "r2"


def make_pending(release: str, seconds: float) -> str:
    """Return a stored release as if its upgrade was killed this many seconds ago."""
    import base64
    import gzip

    stored = json.loads(gzip.decompress(base64.b64decode(base64.b64decode(release))))
    stored["info"] |= {
        "status": "pending-upgrade",
        "last_deployed": (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(),
    }
    return base64.b64encode(base64.b64encode(gzip.compress(json.dumps(stored).encode()))).decode()


def test_logs_are_those_of_the_requested_part(
    run: Callable[..., CommandResult], cluster: FakeKubernetes, deployed: str
) -> None:
    cluster.logs = {f"{AGENT}-0": "one\ntwo\n", f"{MODEL}-0": "loaded\n"}
    assert run("deployments", "logs", deployed).out.split() == [f"{AGENT}-0", "one", f"{AGENT}-0", "two"]
    assert run("deployments", "logs", deployed, "--model", "--follow").out.split() == [f"{MODEL}-0", "loaded"]


def test_logs_show_a_failing_init_container(
    run: Callable[..., CommandResult], cluster: FakeKubernetes, deployed: str
) -> None:
    pod = cluster.objects["pods", "agents", f"{AGENT}-0"]
    ended = {"terminated": {"exitCode": 1, "reason": "Error"}}
    pod["status"]["initContainerStatuses"] = [
        {"name": "fetch", "image": "x", "imageID": "x", "ready": False, "restartCount": 2, "state": ended}
    ]
    cluster.logs = {f"{AGENT}-0": "error: the store has no mail-indexes\n"}
    assert "no mail-indexes" in run("deployments", "logs", deployed).out
    assert [each for each in cluster.requests if each.endswith("log?fetch")]


def test_logs_are_not_those_of_a_native_sidecar(
    run: Callable[..., CommandResult], cluster: FakeKubernetes, deployed: str
) -> None:
    pod = cluster.objects["pods", "agents", f"{AGENT}-0"]
    pod["spec"]["initContainers"] = [{"name": "istio-proxy", "image": "x", "restartPolicy": "Always"}]
    running = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    pod["status"]["initContainerStatuses"] = [
        {"name": "istio-proxy", "image": "x", "imageID": "x", "ready": True, "restartCount": 0, "state": running}
    ]
    run("deployments", "logs", deployed)
    assert [each.rpartition("?")[2] for each in cluster.requests if "log?" in each] == ["agent"]


def test_removing_a_deployment_keeps_other_objects(
    run: Callable[..., CommandResult], cluster: FakeKubernetes, deployed: str
) -> None:
    cluster.put({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "gumshoe-keys", "namespace": "agents"}})
    assert run("deployments", "remove", deployed, "--yes").status == 0
    left = {(plural, name) for plural, _, name in cluster.objects}
    assert ("secrets", "gumshoe-keys") in left
    assert not [each for each in left if each[0] in ("inferenceservices", "configmaps", "services")]
    gone = run("deployments", "show", deployed)
    assert (gone.status, gone.code) == (2, "deploy.no-such-deployment")
    assert "mail" in gone.err


def list_recorded(store: Store) -> set[str]:
    """Return the adapters that the store records for the deployment `mail` of this test's cluster."""
    deployment = f"agents.mail.{Cluster.of('agents', None).namespace_uid}"
    return {entry.key.rpartition("/")[2] for entry in store.storage.entries(f"deployments/{deployment}/")}


@pytest.mark.ci
def test_a_deployment_is_known_to_the_store_by_any_address_of_its_cluster(
    run: Callable[..., CommandResult],
    cluster: FakeKubernetes,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    done = run("deploy", "mail", "--adapter", "r1", *ACCESS)
    assert (done.status, "warning" in done.err) == (0, False), done.err
    assert list_recorded(store) == {"r1"}
    other = write_kubeconfig(tmp_path, cluster.url.replace("127.0.0.1", "localhost"))
    monkeypatch.setenv("KUBECONFIG", str(other))
    assert run("deployments", "remove", "mail", "--yes").status == 0
    assert [entry.key for entry in store.storage.entries("deployments/")] == []


@pytest.mark.ci
def test_a_store_that_a_deployment_has_left_does_not_record_it(
    run: Callable[..., CommandResult], store: Store, deployed: str, tmp_path: Path
) -> None:
    """The adapter in the old store stays loaded as the previous one until the next change is complete."""
    other = Store(store.uri.replace("/project", "/other"))
    for version in ("n1", "n2", "n3"):
        publish(other, tmp_path / version, version, {"base_model_name_or_path": BASE, "r": 8})
    for version, old, new in (("n1", {"r1"}, {"n1"}), ("n2", {"r1"}, {"n1", "n2"}), ("n3", set(), {"n1", "n2", "n3"})):
        done = run("deploy", deployed, "--adapter", version, "--store", other.uri, "--set", f"agent.store={other.uri}")
        assert done.status == 0, done.err
        assert (list_recorded(store), list_recorded(other)) == (old, new)
    assert run("rollback", deployed, "--revision", "1").status == 0
    assert (list_recorded(store), list_recorded(other)) == ({"r1"}, set())
    assert run("deployments", "remove", deployed, "--yes").status == 0
    assert (list_recorded(store), list_recorded(other)) == (set(), set())


@pytest.mark.ci
def test_the_store_records_which_adapters_are_deployed(
    run: Callable[..., CommandResult], store: Store, deployed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("deploy", deployed, "--adapter", "r2", "--canary", "10").status == 0
    assert list_recorded(store) == {"r1", "r2"}
    assert run("promote", deployed).status == 0
    assert run("deploy", deployed, "--adapter", "r3").status == 0
    assert list_recorded(store) == {"r1", "r2", "r3"}, "the previous one may return if the change fails"
    assert run("rollback", deployed, "--revision", "1").status == 0
    assert list_recorded(store) == {"r1"}
    with monkeypatch.context() as patched:
        patched.setattr(deployment_record, "open_storage", fail_to_open)
        done = run("deploy", deployed, "--adapter", "r3")
    assert done.status == 0
    assert store.uri in done.err
    assert "store.access-denied" in done.err
    assert run("deployments", "remove", deployed, "--yes").status == 0
    assert list_recorded(store) == set()


def fail_to_open(*_: object) -> None:
    raise StorageError("store.access-denied", "no permission to write")


def test_releases_of_other_charts_are_ignored(
    run: Callable[..., CommandResult], cluster: FakeKubernetes, tmp_path: Path
) -> None:
    from helm_python import Chart, Config

    chart = Chart.create("other", tmp_path)
    with Config(kubeconfig_path=cluster.kubeconfig, namespace="agents") as helm:
        helm.install(chart, "mail", {"serviceAccount": {"create": False}}, namespace="agents")
    assert json.loads(run("deployments", "--json").out) == []
    done = run("deployments", "show", "mail")
    assert (done.status, done.code) == (2, "deploy.release-of-other-chart")
    assert "chart other" in done.err


@pytest.mark.usefixtures("store")
def test_a_dry_run_without_a_cluster_shows_a_first_deployment(
    run: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    done = run("deploy", "mail", "--adapter", "r1", *ACCESS, "--dry-run", "--namespace", "agents")
    assert done.status == 0, done.err
    assert yaml.safe_load(done.out)["adapter"]["name"] == "r1"
    assert "[cluster.no-kubeconfig]" in done.err


@pytest.mark.usefixtures("store")
def test_a_dry_run_with_an_invalid_name_or_a_cluster_that_does_not_answer_fails(
    run: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = write_kubeconfig(tmp_path, "http://127.0.0.1:9")
    for kubeconfig in (tmp_path / "none", place):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        invalid = run("deploy", "Mail", "--adapter", "r1", *ACCESS, "--dry-run")
        assert (invalid.status, invalid.code) == (2, "deploy.invalid-name")
    done = run("deploy", "mail", "--adapter", "r1", *ACCESS, "--dry-run")
    assert (done.status, done.code) == (75, "cluster.unreachable")


@pytest.mark.usefixtures("store")
def test_a_missing_kubeconfig_is_reported(
    run: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    done = run("deploy", "mail", "--adapter", "r1")
    assert (done.status, done.code) == (2, "cluster.no-kubeconfig")
    assert str(tmp_path / "none") in done.err


@pytest.mark.ci
@pytest.mark.usefixtures("store")
def test_external_servers_may_have_a_canary(run: Callable[..., CommandResult], cluster: FakeKubernetes) -> None:
    """The chart loads nothing there, so the canary gets questions at once."""
    more = ["--set", "serving.mode=external", "--set", "serving.external.urls=[http://vllm:8000]"]
    assert run("deploy", "mail", "--adapter", "r1", *ACCESS, *more).status == 0
    done = run("deploy", "mail", "--adapter", "r2", "--canary", "10")
    assert done.status == 0, done.err
    assert get_traffic(cluster) == ("r1", "r2", 10)
    assert len(Releases(Cluster.of(None, None)).list_history("mail")) == 2, "it was not loaded in a step before"
    assert run("promote", "mail").status == 0
    assert get_traffic(cluster) == ("r2", None, None)
    assert run("rollback", "mail").status == 0
    assert get_traffic(cluster) == ("r1", None, None)


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["llmisvc", "external"])
@pytest.mark.usefixtures("store")
def test_other_serving_modes_are_deployed(
    run: Callable[..., CommandResult], cluster: FakeKubernetes, mode: str
) -> None:
    mode_set = ["--set", f"serving.mode={mode}"]
    if mode == "external":
        mode_set += ["--set", "serving.external.urls=[http://vllm:8000]"]
    assert run("deploy", "mail", "--adapter", "r1", *ACCESS, *mode_set).status == 0
    assert run("deploy", "mail", "--adapter", "r2").status == 0
    assert get_traffic(cluster) == ("r2", None, None)
    if mode == "llmisvc":
        assert list_loaded(cluster) == ["r1", "r2"]


@pytest.mark.ci
def test_a_pipeline_deploys_its_adapter(cluster: FakeKubernetes, store: Store) -> None:
    values = {"agent": {"access": {"existingSecret": "gumshoe-keys"}, "image": {"repository": IMAGE}}}
    target = DeployTarget.of({"name": "mail", "percent": 20, "values": values})
    assert deploy_published("adapters/r1", store.uri, "none", target) == ""
    assert cluster.requests == []
    first = deploy_published("adapters/r1", store.uri, "canary", target)
    assert first == "mail: r1 takes 100 %", "the first adapter cannot be a canary"
    assert deploy_published("adapters/r2", store.uri, "canary", target) == "mail: r1 takes 80 %, r2 takes 20 %"
    assert get_traffic(cluster) == ("r1", "r2", 20)
    again = deploy_published("adapters/r2", store.uri, "canary", target)
    assert again == "mail: r1 takes 80 %, r2 takes 20 %", "the step can be repeated"
    for mode in ("full", "full", "canary"):
        deploy_published("adapters/r2", store.uri, mode, target)
        assert get_traffic(cluster) == ("r2", None, None)
        assert list_loaded(cluster) == ["r1", "r2"]


@pytest.mark.ci
@pytest.mark.parametrize("part", ["agent", "model"])
def test_a_deployment_of_a_pipeline_that_was_rolled_back_is_not_repeated(
    cluster: FakeKubernetes,
    controllers: Controllers,
    deployed: str,
    store: Store,
    part: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pipeline_deployment, "PIPELINE_SECONDS", 0.5)
    controllers.broken = part
    with raises("deploy.rolled-back", "revision 1") as caught:
        deploy_published("adapters/r2", store.uri, "full", DeployTarget.of({"name": deployed}))
    assert caught.value.exit_status == 1
    assert get_traffic(cluster) == ("r1", None, None)


def get_agent(cluster: FakeKubernetes) -> Any:
    """Return the agent in the settings of the agent server."""
    settings = cluster.objects["configmaps", "agents", AGENT]["data"]["settings.yaml"]
    return yaml.safe_load(settings)["model"].get("agent")


@pytest.mark.ci
def test_a_pipeline_deploys_the_agent_that_its_adapter_was_trained_with(cluster: FakeKubernetes, store: Store) -> None:
    values = {"agent": {"access": {"existingSecret": "gumshoe-keys"}, "image": {"repository": IMAGE}}}
    target = DeployTarget.of({"name": "mail", "values": values})
    deploy_published("adapters/r1", store.uri, "full", target, "mine.agent:graph")
    assert get_agent(cluster) == "mine.agent:graph"
    with raises("deploy.canary-of-other-agent", "mine.agent:graph", "other.agent:graph"):
        deploy_published("adapters/r2", store.uri, "canary", target, "other.agent:graph")
    deploy_published("adapters/r2", store.uri, "canary", target, "mine.agent:graph")
    assert get_traffic(cluster) == ("r1", "r2", 10)
    deploy_published("adapters/r2", store.uri, "full", target)
    assert get_agent(cluster) is None, "trained with Gumshoe's own loop"
    own = {**values, "agent": {**values["agent"], "settings": {"model": {"agent": {"command": ["node", "a.js"]}}}}}
    deploy_published("adapters/r1", store.uri, "full", DeployTarget.of({"name": "mail", "values": own}), "x.y:z")
    assert get_agent(cluster) == {"command": ["node", "a.js"]}, "the values of the pipeline win"
    with raises("deploy.other-agent", "a.js", "mine.agent:graph"):
        deploy_published("adapters/r2", store.uri, "full", target, "mine.agent:graph")


@pytest.mark.nightly
def test_a_pipeline_overwrites_changes_of_other_programs_on_request(
    cluster: FakeKubernetes, store: Store, deployed: str
) -> None:
    run_kubectl("scale", f"deployment/{AGENT}", "--replicas=7")
    with raises("deploy.conflict", "spec.replicas is 7 (by kubectl)"):
        deploy_published("adapters/r2", store.uri, "canary", DeployTarget.of({"name": deployed}))
    deploy_published("adapters/r2", store.uri, "canary", DeployTarget.of({"name": deployed, "force": True}))
    assert cluster.objects["deployments", "agents", AGENT]["spec"]["replicas"] == 2


@pytest.mark.parametrize(
    ("parameters", "code", "values"),
    [
        ({"release": "mail"}, "deploy.invalid-target", ["release: ", "namespace (str, '' by default), percent"]),
        ({"percent": 101}, "deploy.invalid-target", ["percent: ", "got 101"]),
        ({"percent": True}, "deploy.invalid-target", ["percent: ", "got True"]),
        ({"percent": "20"}, "deploy.invalid-target", ["percent: ", "got '20'"]),
        ({"values": "none"}, "deploy.invalid-target", ["values: must be a mapping", "'none'"]),
        ({"name": 1, "namespace": None}, "deploy.invalid-target", ["name: ", "got 1", "namespace: ", "got None"]),
        ({"name": "Mail"}, "deploy.invalid-name", ["'Mail'"]),
        ("mail", "deploy.invalid-target", ["must be a mapping", "got 'mail'"]),
    ],
)
def test_a_pipeline_s_deploy_target_is_validated(parameters: Any, code: str, values: list[object]) -> None:
    with raises(code, *values):
        DeployTarget.of(parameters)


@pytest.mark.ci
@pytest.mark.usefixtures("store")
def test_credentials_in_values_and_errors_of_the_cluster_are_not_printed(
    run: Callable[..., CommandResult], cluster: FakeKubernetes, controllers: Controllers
) -> None:
    login = "http://ann:planted-password@"
    values = ["--set", f"agent.storage.endpoint={login}minio:9000", "--set", f"proxy.https={login}proxy:3128"]
    values += ["--set", f"monitoring.otlpEndpoint={login}collector:4318"]
    printed = [run("deploy", "mail", "--adapter", "r1", *ACCESS, *values, "--json")]
    assert printed[0].status == 0, printed[0].err
    assert "planted-password" in json.dumps(list(cluster.objects.values())), "pods need them"
    controllers.broken = "agent"
    printed += [run("deploy", "mail", "--adapter", "r2", *SHORT_TIMEOUT)]
    assert printed[-1].status != 0
    printed += [run("deployments", *words) for words in (["list"], ["show", "mail"], ["show", "mail", "--json"])]
    assert "planted-password" not in "".join(each.out + each.err for each in printed)


@pytest.mark.usefixtures("cluster")
def test_a_base_model_is_served_at_the_revision_that_was_trained(s3_bucket: str, tmp_path: Path) -> None:
    from gumshoe.cluster.published_adapter import find_adapter

    store = Store(f"s3://{s3_bucket}/project")
    for name, base in (("pinned", f"{BASE}:4e2c1"), ("newest", BASE), ("other", "acme/model:1")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": BASE, "r": 8}))
        store.publish(tmp_path / name, "adapters", name, settings={"base_model": base})
    assert find_adapter(store.uri, "pinned").base_model == f"{BASE}:4e2c1"
    assert find_adapter(store.uri, "pinned").is_on_hub
    assert [find_adapter(store.uri, name).base_model for name in ("newest", "other")] == [BASE, BASE]


@pytest.mark.parametrize(
    ("name", "recorded", "expected"),
    [
        ("plain", {"name": BASE, "revision": "c0ffee"}, f"{BASE}:c0ffee"),
        ("branch", {"name": f"{BASE}:main", "revision": "c0ffee"}, f"{BASE}:c0ffee"),
        ("unknown", {"name": BASE, "revision": None}, BASE),
        ("elsewhere", {"name": "acme/model", "revision": "c0ffee"}, BASE),
    ],
)
@pytest.mark.usefixtures("cluster")
def test_a_base_model_is_served_at_the_commit_that_the_adapter_recorded(
    s3_bucket: str, tmp_path: Path, name: str, recorded: dict[str, Any], expected: str
) -> None:
    from gumshoe.cluster.published_adapter import find_adapter

    store = Store(f"s3://{s3_bucket}/commits")
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": BASE, "r": 8}))
    (tmp_path / "base_model.json").write_text(json.dumps(recorded))
    store.publish(tmp_path, "adapters", name)
    assert find_adapter(store.uri, name).base_model == expected


@pytest.mark.nightly
@pytest.mark.usefixtures("cluster")
def test_a_deployment_has_the_context_of_the_adapter_s_training(s3_bucket: str, tmp_path: Path) -> None:
    from gumshoe.cluster.published_adapter import find_adapter, merge_adapter_values

    store = Store(f"s3://{s3_bucket}/contexts")
    for name, context in (("long", 16384), ("short", 4096), ("unknown", None)):
        (tmp_path / name).mkdir()
        recorded = {"settings": {"model": {"max_context": context}}} if context else {}
        (tmp_path / name / "metadata.json").write_text(json.dumps(recorded))
        publish(store, tmp_path / name, name, {"base_model_name_or_path": BASE, "r": 8})

    def plan(name: str, before: dict[str, Any], given: dict[str, Any]) -> Any:
        known = {"adapter": {"maxRank": 32}, "model": {"maxContext": 8192}}
        return merge_adapter_values(find_adapter(store.uri, name), before, given, known)["model"].get("maxContext")

    assert [plan(name, {}, {}) for name in ("long", "short", "unknown")] == [16384, 4096, None]
    before: dict[str, Any] = {"adapter": {"name": "r1"}}
    assert [plan(name, before, {}) for name in ("long", "short", "unknown")] == [16384, None, None]
    assert plan("long", before, {"model": {"maxContext": 1024}}) == 1024


@pytest.mark.usefixtures("controllers")
def test_adapters_of_one_commit_share_a_deployment(
    run: Callable[..., CommandResult], cluster: FakeKubernetes, s3_bucket: str, tmp_path: Path
) -> None:
    store = Store(f"s3://{s3_bucket}/shared")
    commits = {"a1": "c0ffee", "a2": "c0ffee", "a3": "0ddba11"}
    for name, commit in commits.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "base_model.json").write_text(json.dumps({"name": BASE, "revision": commit}))
        (tmp_path / name / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": BASE, "r": 8}))
        store.publish(tmp_path / name, "adapters", name)
    place = ["--store", store.uri]
    first = run("deploy", "mail", "--adapter", "a1", *ACCESS, *place)
    assert first.status == 0, first.err
    spec = cluster.of("InferenceService")[0]["spec"]["predictor"]
    assert {"uri": f"hf://{BASE}:c0ffee", "mountPath": "/mnt/models"} in spec["storageUris"]
    again = run("deploy", "mail", "--adapter", "a2", "--canary", "10", *place)
    assert again.status == 0, again.err
    other = run("deploy", "mail", "--adapter", "a3", *place)
    assert (other.status, other.code) == (2, "deploy.other-base-model")
