"""Test both ways to Helm, the program and the library, with the same tests; then what programs can do wrong."""

import json
import os
import time
from collections import deque
from collections.abc import Callable
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gumshoe.cluster import helm as helm_module
from gumshoe.cluster import helm_program
from gumshoe.cluster.helm import find_helm
from gumshoe.cluster.helm_library import HelmLibrary
from gumshoe.cluster.helm_program import HelmProgram
from gumshoe.cluster.kubernetes_api import Cluster
from gumshoe.cluster.release_check import ReleaseCheck
from gumshoe.cluster.releases import Releases, check_keys, find_chart
from tests.cluster.fake_kubernetes import Controllers, FakeKubernetes
from tests.cluster.helm_programs import put_first_on_path, real_helm, run_kubectl, write_program
from tests.conftest import CommandResult
from tests.errors import raises

__all__ = ["real_helm"]
AGENT, IMAGE = "mail-gumshoe-agent-agent", "registry.example.com/agent"
ADAPTER = {"name": "r1", "uri": "s3://bucket/adapters/r1/"}
VALUES: dict[str, Any] = {
    "adapter": ADAPTER,
    "agent": {
        "access": {"existingSecret": "gumshoe-keys"},
        "image": {"repository": IMAGE},
        "store": "s3://bucket/project",
    },
}
CANARY = VALUES | {"canary": {**ADAPTER, "name": "r2"}}


@pytest.fixture(params=["program", "library"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make Gumshoe use the real program, then the library."""
    if request.param == "program":
        put_first_on_path(monkeypatch, request.getfixturevalue("real_helm"))
    else:
        monkeypatch.setattr(helm_program, "find_program", lambda: None)
    return str(request.param)


@pytest.fixture
def releases(way: str, cluster: FakeKubernetes) -> Releases:
    cluster.settle = Controllers(cluster).settle
    found = Releases(Cluster.of(None, None))
    assert isinstance(found._helm, HelmProgram if way == "program" else HelmLibrary)
    return found


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], HelmProgram]:
    """Return a function that puts a program with a script on the path and opens it."""

    def open_program(script: str) -> HelmProgram:
        put_first_on_path(monkeypatch, write_program(tmp_path / "bin", script))
        found = find_helm(find_chart(), Cluster("agents", "fake"))
        assert isinstance(found, HelmProgram)
        return found

    return open_program


@pytest.mark.ci
def test_a_release_is_installed_changed_and_removed(releases: Releases, cluster: FakeKubernetes) -> None:
    assert (releases.find("mail"), releases.list_newest()) == (None, [])
    releases.apply("mail", VALUES, "first")
    stored = releases.get("mail")
    assert (stored.values, stored.find_name("Service", "-agent")) == (VALUES, "mail-gumshoe-agent-agent")
    release = stored.release
    assert (release.name, release.namespace, release.revision, release.status) == ("mail", "agents", 1, "deployed")
    assert release.chart_version == releases.chart_version
    assert abs(release.updated - datetime.now(UTC)) < timedelta(minutes=1)

    changed = {**VALUES, "agent": {**VALUES["agent"], "replicas": 3}}
    releases.apply("mail", changed, "second")
    releases.apply("mail", VALUES, "values that are not given return to the chart's defaults")
    assert [each.revision for each in releases.list_history("mail")] == [3, 2, 1]
    assert [releases.get_values("mail", each) for each in (1, 2, 3)] == [VALUES, changed, VALUES]
    releases.rollback("mail", 2)
    assert (releases.get("mail").release.revision, releases.get("mail").values) == (4, changed)
    assert [(each.name, each.revision, each.status) for each in releases.list_newest()] == [("mail", 4, "deployed")]
    assert cluster.of("Deployment")[0]["spec"]["replicas"] in (1, 3)

    releases.remove("mail")
    assert releases.find("mail") is None
    assert not cluster.of("Secret")


@pytest.mark.parametrize(
    ("values", "found"),
    [({"adapter": {"nme": "r1"}}, "nme"), ({"agent": {"replicas": "many"}}, "replicas")],
    ids=["unknown key", "wrong type"],
)
@pytest.mark.usefixtures("way")
def test_values_are_checked_without_a_cluster(values: dict[str, Any], found: str) -> None:
    with raises("deploy.values-rejected", found):
        Releases(Cluster("agents")).check_values("mail", values)
    with raises("deploy.values-rejected", found):
        check_keys(values)


@pytest.mark.usefixtures("way")
def test_keys_are_checked_without_the_required_values(tmp_path: Path) -> None:
    check_keys({})
    releases = Releases(Cluster("agents"))
    with raises("deploy.values-rejected", "adapter.uri: required"):
        releases.check_values("mail", {})
    releases.check_values("mail", VALUES)
    assert releases.defaults["serving"]["mode"] == "standard"
    with raises("deploy.chart-unreadable", tmp_path.name):
        _ = Releases(Cluster("agents"), tmp_path).chart_version


def test_a_missing_resource_kind_is_reported(releases: Releases, cluster: FakeKubernetes) -> None:
    cluster.unserved = {"serving.kserve.io/v1beta1"}
    with raises("deploy.missing-resource-kind", "InferenceService"):
        releases.apply("mail", VALUES, "-")


@pytest.mark.ci
def test_fields_that_another_program_changed_are_kept_unless_forced(
    releases: Releases, cluster: FakeKubernetes
) -> None:
    releases.apply("mail", VALUES, "-")
    releases.apply("mail", CANARY, "-")
    run_kubectl("set", "image", f"deployment/{AGENT}", "agent=mine:2")
    run_kubectl("scale", f"deployment/{AGENT}", "--replicas=7")
    before = cluster.objects["deployments", "agents", AGENT]["spec"]
    told = [
        "spec.replicas is 7 (by kubectl)",
        "has 2",
        'containers[name="agent"].image is "mine:2"',
        "(by kubectl-set)",
    ]
    with raises("deploy.conflict", f"Deployment {AGENT}", *told, IMAGE, "--force"):
        releases.apply("mail", VALUES, "-")
    with raises("deploy.conflict", f"Deployment {AGENT}", *told):
        releases.rollback("mail", 1)
    assert cluster.objects["deployments", "agents", AGENT]["spec"] == before
    assert releases.get("mail").release.revision == 2, "Helm was not asked"

    releases.rollback("mail", 1, is_forced=True)
    spec = cluster.objects["deployments", "agents", AGENT]["spec"]
    assert (spec["replicas"], spec["template"]["spec"]["containers"][0]["image"].partition(":")[0]) == (2, IMAGE)
    assert (releases.get("mail").release.revision, releases.get("mail").release.status) == (3, "deployed")
    releases.apply("mail", CANARY, "Helm manages the fields again")


@pytest.mark.ci
def test_the_program_and_the_library_may_take_turns(
    cluster: FakeKubernetes, real_helm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have different names, so each would take the other for another program."""
    cluster.settle = Controllers(cluster).settle
    found_program = helm_program.find_program
    put_first_on_path(monkeypatch, real_helm)
    resources = {**VALUES, "agent": {**VALUES["agent"], "podAnnotations": {"team": "a"}}}
    for number, values in enumerate((resources, CANARY, resources, VALUES)):
        monkeypatch.setattr(helm_program, "find_program", found_program if number % 2 else lambda: None)
        Releases(Cluster.of(None, None)).apply("mail", values, "-")
    meta = cluster.objects["deployments", "agents", AGENT]["spec"]["template"]["metadata"]
    assert "team" not in meta["annotations"], "a value that is no longer given does not stay"
    managers = {
        each["manager"] for each in cluster.objects["deployments", "agents", AGENT]["metadata"]["managedFields"]
    }
    assert managers == {"helm"}


@pytest.mark.ci
@pytest.mark.parametrize("way", ["library"], indirect=True)
def test_nothing_is_changed_without_all_permissions(releases: Releases, cluster: FakeKubernetes) -> None:
    for plural in ("secrets", "inferenceservices"):
        cluster.refused = ("create", plural)
        with raises("cluster.access-denied", f'"ann" may not create {plural}', "gumshoe-deploy"):
            releases.apply("mail", VALUES, "-")
        assert not cluster.objects
    cluster.refused = None
    releases.apply("mail", VALUES, "-")
    before = deepcopy(cluster.objects)
    monitored = {**CANARY, "agent": {**VALUES["agent"], "autoscaling": {"enabled": True, "max": 3}}}
    for verb, plural in (
        ("get", "configmaps"),
        ("patch", "inferenceservices"),
        ("update", "secrets"),
        ("create", "horizontalpodautoscalers"),
    ):
        cluster.refused = (verb, plural)
        with raises("cluster.access-denied", f'"ann" may not {verb} {plural}', "gumshoe-deploy"):
            releases.apply("mail", monitored, "-")
    cluster.refused = None
    releases.apply("mail", monitored, "-")
    cluster.refused = ("delete", "horizontalpodautoscalers")
    with raises("cluster.access-denied", '"ann" may not delete horizontalpodautoscalers'):
        releases.rollback("mail", 1)
    for verb, plural in (("delete", "poddisruptionbudgets"), ("delete", "secrets"), ("update", "secrets")):
        cluster.refused = (verb, plural)
        with raises("cluster.access-denied", f'"ann" may not {verb} {plural}', "gumshoe-operate"):
            releases.remove("mail")
    cluster.refused, cluster.denied_deletion = None, "services"
    with raises("cluster.access-denied", "keep.example.com", "mail-gumshoe-agent-agent is protected"):
        releases.remove("mail")
    assert before.keys() <= cluster.objects.keys()
    assert releases.get("mail").release.status == "deployed"
    cluster.denied_deletion = None
    releases.remove("mail")
    assert releases.find("mail") is None


@pytest.mark.ci
@pytest.mark.parametrize("way", ["library"], indirect=True)
def test_nothing_is_changed_if_the_cluster_rejects_an_object(releases: Releases, cluster: FakeKubernetes) -> None:
    releases.apply("mail", VALUES, "-")
    before = deepcopy(cluster.objects)
    scaled = {**VALUES, "agent": {**VALUES["agent"], "autoscaling": {"enabled": True}}}
    for status in ("400", "403", "422"):
        for request in ("patch horizontalpodautoscalers", "patch deployments"):
            cluster.request_faults[request] = deque([status])
            with raises("cluster.request-rejected", f"{status}: because", "agents"):
                releases.apply("mail", scaled, "-")
    for request, status in (("update secrets", "400"), ("delete services", "422")):
        cluster.request_faults[request] = deque([status])
        with raises("cluster.request-rejected", f"{status}: because"):
            releases.remove("mail")
    assert cluster.objects == before
    cluster.request_faults["patch horizontalpodautoscalers"] = deque(["404"])
    releases.apply("mail", scaled, "-")


def test_a_dry_run_that_keeps_the_fields_of_another_manager_rejects_nothing(cluster: FakeKubernetes) -> None:
    """Helm 3 and a Helm of another name remove these fields, so what they send is valid."""
    wanted = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}}
    for live_manager, manager, rejected in (
        (None, None, 1),
        ("helm", "helm", 1),
        ("kubectl", None, 0),
        ("python3", "helm", 0),
    ):
        cluster.objects.clear()
        if live_manager:
            entry = {"manager": live_manager, "operation": "Apply", "fieldsV1": {}}
            cluster.put({**wanted, "metadata": {"name": "settings", "namespace": "agents", "managedFields": [entry]}})
        cluster.request_faults["patch configmaps"] = deque(["422"])
        check = ReleaseCheck(Cluster.of(None, None), "mail", manager)
        check.try_change([wanted], [])
        assert len(check.rejections) == rejected, (live_manager, manager)


@pytest.mark.usefixtures("way")
def test_a_cluster_that_does_not_answer_is_reported(cluster: FakeKubernetes) -> None:
    releases = Releases(Cluster.of(None, None))
    cluster.token = "other"
    with raises("cluster.unauthenticated"):
        releases.list_newest()
    with raises("cluster.unknown-context", "nowhere"):
        Cluster.of(None, "nowhere")
    cluster.token = None
    with raises("deploy.no-such-deployment", "mail"):
        releases.rollback("mail", 1)


@pytest.mark.parametrize("version", ["v3.17.2", "v4.3.1"])
def test_values_and_context_are_passed_to_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    script = f"""cat > {tmp_path}/stdin; printf '%s\\n' "$@" > {tmp_path}/arguments; env > {tmp_path}/environment
        case "$1" in list) echo '[]';; esac"""
    put_first_on_path(monkeypatch, write_program(tmp_path / "bin", script, version))
    for name in ("HELM_KUBECONTEXT", "HELM_NAMESPACE", "HELM_DEBUG", "HELM_DRIVER"):
        monkeypatch.setenv(name, "other")
    helm = find_helm(find_chart(), Cluster("agents", "fake"))
    assert helm is not None
    helm.upgrade("mail", {"agent": {"password": "s3cret"}}, "a change")
    arguments = (tmp_path / "arguments").read_text().splitlines()
    assert json.loads((tmp_path / "stdin").read_text()) == {"agent": {"password": "s3cret"}}
    assert "s3cret" not in str(arguments)
    assert arguments[:3] == ["upgrade", "mail", str(find_chart())]
    for option, value in {
        "--namespace": "agents",
        "--kube-context": "fake",
        "--values": "-",
        "--timeout": "180s",
        "--history-max": "20",
        "--description": "a change",
    }.items():
        assert arguments[arguments.index(option) + 1] == value
    environment = (tmp_path / "environment").read_text()
    assert [line for line in environment.splitlines() if line.startswith("HELM_")] == ["HELM_DRIVER=other"]
    assert helm.list_releases("gumshoe-agent") == []
    assert ("--all" in (tmp_path / "arguments").read_text().splitlines()) == version.startswith("v3")


OUTAGES = (
    "kubernetes cluster unreachable: EOF",
    "get: the server is currently unable to handle the request",
    "the server was unable to return a response in the time allotted, but may still be processing the request",
    'an error on the server ("") has prevented the request from succeeding (get secrets)',
    "query: failed to query with labels: etcdserver: leader changed",
    "http2: client connection lost",
    "net/http: TLS handshake timeout",
    "dial tcp 10.0.0.1:443: connect: no route to host",
)
"""Messages of Helm about a cluster that does not work now."""


@pytest.mark.parametrize(
    ("script", "code", "values"),
    [
        ("exit 3", "deploy.helm-failed", ["helm ended with status 3"]),
        ("kill -9 $$", "deploy.helm-failed", ["helm ended with status -9"]),
        ("echo 'Happy Helming!'", "deploy.helm-failed", ["helm list", "Happy Helming!"]),
        ("echo 'level=WARN msg=x' >&2; echo 'Error: it broke' >&2; exit 1", "deploy.helm-failed", ["failed: it broke"]),
        ("echo '[{}]'", "deploy.helm-failed", ["helm list", "chart"]),
        ("echo null", "deploy.helm-failed", ["helm list"]),
        ("echo boom; exit 1", "deploy.helm-failed", ["boom"]),
        ("printf 'Error: \\377' >&2; exit 1", "deploy.helm-failed", ["\ufffd"]),
        (
            "echo 'Error: UPGRADE FAILED: another operation (install/upgrade/rollback) is in progress' >&2; exit 1",
            "deploy.change-in-progress",
            [],
        ),
        *((f"echo 'Error: {each}' >&2; exit 1", "cluster.api-unhealthy", [each]) for each in OUTAGES),
        ('rm "$0"; exec "$0"', "deploy.helm-failed", []),
    ],
)
@pytest.mark.usefixtures("cluster")
def test_failures_of_the_program_are_reported(
    start: Callable[[str], HelmProgram], script: str, code: str, values: list[str]
) -> None:
    start(script)
    with raises(code, *values):
        Releases(Cluster.of(None, None)).list_newest()


def test_a_program_that_disappears_is_reported(start: Callable[[str], HelmProgram], cluster: FakeKubernetes) -> None:
    releases_program = start("exit 0").program.path
    releases = Releases(Cluster.of(None, None))
    Path(releases_program).unlink()
    with raises("deploy.helm-failed", releases_program):
        releases.list_newest()
    assert cluster.requests == ["GET /version/"]


@pytest.mark.parametrize("trap", ["", "trap '' TERM"], ids=["ends", "ignores SIGTERM"])
@pytest.mark.usefixtures("cluster")
def test_a_program_that_hangs_is_stopped(
    start: Callable[[str], HelmProgram], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trap: str
) -> None:
    start(f"{trap}\necho $$ > {tmp_path}/pid; while :; do sleep 0.1; done")
    for name in ("TIMEOUT", "_GRACE"):
        monkeypatch.setattr(helm_program, name, 0.3)
    with raises("deploy.helm-timeout"):
        Releases(Cluster.of(None, None)).list_newest()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_an_interrupted_command_lets_the_program_end(start: Callable[[str], HelmProgram], tmp_path: Path) -> None:
    stop = f"trap 'echo stopped > {tmp_path}/end; exit 1' TERM"
    helm = start(f"{stop}; cat > /dev/null; kill -INT $PPID; while :; do sleep 0.1; done")  # once its input has ended
    before = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        helm.uninstall("mail")
    assert (tmp_path / "end").read_text() == "stopped\n"
    assert time.monotonic() - before < helm_program._GRACE


def test_warnings_of_the_program_are_printed_once(
    start: Callable[[str], HelmProgram], capsys: pytest.CaptureFixture[str]
) -> None:
    helm = start("echo 'WARNING: [bold]Kubernetes configuration file is group-readable' >&2; echo '[]'")
    assert helm.list_releases("gumshoe-agent") == helm.list_history("mail") == []
    shown = capsys.readouterr()
    assert shown.err.count("WARNING: [bold]Kubernetes configuration file is group-readable") == 1
    assert shown.out == ""


@pytest.mark.parametrize("version", ["v2.17.0", "'helm 1.0, a synthesizer'", "''"])
def test_another_program_of_that_name_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    put_first_on_path(monkeypatch, write_program(tmp_path / "bin", "exit 1", version))
    assert isinstance(find_helm(find_chart(), Cluster("agents")), HelmLibrary)


def test_without_helm_both_ways_to_install_it_are_named(
    monkeypatch: pytest.MonkeyPatch, run: Callable[..., CommandResult], cluster: FakeKubernetes
) -> None:
    monkeypatch.setattr(helm_program, "find_program", lambda: None)
    monkeypatch.setattr(helm_module, "find_spec", lambda _: None)
    done = run("deployments")
    assert (done.status, done.code) == (2, "cluster.missing-dependency")
    assert "https://helm.sh" in done.err
    assert "[helm]" in done.err
    check_keys({"unknown": 1})
    assert cluster.requests == []


@pytest.mark.ci
def test_a_command_deploys_with_the_program(
    monkeypatch: pytest.MonkeyPatch,
    real_helm: Path,
    run: Callable[..., CommandResult],
    cluster: FakeKubernetes,
) -> None:
    put_first_on_path(monkeypatch, real_helm)
    cluster.settle = Controllers(cluster).settle
    releases = Releases(Cluster.of(None, None))
    releases.apply("mail", VALUES, "first")
    assert run("deploy", "mail", "--set", "agent.replicas=4").status == 0
    (shown,) = json.loads(run("deployments", "--json").out)
    assert (shown["adapter"], shown["is_ready"], shown["revision"]) == ("r1", True, 2)
