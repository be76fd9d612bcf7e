"""Test that the Roles allow exactly what the code requests, as recorded while it runs."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gumshoe.artifacts.store import Store
from gumshoe.cluster import helm_library, pipeline_deployment
from gumshoe.cluster.canary_step import watch_published
from gumshoe.cluster.kubernetes_api import Cluster
from gumshoe.cluster.pipeline_deployment import DeployTarget, deploy_published
from gumshoe.cluster.pod_refusals import find_step_refusals
from gumshoe.cluster.serving_state import merge_values
from tests.cluster import fake_kubernetes as kubernetes
from tests.cluster.fake_kubernetes import Controllers, FakeKubernetes
from tests.cluster.measured_server import run_measured_server
from tests.cluster.test_deploy import AGENT, BASE, publish
from tests.conftest import CommandResult
from tests.errors import raises
from tests.manifests.access import Access, list_allowed, record_access
from tests.manifests.kustomize import OVERLAYS, of_kind, overlay

IMAGE = "registry.example.com/gumshoe/agent"
ACCESS = {"agent": {"access": {"existingSecret": "gumshoe-keys"}, "image": {"repository": IMAGE}}}
SECRETS = {"serving": {"storage": {"existingSecret": "gumshoe-s3"}}, "agent": {"storage": {"existingSecret": "s3"}}}
EVERYTHING = {  # values with which the chart creates every kind of object
    **merge_values(ACCESS, SECRETS),
    "agent": {**merge_values(ACCESS, SECRETS)["agent"], "autoscaling": {"enabled": True, "max": 3}},
    "monitoring": {"enabled": True, "rules": True, "dashboard": True},
    "ingress": {"enabled": True, "host": "gumshoe.example"},
    "httpRoute": {"enabled": True, "parentRefs": [{"name": "gateway"}]},
    "route": {"enabled": True},
}
NOTHING = {
    "serving": {"mode": "external", "external": {"urls": ["http://vllm:8000"]}},
    "agent": {"autoscaling": {"enabled": False}},
    "monitoring": {"enabled": False, "rules": False, "dashboard": False},
    "ingress": {"enabled": False},
    "httpRoute": {"enabled": False},
    "route": {"enabled": False},
}


@pytest.fixture
def cluster(cluster: FakeKubernetes, monkeypatch: pytest.MonkeyPatch) -> FakeKubernetes:
    """Return a cluster that serves all kinds of objects in the chart."""
    more = {
        "argoproj.io/v1alpha1": {"workflows": "Workflow"},
        "gateway.networking.k8s.io/v1": {"httproutes": "HTTPRoute"},
        "monitoring.coreos.com/v1": {"prometheusrules": "PrometheusRule", "servicemonitors": "ServiceMonitor"},
        "route.openshift.io/v1": {"routes": "Route"},
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
    """Return the permissions of a role, which is the same in all overlays."""
    (rules,) = {str(of_kind(overlay(each), "Role")[role]["rules"]): each for each in OVERLAYS}.values()
    allowed = list_allowed(of_kind(overlay(rules), "Role")[role]["rules"])
    assert not [each for each, times in Counter(allowed).items() if times > 1], "a permission is listed twice"
    return set(allowed)


CREATE_FORWARD = Access("", "pods/portforward", "create")
"""What newer versions of Kubernetes ask for besides `get`, since a WebSocket begins with a GET."""


@pytest.mark.ci
def test_the_deploy_role_allows_exactly_what_deployments_use(
    cluster: FakeKubernetes, controllers: Controllers, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helm_library, "HISTORY", 2)  # then Helm deletes the oldest revision
    with record_access(cluster) as used:

        def put(version: str, mode: str, values: dict[str, Any]) -> None:
            deploy_published(
                f"adapters/{version}", store.uri, mode, DeployTarget.of({"name": "mail", "values": values})
            )

        put("r1", "canary", EVERYTHING)
        put("r2", "canary", {})
        watch_canary(cluster, store)
        put("r3", "full", {"serving": {"mode": "llmisvc"}})
        put("r3", "full", NOTHING)
        put("r1", "full", {"serving": {"mode": "standard"}})
        controllers.broken = "agent"
        monkeypatch.setattr(pipeline_deployment, "PIPELINE_SECONDS", 0.01)
        with raises("deploy.rolled-back", "mail"):
            put("r2", "full", {})
    assert used | {CREATE_FORWARD} == rules_of("gumshoe-deploy")


def watch_canary(cluster: FakeKubernetes, store: Store) -> None:
    """Watch the canary of a deployment without questions, until the time is over."""
    target = DeployTarget.of({"name": "mail", "promote_when": "errors <= 1%", "watch_hours": 1e-6})
    with run_measured_server() as server:
        cluster.pod_addresses[f"{AGENT}-0"] = server.address
        assert "0 of at least 100" in watch_published("adapters/r2", store.uri, "canary", target)


@pytest.mark.ci
def test_the_operate_role_allows_exactly_what_the_commands_use(
    run: Callable[..., CommandResult], cluster: FakeKubernetes, controllers: Controllers, store: Store
) -> None:
    from gumshoe_pipelines.run_status import view_pods

    assert store
    with record_access(cluster) as used:

        def run_command(*words: str, status: int = 0) -> None:
            done = run(*words)
            assert done.status == status, done.err

        access = ["--set", "agent.access.existingSecret=gumshoe-keys", "--set", f"agent.image.repository={IMAGE}"]
        run_command("deploy", "mail", "--adapter", "r1", *access)
        run_command("deploy", "mail", "--adapter", "r2", "--canary", "10")
        with run_measured_server() as server:
            cluster.pod_addresses[f"{AGENT}-0"] = server.address
            run_command("promote", "mail", "--for", "0.001s", status=75)
        run_command("promote", "mail")
        run_command("rollback", "mail")
        run_command("rollback", "mail", "--revision", "1")
        controllers.broken = "agent"
        run_command("deploy", "mail", "--adapter", "r3", "--timeout", "0.01", status=75)
        run_command("deployments")
        run_command("deployments", "show", "mail")
        run_command("deployments", "logs", "mail")
        run_command("deployments", "logs", "mail", "--follow")
        pod = cluster.objects["pods", "agents", f"{AGENT}-0"]
        pod["metadata"]["labels"]["pipeline/runid"] = "run-1"
        view_pods(Cluster.of(None, None), "run-1")
        pod["status"] = {"phase": "Running"}
        view_pods(Cluster.of(None, None), "run-1")
        find_step_refusals(Cluster.of(None, None), "run-1")
        run_command("deployments", "remove", "mail", "--yes")
    assert used <= rules_of("gumshoe-operate")
    assert rules_of("gumshoe-operate") == used | rules_of("gumshoe-deploy")


def test_roles_allow_no_privilege_escalation_and_no_cluster_wide_changes() -> None:
    escalating = {"roles", "rolebindings", "pods/exec", "pods/attach", "serviceaccounts/token"}
    reviews = Access("authorization.k8s.io", "subjectaccessreviews", "create")  # a query that stores nothing
    for name in OVERLAYS:
        objects = overlay(name)
        for role in (each for each in objects if each["kind"] in ("Role", "ClusterRole")):
            allowed = list_allowed(role["rules"])
            assert not {"*"} & {part for each in allowed for part in (each.group, each.resource, each.verb)}
            assert not {each.resource for each in allowed} & escalating
            assert not {each.verb for each in allowed} & {"bind", "escalate", "impersonate", "deletecollection"}
            if role["kind"] == "ClusterRole":
                assert {each.verb for each in allowed if each != reviews} <= {"get", "list"}
                assert "secrets" not in {each.resource for each in allowed}


def test_roles_are_bound_to_existing_accounts() -> None:
    for name in OVERLAYS:
        objects = overlay(name)
        roles, accounts = (set(of_kind(objects, kind)) for kind in ("Role", "ServiceAccount"))
        bound = [*of_kind(objects, "RoleBinding").values()]
        assert {each["roleRef"]["name"] for each in bound} == roles
        subjects = [each for binding in bound for each in binding["subjects"] if each["kind"] == "ServiceAccount"]
        own = {each["name"] for each in subjects if each["namespace"] == "gumshoe"}
        assert own <= accounts | {"default-editor"}, "Kubeflow creates it in each profile"
        assert not own & {"gumshoe-trainer", "gumshoe-rollout"}
