"""Create vLLM's pods from the chart's objects as KServe 0.21 does, as far as the chart depends on it.

Origins are files of github.com/kserve/kserve.
"""

from copy import deepcopy
from typing import Any

from tests.charts.kserve_webhooks import find_common_parent

Objects = dict[tuple[str, str], Any]
"""Objects of a release, by kind and name."""
Secrets = dict[str, dict[str, str]]
"""Annotations of the namespace's Secrets, and the names of their keys (with empty values), by name."""

_S3_VARIABLES = {"s3-endpoint": "AWS_ENDPOINT_URL", "s3-region": "AWS_DEFAULT_REGION"}
INITIALIZER = "storage-initializer"


def create_pods(objects: Objects, secrets: Secrets | None = None) -> list[dict[str, Any]]:
    """Return the specifications of vLLM's pods: the stable one, and that of a runtime canary.

    Raises:
        ValueError: if a controller of KServe would end with an error instead.
    """
    by_kind = {kind: each for (kind, _), each in objects.items() if kind.endswith(("InferenceService", "Runtime"))}
    if "LLMInferenceService" in by_kind:
        return [_create_llm_pod(by_kind["LLMInferenceService"])]
    runtime, spec = by_kind["ServingRuntime"]["spec"], by_kind["InferenceService"]["spec"]
    predictors = [spec["predictor"]]
    # components/predictor.go:903: the canary overrides fields of the stable predictor
    predictors += [_merge(spec["predictor"], canary["predictor"]) for canary in spec.get("canary", [])]
    return [_create_pod(runtime, predictor, objects, secrets or {}) for predictor in predictors]


def main_container(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the container of vLLM."""
    (container,) = pod["containers"]
    return dict(container)


def find_impossible_mounts(pod: dict[str, Any]) -> list[str]:
    """Return the paths of mounts below a read-only mount: the runtime cannot create the directory there."""
    return [
        mount["mountPath"]
        for container in [*pod.get("initContainers", []), *pod["containers"]]
        for mount in container.get("volumeMounts", [])
        for other in container["volumeMounts"]
        if other.get("readOnly") and mount["mountPath"].startswith(f"{other['mountPath']}/")
    ]


def _merge(base: Any, patch: Any) -> Any:
    """Merge objects. Lists and other values of the patch replace those of the base."""
    if not (isinstance(base, dict) and isinstance(patch, dict)):
        return deepcopy(patch)
    return deepcopy(base) | {name: _merge(base.get(name), value) for name, value in patch.items()}


def _merge_list(base: list[dict[str, Any]], patch: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """Merge lists of objects by the value of a key, as a strategic merge patch does."""
    both = {each[key]: each for each in base}
    for each in patch:
        both[each[key]] = _merge(both.get(each[key], {}), each)
    return list(both.values())


def _create_pod(runtime: dict[str, Any], predictor: dict[str, Any], objects: Objects, secrets: Secrets) -> Any:
    (base,) = runtime["containers"]
    model = predictor["model"]
    # inferenceservice/utils/utils.go:254: a strategic merge patch, but arguments are appended
    container = _merge(base, {name: value for name, value in model.items() if name not in ("modelFormat", "runtime")})
    container["args"] = [*base.get("args", []), *model.get("args", [])]
    for field, key in (("env", "name"), ("volumeMounts", "mountPath")):
        container[field] = _merge_list(base.get(field, []), model.get(field, []), key)
    fields = {name: value for name, value in predictor.items() if name not in _PREDICTOR_FIELDS}
    pod = deepcopy(fields) | {
        "containers": [container],
        "volumes": _merge_list(runtime.get("volumes", []), predictor.get("volumes", []), "name"),
    }
    if uris := predictor.get("storageUris"):
        _add_storage_initializer(pod, uris, objects, secrets)
    return pod


_PREDICTOR_FIELDS = {
    "name",
    "model",
    "minReplicas",
    "maxReplicas",
    "deploymentStrategy",
    "storageUris",
    "autoScaling",
    "volumes",
    "labels",
    "annotations",
}


def _add_storage_initializer(
    pod: dict[str, Any], uris: list[dict[str, str]], objects: Objects, secrets: Secrets
) -> None:
    """Mount claims, and let an init container fetch the rest (pod/storage_initializer_injector.go:293)."""
    main = next((each for each in pod["containers"] if each["name"] == "kserve-container"), None)
    if main is None:
        raise ValueError("Invalid configuration: cannot find container")
    fetched = [each for each in uris if not each["uri"].startswith("pvc://")]
    for each in uris:
        if each not in fetched:  # without the sub-path
            volume, claim = each["mountPath"].strip("/").replace("/", "-"), each["uri"].split("/")[2]
            pod["volumes"].append({"name": volume, "persistentVolumeClaim": {"claimName": claim}})
            main["volumeMounts"].append({"name": volume, "mountPath": each["mountPath"], "readOnly": True})
    if not fetched:
        return
    parent = find_common_parent([each["mountPath"] for each in fetched])
    pod["volumes"].append({"name": "models", "emptyDir": {}})
    main["volumeMounts"].append({"name": "models", "mountPath": parent, "readOnly": True})
    initializer = {
        "name": INITIALIZER,
        "args": [part for each in fetched for part in (each["uri"], each["mountPath"])],
        "env": _credentials(objects.get(("ServiceAccount", pod.get("serviceAccountName", "default")), {}), secrets),
        "volumeMounts": [{"name": "models", "mountPath": parent}],
    }
    pod["initContainers"] = [*pod.get("initContainers", []), initializer]


def _credentials(account: dict[str, Any], secrets: Secrets) -> list[dict[str, Any]]:
    """Return the environment for a ServiceAccount (credentials/service_account_credentials.go:234)."""
    annotations = account.get("metadata", {}).get("annotations", {})
    found = _s3_variables(annotations) if "eks.amazonaws.com/role-arn" in annotations else {}
    for name in [each["name"] for each in account.get("secrets", [])]:
        if "AWS_SECRET_ACCESS_KEY" in secrets[name]:  # the first kind that matches; the others are ignored
            keys = {each: f"{name}/{each}" for each in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
            found |= keys | _s3_variables(secrets[name])
        elif "HF_TOKEN" in secrets[name]:
            found["HF_TOKEN"] = f"{name}/HF_TOKEN"
    return [{"name": name, "value": value} for name, value in found.items()]


def _s3_variables(annotations: dict[str, str]) -> dict[str, str]:
    return {
        variable: annotations[f"serving.kserve.io/{name}"]
        for name, variable in _S3_VARIABLES.items()
        if f"serving.kserve.io/{name}" in annotations
    }


def _create_llm_pod(service: dict[str, Any]) -> dict[str, Any]:
    """Return the pod of an LLMInferenceService (llmisvc/workload_storage.go:87, workload_lora.go:61)."""
    spec: dict[str, Any] = service["spec"]
    pod: dict[str, Any] = deepcopy(spec["template"])
    is_enabled = spec.get("storageInitializer", {}).get("enabled", True)
    adapters = spec["model"].get("lora", {}).get("adapters", [])
    if adapters and not is_enabled:
        raise ValueError("LoRA adapters require the storage initializer")
    if is_enabled and not spec["model"]["uri"].startswith(("pvc://", "oci://")):
        pod["initContainers"] = [*pod.get("initContainers", []), {"name": INITIALIZER, "env": []}]
    if is_enabled and spec["model"]["uri"].startswith("oci://"):  # a container that holds the image, and a volume
        pod["containers"].append({"name": "modelcar", "image": spec["model"]["uri"].removeprefix("oci://")})
        pod["containers"][0]["volumeMounts"].append({"name": "modelcar", "mountPath": "/mnt/models"})
    return pod
