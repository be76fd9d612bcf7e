"""Test vLLM's pods as KServe creates them: files, credentials, pod security, accelerators and scheduling."""

import json
from typing import Any

import pytest

from tests.charts.kserve_pods import INITIALIZER, Objects, Secrets, create_pods, find_impossible_mounts, main_container
from tests.charts.pod_security import RULES, find_restricted_violations
from tests.charts.test_agent_chart import MODES, merge, of_kind, render, values_of

Pod = dict[str, Any]

KSERVE_MODES = [mode for mode in MODES if values_of(mode).get("serving", {}).get("mode") != "external"]
CLAIMS = {
    "model": {"uri": "pvc://models/qwen/7b/"},
    "adapter": {"name": "r7f3-2", "uri": "pvc://adapters/r7f3-2"},
    "canary": {"name": "r8a1-1", "uri": "s3://bucket/r8a1-1"},
    "previous": {"name": "r6", "uri": "pvc://adapters"},
}
SECRETS: Secrets = {
    "s3": {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""},
    "hf": {"HF_TOKEN": ""},
    "both": {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "HF_TOKEN": ""},
}
MODEL_POLICY = ("NetworkPolicy", "mail-gumshoe-agent-model")
AGENT_POLICY = ("NetworkPolicy", "mail-gumshoe-agent-agent")
ACCOUNT = ("ServiceAccount", "mail-gumshoe-agent-model")
UNNAMED_USER = {"HOME": "/tmp", "USER": "vllm"}
"""Variables of a user that the image does not know: torch before 2.13 cannot be imported without a user name."""


def pods_of(values: dict[str, Any], changes: dict[str, Any] | None = None) -> list[Pod]:
    return create_pods(render(merge(values, changes or {})), SECRETS)


def pod_of(mode: str, changes: dict[str, Any] | None = None) -> Pod:
    (pod,) = pods_of(values_of(mode), changes)
    return pod


def fetcher_of(pod: Pod) -> dict[str, Any]:
    """Return the init container that fetches the files: ours, or KServe's."""
    (found,) = pod["initContainers"]
    return dict(found)


def environment_of(container: dict[str, Any]) -> dict[str, Any]:
    """Return a container's environment: values, and for keys of a Secret `NAME/KEY`."""
    found = {}
    for each in container.get("env", []):
        key = each.get("valueFrom", {}).get("secretKeyRef", {})
        found[each["name"]] = each["value"] if "value" in each else f"{key['name']}/{key['key']}"
    secrets = [each["secretRef"]["name"] for each in container.get("envFrom", [])]
    return found | {key: f"{name}/{key}" for name in secrets for key in SECRETS[name]}


def files_of(pod: Pod) -> dict[str, tuple[str, str]]:
    """Return the source of each directory that vLLM loads: a URI, or a claim with its sub-path."""
    container, volumes = main_container(pod), {each["name"]: each for each in pod["volumes"]}
    mounts = {each["mountPath"]: each for each in container["volumeMounts"]}
    fetched: dict[str, str] = {}
    for init in pod.get("initContainers", []):
        if init["name"] == INITIALIZER:
            fetched |= dict(zip(init["args"][1::2], init["args"][::2], strict=True))
        else:
            pairs = [argument.rpartition("=") for argument in init["args"]]
            fetched |= {directory: uri for uri, _, directory in pairs}
    arguments = [*container["command"], *container["args"]]
    modules = [json.loads(each) for each in arguments[arguments.index("--lora-modules") + 1 :]]
    found = {}
    for name, path in [("base", "/mnt/models"), *((each["name"], each["path"]) for each in modules)]:
        mount = mounts.get(path)
        if mount and "persistentVolumeClaim" in volumes[mount["name"]]:
            found[name] = (volumes[mount["name"]]["persistentVolumeClaim"]["claimName"], mount.get("subPath", ""))
        else:
            found[name] = (fetched[f"/files/{mount['subPath']}" if mount and "subPath" in mount else path], "")
    return found


@pytest.mark.parametrize(
    ("mode", "canary"), [(mode, canary) for mode in KSERVE_MODES for canary in {False, mode != "llmisvc"}]
)
def test_vllm_finds_the_model_and_every_adapter(mode: str, canary: bool) -> None:
    values = values_of(mode)
    replicas = {"min": 1, "max": 1}
    changes = {"serving": {"replicas": replicas, "runtimeCanary": {"percent": 10, "tag": "v9"}}} if canary else {}
    pods = pods_of(values, changes)
    for pod in pods:
        adapters = [values[role] for role in ("adapter", "canary", "previous") if values.get(role)]
        model = values.get("model", {}).get("uri", "hf://Qwen/Qwen2.5-7B-Instruct")
        expected = {"base": model} | {each["name"]: each["uri"] for each in adapters}
        assert {name: uri for name, (uri, _) in files_of(pod).items()} == expected
        assert find_impossible_mounts(pod) == []
        mounts = [each for part in [*pod["initContainers"], *pod["containers"]] for each in part["volumeMounts"]]
        assert {each["name"] for each in mounts} == {each["name"] for each in pod["volumes"]}
    if canary:
        assert len(pods) == 2
        images = [main_container(pod)["image"] for pod in pods]
        assert (images[0] != images[1], images[1].endswith(":v9")) == (True, True)


@pytest.mark.parametrize("restricted", [False, True])
@pytest.mark.parametrize("mode", ["standard", "llmisvc"])
def test_claims_keep_their_sub_paths(mode: str, restricted: bool) -> None:
    pod = pod_of(mode, CLAIMS | {"serving": {"restricted": restricted}})
    assert files_of(pod) == {
        "base": ("models", "qwen/7b"),
        "r7f3-2": ("adapters", "r7f3-2"),
        "r8a1-1": ("s3://bucket/r8a1-1", ""),
        "r6": ("adapters", ""),
    }
    assert find_impossible_mounts(pod) == []
    names = [each["name"] for each in pod["volumes"]]
    assert len(names) == len(set(names))
    assert all(each.get("readOnly") for each in main_container(pod)["volumeMounts"] if each["name"] != "shm")
    only = {name: {**each, "uri": "pvc://models/a"} for name, each in CLAIMS.items()}
    assert "initContainers" not in pod_of(mode, only | {"serving": {"restricted": restricted}})


@pytest.mark.parametrize("mode", ["standard", "llmisvc"])
def test_the_address_of_another_s3_server_reaches_the_container_that_fetches(mode: str) -> None:
    storage = {"existingSecret": "s3", "endpoint": "minio.storage:9000", "https": False, "region": "eu-west-1"}
    environment = environment_of(fetcher_of(pod_of(mode, {"serving": {"storage": storage}})))
    assert environment["AWS_ENDPOINT_URL"] == "http://minio.storage:9000"
    assert environment["AWS_REGION"] == "eu-west-1"
    assert environment["AWS_SECRET_ACCESS_KEY"] == "s3/AWS_SECRET_ACCESS_KEY"
    secure = environment_of(fetcher_of(pod_of(mode, {"serving": {"storage": {**storage, "https": True}}})))
    assert secure["AWS_ENDPOINT_URL"] == "https://minio.storage:9000"
    region = environment_of(fetcher_of(pod_of(mode, {"serving": {"storage": {"region": "cn-north-1"}}})))
    assert region["AWS_REGION"] == "cn-north-1"


def test_kserve_fetches_by_default_and_only_where_it_can() -> None:
    assert fetcher_of(pod_of("standard"))["name"] == INITIALIZER
    reasons: list[dict[str, Any]] = [
        {"serving": {"restricted": True}},
        {"serving": {"mode": "llmisvc"}},
        {"serving": {"storage": {"endpoint": "minio:9000"}}},
        {"serving": {"storage": {"region": "eu-west-1"}}},
        {"serving": {"fetch": {"image": "registry.example.com/fetch:1"}}},
        {"serving": {"fetch": {"extraEnv": [{"name": "HF_ENDPOINT", "value": "https://hub.example"}]}}},
        {"serving": {"serviceAccount": {"name": "models"}, "storage": {"existingSecret": "s3"}}},
        {"serving": {"storage": {"existingSecret": "both"}}, "model": {"tokenSecret": "both"}},
        {"trust": {"caBundle": {"configMap": "company-ca"}}},
        {"trust": {"caBundle": {"secret": "company-ca"}}},
        {"proxy": {"https": "http://proxy:3128"}},
    ]
    for changes in reasons:
        assert fetcher_of(pod_of("standard", changes))["name"] == "fetch", changes


@pytest.mark.parametrize("secrets", [("s3", "hf"), ("both", "both"), ("", "hf"), ("s3", "")])
@pytest.mark.parametrize("mode", ["standard", "llmisvc"])
def test_keys_and_tokens_reach_the_container_that_fetches(mode: str, secrets: tuple[str, str]) -> None:
    s3, token = secrets
    changes = {"serving": {"storage": {"existingSecret": s3}}, "model": {"tokenSecret": token}}
    environment = environment_of(fetcher_of(pod_of(mode, changes)))
    assert environment.get("AWS_ACCESS_KEY_ID") == (f"{s3}/AWS_ACCESS_KEY_ID" if s3 else None)
    assert environment.get("HF_TOKEN") == (f"{token}/HF_TOKEN" if token else None)


@pytest.mark.parametrize("mode", ["standard", "llmisvc"])
def test_s3_without_keys_uses_a_role(mode: str) -> None:
    role = {"eks.amazonaws.com/role-arn": "arn:aws:iam::123456789012:role/models"}
    changes = {"serving": {"serviceAccount": {"annotations": role}}, "agent": {"serviceAccount": {"annotations": role}}}
    objects = render(merge(values_of(mode), changes))
    for name, pod in (("model", pod_of(mode, changes)), ("agent", pod_of_agent(objects))):
        account = objects["ServiceAccount", f"mail-gumshoe-agent-{name}"]
        assert account["metadata"]["annotations"] == role
        assert pod["serviceAccountName"] == account["metadata"]["name"]
    named = {part: {"serviceAccount": {"name": "own"}} for part in ("serving", "agent")}
    objects = render(merge(values_of(mode), named))
    assert not [kind for kind, _ in objects if kind == "ServiceAccount"]
    assert (pod_of(mode, named)["serviceAccountName"], pod_of_agent(objects)["serviceAccountName"]) == ("own", "own")


def pod_of_agent(objects: Objects) -> Pod:
    return dict(of_kind(objects, "Deployment")["spec"]["template"]["spec"])


def reaches(policy: dict[str, Any], address: str, port: int) -> bool:
    """Return True if a NetworkPolicy allows an address and port explicitly, or the port of every address."""
    return any(
        port in [each["port"] for each in rule.get("ports", [])]
        and ("to" not in rule or {"ipBlock": {"cidr": address}} in rule["to"])
        for rule in policy["spec"]["egress"]
    )


@pytest.mark.parametrize(
    ("chosen", "address", "port"),
    [
        ("metadata", "169.254.169.254/32", 80),
        ("metadata", "fd00:ec2::254/128", 80),
        ("metadata", "169.254.169.252/32", 988),
        ("pod-identity", "169.254.170.23/32", 80),
        ("pod-identity", "fd00:ec2::23/128", 80),
    ],
)
@pytest.mark.parametrize("mode", ["standard", "llmisvc"])
def test_addresses_of_cloud_credentials_are_open_only_if_chosen(
    mode: str, chosen: str, address: str, port: int
) -> None:
    for choice in ("none", "metadata", "pod-identity"):
        objects = render(merge(values_of(mode), {"networkPolicy": {"credentials": choice}}))
        for policy in (MODEL_POLICY, AGENT_POLICY):
            assert reaches(objects[policy], address, port) == (choice == chosen)


def test_sts_can_be_reached_beside_another_s3_server() -> None:
    role = {"eks.amazonaws.com/role-arn": "arn:aws:iam::123456789012:role/models"}
    storage = {"storage": {"endpoint": "http://minio:9000"}}
    for annotations, is_open in (({}, False), (role, True)):
        objects = render(
            merge(values_of("standard"), {"agent": {**storage, "serviceAccount": {"annotations": annotations}}})
        )
        assert reaches(objects[AGENT_POLICY], "any", 443) == is_open
        assert reaches(objects[MODEL_POLICY], "any", 443)


def test_vllm_may_access_only_the_ports_that_its_files_need() -> None:
    storage, proxy = {"endpoint": "minio:9000", "https": False}, {"https": "http://proxy:3128"}
    extra = [{"ports": [{"port": 8443, "protocol": "TCP"}]}]
    changes = {"serving": {"storage": storage}, "proxy": proxy, "networkPolicy": {"modelEgress": extra}}
    rules = render(merge(values_of("standard"), changes))[MODEL_POLICY]["spec"]["egress"]
    assert {each["port"] for rule in rules if "to" not in rule for each in rule["ports"]} == {443, 3128, 8443, 9000}
    rules = render(merge(values_of("standard"), {"model": {"uri": "http://files:8080/m"}}))[MODEL_POLICY]["spec"]
    assert {each["port"] for rule in rules["egress"] if "to" not in rule for each in rule["ports"]} == {443, 8080}


@pytest.mark.parametrize("platform", ["kubernetes", "openshift"])
@pytest.mark.parametrize("mode", KSERVE_MODES)
def test_restricted_pods_meet_the_pod_security_standard(mode: str, platform: str) -> None:
    serving = {"restricted": True, "securityContext": {}, "replicas": {"min": 1, "max": 1}}
    canary = {} if mode == "llmisvc" else {"runtimeCanary": {"percent": 10}}
    changes = {"platform": platform, "serving": {**serving, **canary}, "previous": CLAIMS["previous"]}
    values = values_of(mode)
    values.get("serving", {}).pop("securityContext", None)
    for pod in pods_of(values, changes):
        assert find_restricted_violations(pod) == []
        container = main_container(pod)
        assert container["securityContext"].get("runAsUser") == (None if platform == "openshift" else 10001)
        assert environment_of(container).items() >= UNNAMED_USER.items()
        assert fetcher_of(pod)["command"] == ["gumshoe", "model-fetch"]


def test_kserve_s_initializer_is_not_restricted() -> None:
    assert "privilege escalation" in find_restricted_violations(pod_of("standard"))


_UNSAFE: dict[str, dict[str, Any]] = {
    "host namespaces": {"hostPID": True},
    "privileged": {"containers": [{"securityContext": {"privileged": True}}]},
    "capabilities": {"containers": [{"securityContext": {"capabilities": {"drop": ["NET_RAW"]}}}]},
    "volume types": {"volumes": [{"name": "host", "hostPath": {"path": "/"}}]},
    "host ports": {"containers": [{"ports": [{"containerPort": 80, "hostPort": 80}]}]},
    "AppArmor": {"securityContext": {"appArmorProfile": {"type": "Unconfined"}}},
    "SELinux": {"securityContext": {"seLinuxOptions": {"user": "root"}}},
    "proc mount": {"containers": [{"securityContext": {"procMount": "Unmasked"}}]},
    "sysctls": {"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}},
    "probe hosts": {"containers": [{"livenessProbe": {"httpGet": {"host": "node", "port": 1}}}]},
    "privilege escalation": {"containers": [{"securityContext": {"allowPrivilegeEscalation": True}}]},
    "running as non-root": {"containers": [{"securityContext": {"runAsNonRoot": False}}]},
    "non-root user": {"initContainers": [{"securityContext": {"runAsUser": 0}}]},
    "seccomp": {"containers": [{"securityContext": {"seccompProfile": {"type": "Unconfined"}}}]},
}
"""Fields that break each rule of pod security."""


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_of_pod_security_detects_an_unsafe_pod(rule: str) -> None:
    safe = pod_of("standard", {"serving": {"restricted": True}})
    unsafe = dict(safe)
    for field, value in _UNSAFE[rule].items():
        if field in ("containers", "initContainers"):
            unsafe[field] = [merge(safe[field][0], value[0])]
        elif isinstance(value, dict):
            unsafe[field] = merge(safe.get(field, {}), value)
        else:
            unsafe[field] = value
    assert (find_restricted_violations(safe), find_restricted_violations(unsafe)) == ([], [rule])


@pytest.mark.parametrize("mode", ["standard", "llmisvc"])
def test_openshift_chooses_vllm_s_user(mode: str) -> None:
    container = main_container(pod_of(mode, {"platform": "openshift"}))
    assert not {"runAsUser", "runAsGroup", "runAsNonRoot"} & container["securityContext"].keys()
    assert environment_of(container).items() >= UNNAMED_USER.items()


@pytest.mark.parametrize("mode", ["standard", "llmisvc"])
def test_a_user_that_the_image_does_not_have_gets_a_home_and_a_name(mode: str) -> None:
    assert not UNNAMED_USER.keys() & environment_of(main_container(pod_of(mode))).keys()
    container = main_container(pod_of(mode, {"serving": {"securityContext": {"runAsUser": 2000}}}))
    assert environment_of(container).items() >= UNNAMED_USER.items()


@pytest.mark.parametrize("mode", ["standard", "llmisvc"])
def test_vllm_reports_nothing_to_its_makers_unless_it_is_allowed_to(mode: str) -> None:
    assert environment_of(main_container(pod_of(mode)))["DO_NOT_TRACK"] == "1"
    allowed = {"serving": {"extraEnv": [{"name": "DO_NOT_TRACK", "value": "0"}]}}
    assert environment_of(main_container(pod_of(mode, allowed)))["DO_NOT_TRACK"] == "0"


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "amd.com/gpu", "habana.ai/gaudi", "nvidia.com/mig-3g.40gb"])
@pytest.mark.parametrize("mode", ["standard", "llmisvc"])
def test_the_gpus_may_have_another_resource_name(mode: str, resource: str) -> None:
    found = main_container(pod_of(mode, {"serving": {"gpus": 2, "gpuResource": resource}}))["resources"]
    for part in ("limits", "requests"):
        assert {name: count for name, count in found[part].items() if "/" in name} == {resource: 2}


@pytest.mark.parametrize("mode", ["standard", "llmisvc"])
def test_resource_claims_replace_the_gpus(mode: str) -> None:
    claims = [{"name": "gpus", "resourceClaimTemplateName": "two-gpus"}]
    pod = pod_of(mode, {"serving": {"gpus": 2, "gpuResource": "", "resourceClaims": claims}})
    container = main_container(pod)
    assert pod["resourceClaims"] == claims
    assert container["resources"]["claims"] == [{"name": "gpus"}]
    assert not [name for part in ("limits", "requests") for name in container["resources"][part] if "/" in name]
    assert "--tensor-parallel-size=2" in container["args"]


@pytest.mark.parametrize("mode", ["standard", "llmisvc"])
def test_vllm_may_have_a_priority_a_runtime_class_and_a_scheduler(mode: str) -> None:
    chosen = {"priorityClassName": "high", "runtimeClassName": "nvidia", "schedulerName": "volcano"}
    assert pod_of(mode, {"serving": chosen}).items() >= chosen.items()
    assert not chosen.keys() & pod_of(mode).keys()


@pytest.mark.parametrize(("seconds", "running"), [(300, 285), (15, 0), (14, 0), (0, 0)])
@pytest.mark.parametrize("mode", ["standard", "llmisvc"])
def test_running_requests_may_finish_before_vllm_is_killed(mode: str, seconds: int, running: int) -> None:
    """An API server refuses a pod whose hook takes longer than its termination."""
    pod = pod_of(mode, {"serving": {"terminationSeconds": seconds}})
    container = main_container(pod)
    assert f"--shutdown-timeout={running}" in container["args"]
    hook = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    assert hook + running <= pod["terminationGracePeriodSeconds"] == seconds
    assert bool(hook) == (seconds >= 15)


@pytest.mark.parametrize("mode", ["standard", "llmisvc"])
def test_services_set_no_variables_of_vllm(mode: str) -> None:
    """vLLM does not start if a Service named `vllm` sets VLLM_PORT."""
    assert pod_of(mode)["enableServiceLinks"] is False


@pytest.mark.parametrize("mode", ["standard", "llmisvc"])
def test_vllm_s_pods_have_labels_for_istio_and_their_own(mode: str) -> None:
    kind = {"standard": "InferenceService", "llmisvc": "LLMInferenceService"}[mode]
    own = {"podLabels": {"team": "search"}, "podAnnotations": {"note": "x"}}
    for sidecar in (False, True):
        spec = of_kind(render(merge(values_of(mode), {"istio": {"sidecar": sidecar}, "serving": own})), kind)["spec"]
        pod = spec if mode == "llmisvc" else spec["predictor"]
        assert pod["labels"] == {"sidecar.istio.io/inject": str(sidecar).lower(), "team": "search"}
        assert pod["annotations"]["note"] == "x"
        assert ("sidecar.istio.io/nativeSidecar" in pod["annotations"]) == sidecar


@pytest.mark.parametrize("mode", ["standard", "llmisvc"])
def test_certificates_and_proxy_reach_vllm_and_the_container_that_fetches(mode: str) -> None:
    changes = {"trust": {"caBundle": {"secret": "ca", "key": "all.pem"}}, "proxy": {"https": "http://proxy:3128"}}
    pod = pod_of(mode, changes)
    (trust,) = [each for each in pod["volumes"] if each["name"] == "trust"]
    assert trust["secret"]["secretName"] == "ca"
    for container in (main_container(pod), fetcher_of(pod)):
        environment = environment_of(container)
        assert environment["SSL_CERT_FILE"] == environment["AWS_CA_BUNDLE"] == "/etc/gumshoe-trust/all.pem"
        assert environment["HTTPS_PROXY"] == "http://proxy:3128"
        assert "/etc/gumshoe-trust" in [each["mountPath"] for each in container["volumeMounts"]]


@pytest.mark.parametrize("mode", ["standard", "llmisvc"])
def test_a_drained_node_takes_one_replica_of_vllm_at_a_time(mode: str) -> None:
    objects = render(merge(values_of(mode), {"serving": {"disruption": {"maxUnavailable": "25%"}}}))
    budget, service = (objects[kind, "mail-gumshoe-agent-model"] for kind in ("PodDisruptionBudget", "Service"))
    assert budget["spec"]["maxUnavailable"] == "25%"
    assert budget["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]
    assert render(values_of(mode))["PodDisruptionBudget", "mail-gumshoe-agent-model"]["spec"]["maxUnavailable"] == 1


def test_the_image_and_the_settings_of_the_init_container() -> None:
    assert fetcher_of(pod_of("llmisvc"))["image"] == "registry.example.com/gumshoe/agent:0.1.0"
    fetch = {
        "image": "registry.example.com/fetch@sha256:" + "0" * 64,
        "resources": {"limits": {"memory": "8Gi"}},
        "extraEnv": [{"name": "HF_ENDPOINT", "value": "https://hub.example"}],
    }
    container = fetcher_of(pod_of("llmisvc", {"serving": {"fetch": fetch}}))
    assert (container["image"], container["resources"]["limits"]["memory"]) == (fetch["image"], "8Gi")
    assert environment_of(container)["HF_ENDPOINT"] == "https://hub.example"


def test_an_image_with_the_model_is_mounted_by_kserve() -> None:
    image = {"model": {"uri": "oci://registry.example.com/models/qwen:7b"}}
    (pod,) = pods_of(values_of("llmisvc"), image)
    assert "/mnt/models" in [each["mountPath"] for each in pod["containers"][0]["volumeMounts"]]
    assert [each.partition("=")[0] for each in fetcher_of(pod)["args"]] == [
        values_of("llmisvc")[role]["uri"] for role in ("adapter", "canary")
    ]


@pytest.mark.parametrize(
    ("mode", "changes", "key"),
    [
        ("standard", {"model": {"uri": "gs://bucket/m"}, "serving": {"restricted": True}}, "gs://bucket/m"),
        ("standard", {"adapter": {"uri": "https://a/b"}, "proxy": {"https": "http://p:1"}}, "https://a/b"),
        ("llmisvc", {"model": {"uri": "gs://bucket/m"}}, "gs://bucket/m"),
        ("llmisvc", {"model": {"uri": "oci://a/b"}, "serving": {"restricted": True}}, "model.uri"),
        ("standard", {"serving": {"gpuResource": ""}}, "serving.gpuResource"),
        ("standard", {"serving": {"restricted": True, "securityContext": {"runAsUser": 0}}}, "serving.securityContext"),
        (
            "standard",
            {"serving": {"restricted": True, "securityContext": {"runAsNonRoot": False}}},
            "serving.securityContext",
        ),
    ],
)
def test_values_that_cannot_work_are_refused(mode: str, changes: dict[str, Any], key: str) -> None:
    with pytest.raises(Exception, match=key):
        render(merge(values_of(mode), changes))
