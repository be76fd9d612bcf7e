"""The Roles allow what the code asks of a cluster, as it was recorded while it ran, and nothing else."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gumshoe.artifacts.store import Store
from gumshoe.cluster import deploy, releases
from gumshoe.cluster.deploy import DeployTarget, put_into_service
from gumshoe.cluster.kubernetes_api import Cluster
from tests.cluster import fake_kubernetes as kubernetes
from tests.cluster.fake_kubernetes import Controllers, FakeKubernetes
from tests.cluster.test_deploy import AGENT, BASE, publish
from tests.conftest import Ran
from tests.errors import raises
from tests.manifests.access import Access, allowed_by, recorded
from tests.manifests.kustomize import OVERLAYS, of_kind, overlay

ACCESS = {"agent": {"access": {"existingSecret": "gumshoe-keys"}}}
SECRETS = {"serving": {"storage": {"existingSecret": "gumshoe-s3"}}, "agent": {"storage": {"existingSecret": "s3"}}}
EVERYTHING = {  # of the chart, that makes a kind of object
    **deploy.merged(ACCESS, SECRETS),
    "agent": {**deploy.merged(ACCESS, SECRETS)["agent"], "autoscaling": {"enabled": True, "max": 3}},
    "monitoring": {"enabled": True, "rules": True, "dashboard": True},
    "ingress": {"enabled": True, "host": "gumshoe.example"},
    "httpRoute": {"enabled": True, "parentRefs": [{"name": "gateway"}]},
}
NOTHING = {
    "serving": {"mode": "external", "external": {"urls": ["http://vllm:8000"]}},
    "agent": {"autoscaling": {"enabled": False}},
    "monitoring": {"enabled": False, "rules": False, "dashboard": False},
    "ingress": {"enabled": False},
    "httpRoute": {"enabled": False},
}


@pytest.fixture
def cluster(cluster: FakeKubernetes, monkeypatch: pytest.MonkeyPatch) -> FakeKubernetes:
    """One that has all that the chart can make."""
    more = {
        "gateway.networking.k8s.io/v1": {"httproutes": "HTTPRoute"},
        "monitoring.coreos.com/v1": {"prometheusrules": "PrometheusRule", "servicemonitors": "ServiceMonitor"},
    }
    for version, kinds in more.items():
        monkeypatch.setitem(kubernetes._KINDS, version, {**kubernetes._KINDS.get(version, {}), **kinds})
    return cluster


@pytest.fixture
def controllers(cluster: FakeKubernetes) -> Controllers:
    played = Controllers(cluster)
    cluster.settle = played.settle
    return played


@pytest.fixture
def store(s3_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    made = Store(f"s3://{s3_bucket}/project")
    for name in ("r1", "r2", "r3"):
        publish(made, tmp_path / "adapters" / name, name, {"base_model_name_or_path": BASE, "r": 8})
    monkeypatch.setenv("GUMSHOE_STORE", made.uri)
    return made


def rules_of(role: str) -> set[Access]:
    """What a role allows, which is the same in all overlays."""
    (rules,) = {str(of_kind(overlay(each), "Role")[role]["rules"]): each for each in OVERLAYS}.values()
    allowed = allowed_by(of_kind(overlay(rules), "Role")[role]["rules"])
    assert not [each for each, times in Counter(allowed).items() if times > 1], "it is said twice"
    return set(allowed)


def test_what_puts_an_adapter_into_service_may_do_what_it_does(
    cluster: FakeKubernetes, controllers: Controllers, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases, "_HISTORY", 2)  # after which Helm forgets the oldest revision
    with recorded(cluster) as asked:

        def put(version: str, how: str, values: dict[str, Any]) -> None:
            put_into_service(f"adapters/{version}", store.uri, how, DeployTarget.of({"name": "mail", "values": values}))

        put("r1", "canary", EVERYTHING)
        put("r2", "canary", {})
        put("r3", "full", {"serving": {"mode": "llmisvc"}})
        put("r3", "full", NOTHING)
        put("r1", "full", {"serving": {"mode": "standard"}})
        controllers.broken = "agent"
        monkeypatch.setattr(deploy, "_PIPELINE_SECONDS", 0.01)
        with raises("deploy.rolled-back", "mail"):
            put("r2", "full", {})
    assert asked == rules_of("gumshoe-deploy")


def test_people_may_do_what_their_commands_do(
    run: Callable[..., Ran], cluster: FakeKubernetes, controllers: Controllers, store: Store
) -> None:
    from gumshoe_pipelines.watch import pods_of

    assert store
    with recorded(cluster) as asked:

        def ran(*words: str, status: int = 0) -> None:
            done = run(*words)
            assert done.status == status, done.err

        access = ["--set", "agent.access.existingSecret=gumshoe-keys"]
        ran("deploy", "mail", "--adapter", "r1", *access)
        ran("deploy", "mail", "--adapter", "r2", "--canary", "10")
        ran("promote", "mail")
        ran("rollback", "mail")
        ran("rollback", "mail", "--revision", "1")
        controllers.broken = "agent"
        ran("deploy", "mail", "--adapter", "r3", "--timeout", "0.01", status=75)
        ran("deployments")
        ran("deployments", "show", "mail")
        ran("deployments", "logs", "mail")
        ran("deployments", "logs", "mail", "--follow")
        pod = cluster.objects["pods", "agents", f"{AGENT}-0"]
        pod["metadata"]["labels"]["pipeline/runid"] = "run-1"
        pods_of(Cluster.of(None, None), "run-1")
        pod["status"] = {"phase": "Running"}
        pods_of(Cluster.of(None, None), "run-1")
        ran("deployments", "remove", "mail", "--yes")
    assert asked <= rules_of("gumshoe-operate")
    assert rules_of("gumshoe-operate") == asked | rules_of("gumshoe-deploy")


def test_nobody_may_become_another_or_change_what_is_not_in_the_namespace() -> None:
    escalating = {"roles", "rolebindings", "pods/exec", "pods/attach", "serviceaccounts/token"}
    reviews = Access("authorization.k8s.io", "subjectaccessreviews", "create")  # a question, of which nothing is kept
    for name in OVERLAYS:
        objects = overlay(name)
        for role in (each for each in objects if each["kind"] in ("Role", "ClusterRole")):
            allowed = allowed_by(role["rules"])
            assert not {"*"} & {part for each in allowed for part in (each.group, each.resource, each.verb)}
            assert not {each.resource for each in allowed} & escalating
            assert not {each.verb for each in allowed} & {"bind", "escalate", "impersonate", "deletecollection"}
            if role["kind"] == "ClusterRole":
                assert {each.verb for each in allowed if each != reviews} <= {"get", "list"}
                assert "secrets" not in {each.resource for each in allowed}


def test_roles_are_bound_to_accounts_that_there_are() -> None:
    for name in OVERLAYS:
        objects = overlay(name)
        roles, accounts = (set(of_kind(objects, kind)) for kind in ("Role", "ServiceAccount"))
        bound = [*of_kind(objects, "RoleBinding").values()]
        assert {each["roleRef"]["name"] for each in bound} == roles
        subjects = [each for binding in bound for each in binding["subjects"] if each["kind"] == "ServiceAccount"]
        own = {each["name"] for each in subjects if each["namespace"] == "gumshoe"}
        assert own <= accounts | {"default-editor"}, "that is Kubeflow's, in each profile"
        assert not own & {"gumshoe-trainer", "gumshoe-rollout"}
