"""Test the chart as Helm renders it: valid in every mode, and refused if it cannot work."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from gumshoe.cluster.kserve_models import read_model
from tests.conftest import skip_missing
from tests.inference.fake_vllm import FakeVLLM
from tests.serving.agent_server import ANN, add_key, make_files, start_server

if TYPE_CHECKING:
    from gumshoe.serving.settings import ServeSettings

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "agent"
MODES = ["documents", "everything", "external", "llmisvc", "openshift", "restricted", "standard"]
"""Each mode has values in the chart's folder `ci`."""


def values_of(mode: str) -> dict[str, Any]:
    return dict(yaml.load((CHART / "ci" / f"{mode}-values.yaml").read_text(), yaml.CSafeLoader))


def chart_values() -> dict[str, Any]:
    """Return the defaults of all values."""
    return dict(yaml.load((CHART / "values.yaml").read_text(), yaml.CSafeLoader))


def merge(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Merge values like Helm merges files."""
    both = dict(values)
    for name, value in changes.items():
        inner = both.get(name)
        both[name] = merge(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return both


@cache
def chart() -> Any:
    from helm_python import Chart

    return Chart.load(CHART)


def render(values: dict[str, Any], release: str = "mail") -> dict[tuple[str, str], Any]:
    """Return the objects of a release, by kind and name."""
    files = chart().render(values, name=release, namespace="agents")
    text = "\n---\n".join(text for name, text in files.items() if not name.endswith("NOTES.txt"))
    objects = [each for each in yaml.load_all(text, yaml.CSafeLoader) if each]
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


def of_kind(objects: dict[tuple[str, str], Any], kind: str) -> Any:
    (found,) = (each for (known, _), each in objects.items() if known == kind)
    return found


def settings_of(objects: dict[tuple[str, str], Any], name: str = "mail-gumshoe-agent-agent") -> dict[str, Any]:
    return dict(yaml.load(objects["ConfigMap", name]["data"]["settings.yaml"], yaml.CSafeLoader))


def read_settings(given: dict[str, Any]) -> "ServeSettings":
    """Read settings as the agent server does."""
    from gumshoe.serving.settings import read_settings as read

    return read(None, given)


def test_there_are_values_for_every_mode() -> None:
    assert [f"{mode}-values.yaml" for mode in MODES] == sorted(each.name for each in (CHART / "ci").iterdir())
    schema = json.loads((CHART / "values.schema.json").read_text())
    modes = schema["properties"]["serving"]["properties"]["mode"]["enum"]
    assert set(modes) <= {values_of(mode).get("serving", {}).get("mode", "standard") for mode in MODES}


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_renders_and_is_valid(mode: str, assert_valid: Callable[..., None]) -> None:
    from helm_python.chart import lint

    values = values_of(mode)
    assert lint(CHART, values, strict=True)["errors"] == []
    assert_valid(render(values).values())


@pytest.mark.parametrize("mode", MODES)
def test_the_agent_server_accepts_its_settings(mode: str) -> None:
    given = settings_of(render(values_of(mode)))
    settings = read_settings(given)
    assert (settings.host, settings.port, settings.index) == ("0.0.0.0", 8000, "/data/index")
    assert settings.model.policy is not None
    assert settings.model.policy.endswith("#r7f3-2")
    assert not settings.access.open


@pytest.mark.parametrize("claim", ["", "groups"])
def test_tokens_can_name_collections(claim: str) -> None:
    access = {
        "jwksUrl": "https://login.example/keys",
        "issuer": "https://login.example",
        "audience": "gumshoe",
        "collectionClaim": claim,
    }
    values = merge(
        values_of("standard"), {"agent": {"access": access, "settings": {"access": {"collections": ["a*"]}}}}
    )
    found = read_settings(settings_of(render(values))).access
    assert (found.inbox_claim, found.collection_claim, found.collections) == ("email", claim or None, ("a*",))


def test_samples_can_be_set_in_agent_settings() -> None:
    more = {"model": {"samples": 8, "temperature": 0.8}}
    model = read_settings(settings_of(render(merge(values_of("standard"), {"agent": {"settings": more}})))).model
    assert model.choice is not None
    assert (model.samples, model.choice.judge_name, str(model.policy).endswith("#r7f3-2")) == (8, "heuristic", True)


@pytest.mark.parametrize("mode", MODES)
def test_pods_are_restricted_and_no_secret_is_rendered(mode: str) -> None:
    objects = render(values_of(mode))
    assert not [kind for kind, _ in objects if kind in ("Secret", "Role", "ClusterRole", "RoleBinding")]
    pods = [of_kind(objects, "Deployment")["spec"]["template"]["spec"], of_kind(objects, "Pod")["spec"]]
    for pod in pods:
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert security["seccompProfile"] == {"type": "RuntimeDefault"}
            assert container["resources"]["limits"]["memory"]


def test_only_the_paths_of_the_api_are_published(assert_valid: Callable[..., None]) -> None:
    from gumshoe.serving.middleware import ROUTES

    gateways = {
        "ingress": {"enabled": True, "host": "a.example"},
        "httpRoute": {"enabled": True, "parentRefs": [{"name": "g"}]},
    }
    everything = merge(values_of("everything"), gateways)
    cases: list[tuple[dict[str, Any], set[str]]] = [
        (everything, set()),
        (merge(everything, {"publicPaths": ["/", "/invoke"]}), {"/"}),
    ]
    for values, added in cases:
        objects = render(values)
        assert_valid(objects.values())
        (rule,) = of_kind(objects, "Ingress")["spec"]["rules"]
        paths = {each["path"]: each["pathType"] for each in rule["http"]["paths"]}
        assert {each["backend"]["service"]["port"]["name"] for each in rule["http"]["paths"]} == {"http"}
        (rule,) = of_kind(objects, "HTTPRoute")["spec"]["rules"]
        matches = {each["path"]["value"]: each["path"]["type"].removeprefix("Path") for each in rule["matches"]}
        assert paths == matches
        assert added <= paths.keys()
        assert all(kind == ("Exact" if path == "/" else "Prefix") for path, kind in paths.items())
        for operators in ("/metrics", "/healthz", "/readyz", "/anything"):
            assert not any(operators.startswith(path) for path, kind in paths.items() if kind == "Prefix")
    default = set(chart_values()["publicPaths"])
    assert {path for path in ROUTES if not any(path.startswith(each) for each in default)} == set(), "the whole API"


def test_metrics_have_a_port_that_nothing_publishes() -> None:
    objects = render(values_of("everything"))
    assert read_settings(settings_of(objects)).metrics_port == 8001
    (agent,) = of_kind(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert {each["name"]: each["containerPort"] for each in agent["ports"]} == {"http": 8000, "metrics": 8001}
    monitors = {name: each for (kind, name), each in objects.items() if kind == "ServiceMonitor"}
    assert [each["port"] for each in monitors["mail-gumshoe-agent-agent"]["spec"]["endpoints"]] == ["metrics"]
    service = objects["Service", "mail-gumshoe-agent-agent"]
    assert {each["name"] for each in service["spec"]["ports"]} == {"http", "metrics"}
    policy = objects["NetworkPolicy", "mail-gumshoe-agent-agent"]["spec"]["ingress"]
    ports = [{each["port"] for each in rule["ports"]} & {"http", "metrics"} for rule in policy]
    assert ports == [{"http"}, {"metrics"}], "Prometheus reads the metrics and nothing else, and callers the rest"


def test_each_container_gets_the_secrets_that_it_uses() -> None:
    given = {
        "agent": {"storage": {"existingSecret": "index-s3"}, "access": {"existingSecret": "agent-keys"}},
        "serving": {"storage": {"existingSecret": "model-s3"}, "keySecret": "vllm-key", "fetch": {"image": "fetch:1"}},
        "model": {"tokenSecret": "hub"},
    }
    values = merge(values_of("standard"), given)

    def secrets_of(container: dict[str, Any]) -> set[str]:
        named = [each["secretRef"]["name"] for each in container.get("envFrom", [])]
        named += [
            each["valueFrom"]["secretKeyRef"]["name"] for each in container.get("env", []) if each.get("valueFrom")
        ]
        return {*named, *("agent-keys" for each in container["volumeMounts"] if each["name"] == "keys")}

    objects = render(values)
    pod = of_kind(objects, "Deployment")["spec"]["template"]["spec"]
    assert [secrets_of(each) for each in (*pod["initContainers"], *pod["containers"])] == [
        {"index-s3"},
        {"agent-keys", "vllm-key"},
    ]
    predictor = of_kind(objects, "InferenceService")["spec"]["predictor"]
    (fetch,) = predictor["initContainers"]
    assert secrets_of(fetch) == {"model-s3", "hub"}
    assert secrets_of({"volumeMounts": [], **predictor["model"]}) == {"vllm-key"}
    keeping = merge(values, {"agent": {"settings": {"keeping": {"feedback": True}}}})
    (agent,) = of_kind(render(keeping), "Deployment")["spec"]["template"]["spec"]["containers"]
    assert secrets_of(agent) == {"index-s3", "agent-keys", "vllm-key"}, "it writes to the store"


@pytest.mark.parametrize(
    "argument", ["--trust-remote-code", "--trust_remote_code=true", "--trust", "--api-key=abc", "--api-k", "--config=x"]
)
def test_vllm_gets_no_argument_that_makes_it_less_safe(argument: str) -> None:
    from helm_python import HelmError

    for serving in ({"extraArgs": [argument]}, {"runtimeCanary": {"percent": 5, "extraArgs": [argument]}}):
        with pytest.raises(HelmError, match=r"serving\.extraArgs"):
            render(merge(values_of("standard"), {"serving": serving}))


@pytest.mark.parametrize("mode", ["standard", "llmisvc"])
def test_vllm_is_restricted_whatever_its_security_context(mode: str) -> None:
    objects = render(merge(values_of(mode), {"serving": {"securityContext": {"runAsUser": 10001}}}))
    spec = of_kind(objects, {"standard": "ServingRuntime", "llmisvc": "LLMInferenceService"}[mode])["spec"]
    for container in spec.get("template", spec)["containers"]:
        assert container["securityContext"] == {
            "runAsUser": 10001,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        }


@pytest.mark.parametrize("mode", ["standard", "everything"])
def test_kserve_s_sdk_reads_the_objects(mode: str) -> None:
    changed = {"serving": {"runtimeCanary": {"percent": 20, "tag": "v0.32.0"}, "replicas": {"max": 1}}}
    for objects in (render(values_of(mode)), render(merge(values_of(mode), changed))):
        read_model("V1beta1InferenceService", of_kind(objects, "InferenceService"), strict=True)
        read_model("V1alpha1ServingRuntime", of_kind(objects, "ServingRuntime"), strict=True)
    (canary,) = of_kind(objects, "InferenceService")["spec"]["canary"]
    assert (canary["trafficPercent"], canary["predictor"]["minReplicas"]) == (20, 1)
    assert canary["predictor"]["model"]["image"].endswith(":v0.32.0")


def find_model_digest(mode: str, changes: dict[str, Any]) -> str:
    """Return the digest of vLLM's configuration. Another one restarts its pods."""
    objects = render(merge(values_of(mode), changes))
    if mode == "standard":
        env = of_kind(objects, "InferenceService")["spec"]["predictor"]["model"]["env"]
    else:
        env = of_kind(objects, "LLMInferenceService")["spec"]["template"]["containers"][0]["env"]
    return str(next(each["value"] for each in env if each["name"] == "GUMSHOE_MODEL"))


@pytest.mark.parametrize("mode", ["standard", "llmisvc"])
def test_the_model_digest_depends_on_all_vllm_settings(mode: str) -> None:
    changes: list[dict[str, Any]] = [
        {"adapter": {"maxRank": 64}},
        {"model": {"maxContext": 4096}},
        {"serving": {"gpus": 4}},
        {"serving": {"image": {"tag": "v0.32.0"}}},
        {"serving": {"extraArgs": ["--max-num-seqs=8"]}},
        {"previous": {"name": "r6", "uri": "s3://a/r6"}},
    ]
    digests = [find_model_digest(mode, each) for each in ({}, *changes)]
    assert len(set(digests)) == len(digests)
    assert find_model_digest(mode, {"agent": {"replicas": 3}}) == digests[0]


@pytest.mark.parametrize(
    ("mode", "changes"),
    [
        ("standard", {"replicas": {"min": 2, "max": 4}}),
        ("standard", {"autoscaling": {"waiting": 8}}),
        ("standard", {"disruption": {"maxUnavailable": "50%"}}),
        ("standard", {"runtimeCanary": {"percent": 20, "tag": "v0.32.0"}}),
        ("standard", {"strategy": "Recreate"}),
        ("standard", {"external": {"urls": ["http://vllm:8000"]}}),
        ("llmisvc", {"replicas": {"min": 2, "max": 4}}),
    ],
)
def test_vllm_is_not_restarted_by_values_that_do_not_change_its_pods(mode: str, changes: dict[str, Any]) -> None:
    assert find_model_digest(mode, {"serving": changes}) == find_model_digest(mode, {})


def test_documents_have_an_index_of_their_own() -> None:
    pod = of_kind(render(merge(values_of("standard"), {"agent": {"environment": "documents"}})), "Deployment")
    fetch, agent = (pod["spec"]["template"]["spec"][each][0] for each in ("initContainers", "containers"))
    assert agent["image"] == fetch["image"]
    assert {"name": "GUMSHOE_INDEX", "value": "document-indexes/latest"} in fetch["env"]
    mail = of_kind(render(values_of("standard")), "Deployment")["spec"]["template"]["spec"]
    assert {"name": "GUMSHOE_INDEX", "value": "mail-indexes/latest"} in mail["initContainers"][0]["env"]


def test_an_llm_inference_service_is_scaled_by_waiting_requests() -> None:
    spec = of_kind(render(values_of("llmisvc")), "LLMInferenceService")["spec"]
    (container,) = spec["template"]["containers"]
    arguments = container["args"]
    assert {"--port=8000", "--served-model-name=base"} < set(arguments)
    assert (spec["scaling"]["minReplicas"], spec["scaling"]["maxReplicas"], "replicas" in spec) == (1, 3, False)
    (trigger,) = spec["scaling"]["keda"]["triggers"]
    assert (
        trigger["metadata"]["query"]
        == 'sum(vllm:num_requests_waiting{namespace="agents",service="mail-gumshoe-agent-model"})'
    )


@pytest.mark.parametrize(
    ("mode", "ports"),
    [("standard", {443, 8080}), ("everything", {443, 3128, 4318, 5044, 8080, 9000, 15012}), ("external", {443, 8000})],
)
def test_the_agent_server_may_access_the_ports_of_its_urls(mode: str, ports: set[int]) -> None:
    rules = render(values_of(mode))["NetworkPolicy", "mail-gumshoe-agent-agent"]["spec"]["egress"]
    assert {port["port"] for rule in rules for port in rule.get("ports", [])} == ports | {53, 5353}


@pytest.mark.parametrize(("environment", "has_hub"), [("email", False), ("documents", True)])
def test_the_agent_server_may_download_the_embedding_model_of_documents(environment: str, has_hub: bool) -> None:
    given = {"environment": environment, "storage": {"existingSecret": "s3", "endpoint": "http://minio:9000"}}
    rules = render(merge(values_of("standard"), {"agent": given}))["NetworkPolicy", "mail-gumshoe-agent-agent"]
    ports = {port["port"] for rule in rules["spec"]["egress"] for port in rule.get("ports", [])}
    assert (443 in ports, 9000 in ports) == (has_hub, True)


@pytest.mark.parametrize(
    ("changes", "is_warned"),
    [
        ({"ingress": {"enabled": True, "host": "mail.example.com"}}, True),
        ({"httpRoute": {"enabled": True, "parentRefs": [{"name": "gateway"}]}}, True),
        ({"route": {"enabled": True}}, False),
        ({}, False),
    ],
)
def test_the_notes_warn_if_the_network_policy_blocks_public_requests(changes: dict[str, Any], is_warned: bool) -> None:
    def warns(policy: dict[str, Any]) -> bool:
        values = merge(values_of("standard"), {**changes, "networkPolicy": policy})
        notes = chart().render(values, name="mail", namespace="agents")["gumshoe-agent/templates/NOTES.txt"]
        return "networkPolicy.from" in notes

    assert warns({}) == is_warned
    assert not warns({"from": [{"namespaceSelector": {}}]})
    assert not warns({"enabled": False})


def test_a_bound_canary_has_the_record_of_its_own_training() -> None:
    canary = {"canary": {"name": "r8a1-1", "uri": "s3://bucket/project/adapters/r8a1-1/sha256-01/", "percent": 25}}
    plain = merge(values_of("standard"), canary)
    bound = render(merge(plain, {"agent": {"settings": {"model": {"bound": "base"}}}}))
    model = settings_of(bound)["model"]
    assert (model["bound"], model["canary_adapter"]) == ("base", "/data/canary")
    (fetch,) = bound["Deployment", "mail-gumshoe-agent-agent"]["spec"]["template"]["spec"]["initContainers"]
    assert {"name": "GUMSHOE_CANARY", "value": "adapters/r8a1-1"} in fetch["env"]
    assert "--out /data/canary" in fetch["args"][0]
    read_settings(settings_of(bound))
    for values in (plain, merge(values_of("standard"), {"agent": {"settings": {"model": {"bound": "refuse"}}}})):
        objects = render(values)
        assert "canary_adapter" not in settings_of(objects)["model"]
        assert "/data/canary" not in json.dumps(objects["Deployment", "mail-gumshoe-agent-agent"])


def test_external_urls_may_end_with_a_slash() -> None:
    """Helm's test appends paths to them."""
    values = merge(values_of("external"), {"serving": {"external": {"urls": ["http://a.svc:8000/", "http://b.svc"]}}})
    objects = render(values)
    assert settings_of(objects)["model"]["policy"] == "vllm:http://a.svc:8000,http://b.svc#r7f3-2"
    (container,) = of_kind(objects, "Pod")["spec"]["containers"]
    assert {"name": "MODELS", "value": "http://a.svc:8000,http://b.svc"} in container["env"]


@pytest.mark.parametrize("bound", ["off", "base"])
def test_a_canary_without_questions_is_only_loaded_by_vllm(bound: str) -> None:
    """It may have been trained differently, which the agent server refuses."""
    values = merge(values_of("standard"), {"agent": {"settings": {"model": {"bound": bound}}}})
    canary = {"name": "r8a1-1", "uri": "s3://bucket/project/adapters/r8a1-1/sha256-01/", "percent": 0}
    before, after = render(values), render(merge(values, {"canary": canary}))
    changed = {kind for kind, name in before if before[kind, name] != after[kind, name]}
    assert changed == {"InferenceService", "ServingRuntime", "Pod"}
    small = settings_of(render(merge(values, {"canary": {**canary, "percent": 0.5}})))["model"]
    assert (small["canary"], small["canary_percent"]) == ("r8a1-1", 0.5)


def test_a_canary_changes_no_immutable_field() -> None:
    before = render(values_of("standard"))
    canary = {"canary": {"name": "r8a1-1", "uri": "s3://bucket/project/adapters/r8a1-1/sha256-01/", "percent": 25}}
    after = render(merge(values_of("standard"), canary))
    assert before.keys() == after.keys()
    changed = {kind for kind, name in before if before[kind, name] != after[kind, name]}
    assert changed == {"InferenceService", "ServingRuntime", "ConfigMap", "Deployment", "Pod"}
    model = settings_of(after)["model"]
    assert (model["canary"], model["canary_percent"]) == ("r8a1-1", 25)
    old, new = (of_kind(each, "Deployment") for each in (before, after))
    assert old["spec"]["selector"] == new["spec"]["selector"]
    annotations = [each["spec"]["template"]["metadata"]["annotations"] for each in (old, new)]
    assert annotations[0]["checksum/config"] != annotations[1]["checksum/config"], "the pods are restarted"


@pytest.mark.parametrize("mode", ["standard", "llmisvc"])
def test_vllm_is_not_restarted_when_two_adapters_swap_roles(mode: str) -> None:
    one, two = ({"name": name, "uri": f"s3://bucket/{name}"} for name in ("r8a1-1", "r7f3-2"))
    before, after = (
        render(merge({**values_of(mode), "canary": {}}, changes))
        for changes in ({"adapter": one, "canary": {**two, "percent": 10}}, {"adapter": two, "previous": one})
    )
    changed = {kind for kind, name in before if before[kind, name] != after[kind, name]}
    assert changed == {"ConfigMap", "Deployment", "Pod"}, "only the agent server and helm's test"
    model = settings_of(after)["model"]
    assert (model["policy"].rpartition("#")[2], "canary" in model) == ("r7f3-2", False)


def test_two_releases_in_one_namespace_do_not_conflict() -> None:
    one, two = (render(values_of("everything"), release) for release in ("mail", "docs"))
    assert not one.keys() & two.keys()
    selectors = [of_kind(each, "Deployment")["spec"]["selector"]["matchLabels"] for each in (one, two)]
    assert selectors[0] != selectors[1]


@pytest.mark.parametrize(
    ("changes", "key", "value"),
    [
        ({"adaptor": {}}, "'adaptor'", ""),
        ({"adapter": {"name": "no name"}}, "/adapter/name", ""),
        ({"adapter": {"name": ""}}, "adapter.name: ", "version"),
        ({"adapter": {"name": "base"}}, "adapter.name: ", "base"),
        ({"adapter": {"uri": ""}}, "adapter.uri: ", "`gumshoe artifacts show adapters/VERSION`"),
        ({"adapter": {"uri": "/models/a"}}, "/adapter/uri", ""),
        ({"adapter": {"maxRank": 7}}, "/adapter/maxRank", ""),
        ({"canary": {"name": "r7f3-2", "uri": "s3://a/b"}}, "canary.name: ", "adapter"),
        ({"canary": {"name": "base", "uri": "s3://a/b"}}, "canary.name: ", "base"),
        ({"canary": {"name": "next"}}, "canary.uri: ", ""),
        ({"canary": {"percent": 101}}, "/canary/percent", ""),
        ({"previous": {"name": "r7f3-2", "uri": "s3://a/b"}}, "previous.name: ", ""),
        ({"previous": {"name": "r6"}}, "previous.uri: ", ""),
        ({each: {"name": "next", "uri": "s3://a/b"} for each in ("canary", "previous")}, "previous.name: ", ""),
        ({"model": {"uri": ""}}, "/model/uri", ""),
        ({"serving": {"mode": "knative"}}, "/serving/mode", ""),
        ({"serving": {"mode": "external"}}, "serving.external.urls: ", ""),
        ({"serving": {"gpus": 0}}, "/serving/gpus", ""),
        ({"serving": {"gpuMemory": 1.5}}, "/serving/gpuMemory", ""),
        ({"serving": {"sharedMemory": "8 GB"}}, "/serving/sharedMemory", ""),
        ({"serving": {"replicas": {"min": 3, "max": 2}}}, "serving.replicas.max: ", "min"),
        ({"agent": {"autoscaling": {"enabled": True, "min": 12}}}, "agent.autoscaling.max: ", "min"),
        (
            {"serving": {"replicas": {"max": 3}, "runtimeCanary": {"percent": 5}}},
            "serving.runtimeCanary: ",
            "serving.replicas.max",
        ),
        (
            {"serving": {"mode": "llmisvc", "runtimeCanary": {"percent": 5}}},
            "serving.runtimeCanary: ",
            "serving.mode standard",
        ),
        (
            {"serving": {"mode": "llmisvc", "strategy": "Recreate"}},
            "serving.strategy: ",
            "serving.mode standard",
        ),
        ({"serving": {"strategy": "OnDelete"}}, "/serving/strategy", ""),
        ({"serving": {"image": {"digest": "latest"}}}, "/serving/image/digest", ""),
        ({"agent": {"store": ""}}, "agent.store: ", "s3://"),
        ({"agent": {"image": {"repository": ""}}}, "agent.image.repository: ", "images/build.sh"),
        ({"agent": {"store": "/store"}}, "/agent/store", ""),
        ({"agent": {"index": "latest"}}, "/agent/index", ""),
        ({"agent": {"access": {"existingSecret": ""}}}, "agent.access: ", "existingSecret"),
        ({"agent": {"access": {"jwksUrl": "https://a.example/keys"}}}, "agent.access: ", "issuer"),
        (
            {"agent": {"access": {"jwksUrl": "https://a.example/keys", "issuer": "https://a.example"}}},
            "agent.access: ",
            "audience",
        ),
        (
            {"agent": {"access": {"existingSecret": ""}, "settings": {"access": {"open": True}}}},
            "agent.settings.access.open: ",
            "open_to_network",
        ),
        (
            {"agent": {"settings": {"access": {"open": True, "open_to_network": True}}}},
            "agent.settings.access.open: ",
            "allowed_hosts",
        ),
        ({"agent": {"replicas": "2"}}, "/agent/replicas", ""),
        ({"agent": {"podLabels": {"app.kubernetes.io/name": "mine"}}}, "app.kubernetes.io/name", ""),
        ({"serving": {"podLabels": {"helm.sh/chart": "mine"}}}, "helm.sh/chart", ""),
        ({"ingress": {"enabled": True}}, "ingress.host: ", ""),
        ({"trust": {"caBundle": {"configMap": "a", "secret": "b"}}}, "trust.caBundle: ", "one of them"),
        ({"trust": {"caBundle": {"configMap": "a", "key": "a/b"}}}, "/trust/caBundle/key", ""),
        ({"proxy": {"http": "proxy.example.com:3128"}}, "/proxy/http", ""),
        ({"proxy": {"noProxy": [".example.com"]}}, "proxy.noProxy: ", "proxy.https"),
        ({"platform": "eks"}, "/platform", ""),
        ({"istio": {"sidecar": "yes"}}, "/istio/sidecar", ""),
        ({"route": {"termination": "reencrypt"}}, "'termination'", ""),
        ({"httpRoute": {"enabled": True}}, "httpRoute.parentRefs: ", ""),
    ],
)
def test_invalid_values_are_refused_with_their_key(changes: dict[str, Any], key: str, value: str) -> None:
    with pytest.raises(Exception, match=f"{re.escape(key)}.*{re.escape(value)}"):
        render(merge(values_of("standard"), changes))


def test_alerts_are_valid_use_exported_metrics_and_have_runbooks(tmp_path: Path) -> None:
    from gumshoe.serving.telemetry import Metrics

    promtool = shutil.which("promtool") or skip_missing("promtool (of the Debian package prometheus)")
    objects = render(values_of("everything"))
    groups = of_kind(objects, "PrometheusRule")["spec"]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(groups))
    done = subprocess.run([promtool, "check", "rules", tmp_path / "rules.yaml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rules = groups["groups"][0]["rules"]
    headings = {each.lower() for each in re.findall(r"^## (\w+)", (CHART / "RUNBOOKS.md").read_text(), re.M)}
    assert {each["annotations"]["runbook_url"].rpartition("#")[2] for each in rules} == headings
    board = objects["ConfigMap", "mail-gumshoe-agent-dashboard"]["data"]["mail-gumshoe-agent.json"]
    panels = json.loads(board)["panels"]
    queries = [each["expr"] for each in rules] + [target["expr"] for each in panels for target in each["targets"]]
    queries.append(
        of_kind(objects, "InferenceService")["spec"]["predictor"]["autoScaling"]["metrics"][0]["external"]["metric"][
            "query"
        ]
    )
    named = set(re.findall(r"\b(?:gumshoe_|vllm:)\w+", " ".join(queries)))
    ours = {name for family in Metrics().registry.collect() for name in names_of(family)}
    assert {each for each in named if each.startswith("gumshoe_")} <= ours
    where = find_spec("vllm")
    if where is None or where.origin is None:
        skip_missing("vLLM (the CPU build comes with `make install` on Linux)")
    loggers = (Path(str(where.origin)).parent / "v1" / "metrics" / "loggers.py").read_text()
    assert all(f'"{each}"' in loggers for each in named if each.startswith("vllm:"))


def test_alerts_fire_even_if_nothing_was_ever_answered(tmp_path: Path) -> None:
    """A counter does not exist before its first count, and comparing with a missing metric yields nothing."""
    promtool = shutil.which("promtool") or skip_missing("promtool (of the Debian package prometheus)")
    groups = of_kind(render(values_of("everything")), "PrometheusRule")["spec"]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(groups))
    where = 'namespace="agents",service="mail-gumshoe-agent-agent"'
    rules = {each["alert"]: each for each in groups["groups"][0]["rules"]}

    def fires(alert: str, series: str) -> dict[str, Any]:
        expected = {"exp_labels": rules[alert]["labels"], "exp_annotations": rules[alert]["annotations"]}
        return {
            "interval": "1m",
            "input_series": [{"series": series, "values": "0+10x240"}],
            "alert_rule_test": [{"eval_time": "3h", "alertname": alert, "exp_alerts": [expected]}],
        }

    tests = [
        fires("GumshoeModelFails", f'gumshoe_model_errors_total{{{where},why="failed"}}'),
        fires("GumshoeAnswersNothing", f'gumshoe_episodes_total{{{where},outcome="unknown",policy="r7"}}'),
    ]
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": tests}))
    done = subprocess.run([promtool, "test", "rules", tmp_path / "tests.yaml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def names_of(family: Any) -> set[str]:
    """Return the names under which a metric is exported."""
    parts = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(family.type, [""])
    return {family.name + each for each in parts}


@pytest.mark.ci
def test_helm_test_passes_and_detects_failures(tmp_path: Path) -> None:
    key = add_key(tmp_path / "keys", "test", [ANN])
    place = make_files(tmp_path)
    environment = {
        "ADAPTERS": "adapter,next",
        "ENVIRONMENT": "email",
        "INBOX": ANN,
        "QUESTION": "What is in 7?",
        "KEY": key,
    }

    def run(**changes: str) -> subprocess.CompletedProcess[str]:
        given = {**environment, **changes}
        command = [sys.executable, str(CHART / "files" / "test.py")]
        return subprocess.run(command, capture_output=True, text=True, env=given, check=False)

    with FakeVLLM(models=("base", "adapter", "next")) as model:
        policy = f"vllm:{model.address}#adapter"
        with start_server(place, policy, tmp_path / "log", "--keys", str(tmp_path / "keys"), key=key) as server:
            environment |= {"AGENT": server.url, "MODELS": model.address}
            done = run()
            assert done.returncode == 0, done.stderr
            values = ("adapter, next\n", "next completes", "ready\n", "ask, read_email, search_inbox\n", "success True")
            for value in values:
                assert value in done.stdout
            other = run(ADAPTERS="r9")
            assert (other.returncode, "['r9']" in other.stderr) == (1, True)
            assert run(KEY="gum_no").returncode == 1
            assert "test.keySecret" in run(KEY="", INBOX="").stdout
