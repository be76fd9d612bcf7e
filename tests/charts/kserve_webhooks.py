"""Validate objects as the admission webhooks of KServe 0.21 do, as far as the chart's objects can break their rules.

Each rule names its origin: file and line of the condition in github.com/kserve/kserve. The rules of multi-node serving,
routers and confidential models are left out: the chart sets none of their fields.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

Check = Callable[[dict[str, Any]], bool]
"""Return True if an object breaks a rule."""

_ISVC = "v1beta1/inference_service_validation.go"
_COMPONENT = "v1beta1/component.go"
_LLM = "v1alpha2/llm_inference_service_validation.go"
_RUNTIME = "servingruntime/servingruntime_webhook.go"
_AUTOSCALERS = {"hpa", "external", "keda", "none"}
_FRAMEWORKS = {"sklearn", "xgboost", "tensorflow", "pytorch", "triton", "onnx", "huggingface", "pmml", "lightgbm"}
_IMPLEMENTATIONS = _FRAMEWORKS | {"paddle", "model"}


def find_violations(obj: dict[str, Any]) -> list[str]:
    """Return the origins of all rules that an object breaks."""
    return [origin for origin, check in RULES.get(obj["kind"], {}).items() if check(obj)]


def find_update_violations(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return the origins of all rules that the update of an object breaks."""
    return [origin for origin, check in UPDATE_RULES.get(new["kind"], {}).items() if check(old, new)]


def _predictor(obj: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = obj["spec"]["predictor"]
    return found


def _canaries(obj: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = obj["spec"].get("canary", [])
    return found


def _predictors(obj: dict[str, Any]) -> list[dict[str, Any]]:
    return [_predictor(obj), *(canary["predictor"] for canary in _canaries(obj))]


def _uris(obj: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the storage URIs with their default path. The webhook checks those of the stable predictor only."""
    return [{"mountPath": "/mnt/models", **each} for each in _predictor(obj).get("storageUris", [])]


def _metrics(obj: dict[str, Any], kind: str | None = None) -> list[dict[str, Any]]:
    """Return the metrics that KEDA scales by, or those of one type."""
    if _annotation(obj, "autoscalerClass") != "keda":
        return []
    found = _predictor(obj).get("autoScaling", {}).get("metrics", [])
    return [each for each in found if kind is None or each["type"] == kind]


def _annotation(obj: dict[str, Any], name: str) -> str | None:
    return obj["metadata"].get("annotations", {}).get(f"serving.kserve.io/{name}")  # type: ignore[no-any-return]


def _sets_blocked_variable(containers: Iterable[dict[str, Any]]) -> bool:
    return any(each["name"] == "PYTHONPATH" for container in containers for each in container.get("env", []))


def find_common_parent(paths: list[str]) -> str:
    """Return the deepest directory that all paths have in common, as KServe's FindCommonParentPath does."""
    shared: list[str] = []
    for parts in zip(*(path.strip("/").split("/") for path in paths), strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return "/" + "/".join(shared)


def _has_no_common_parent(obj: dict[str, Any]) -> bool:
    paths = [each["mountPath"] for each in _uris(obj) if not each["uri"].startswith("pvc://")]
    return len(paths) > 1 and find_common_parent(paths) == "/"


def _repeats_claim_path(obj: dict[str, Any]) -> bool:
    claims = [each["mountPath"] for each in _uris(obj) if each["uri"].startswith("pvc://")]
    return len(_uris(obj)) - len(claims) > 1 and len(claims) > len(set(claims))


def _lacks_target(kind: str, field: str) -> Check:
    return lambda obj: any(
        each["external"]["target"].get("type") == kind and field not in each["external"]["target"]
        for each in _metrics(obj, "External")
        if "external" in each
    )


def _canary_sets(field: str) -> Check:
    return lambda obj: any(canary["predictor"].get(field) for canary in _canaries(obj))


def _any_predictor(holds: Check) -> Check:
    return lambda obj: any(map(holds, _predictors(obj)))


def _min_replicas(predictor: dict[str, Any]) -> int:
    return int(predictor.get("minReplicas", 1))


_INFERENCE_SERVICE: dict[str, Check] = {
    f"{_ISVC}:189": lambda obj: bool(_canaries(obj)) and _annotation(obj, "deploymentMode") != "Standard",
    f"{_ISVC}:203": lambda obj: any(not canary["predictor"].get("name") for canary in _canaries(obj)),
    f"{_ISVC}:207": lambda obj: (
        max(Counter(canary["predictor"].get("name") for canary in _canaries(obj)).values(), default=0) > 1
    ),
    f"{_ISVC}:212": lambda obj: any(
        canary["predictor"].get("name") == _predictor(obj).get("name", "") for canary in _canaries(obj)
    ),
    f"{_ISVC}:216": lambda obj: any(not 0 <= canary["trafficPercent"] <= 100 for canary in _canaries(obj)),
    f"{_ISVC}:231": _canary_sets("workerSpec"),
    f"{_ISVC}:236": _canary_sets("maxReplicas"),
    f"{_ISVC}:239": _canary_sets("scaleTarget"),
    f"{_ISVC}:242": _canary_sets("scaleMetric"),
    f"{_ISVC}:245": _canary_sets("autoScaling"),
    f"{_ISVC}:254": lambda obj: any(
        canary["predictor"].get("minReplicas", 0) > _min_replicas(_predictor(obj)) for canary in _canaries(obj)
    ),
    f"{_ISVC}:261": lambda obj: sum(canary["trafficPercent"] for canary in _canaries(obj)) > 100,
    f"{_ISVC}:296": lambda obj: bool(_predictor(obj).get("model", {}).get("name")),
    f"{_ISVC}:303": lambda obj: _sets_blocked_variable(_predictor(obj).get("containers", [])),
    f"{_ISVC}:307": lambda obj: _sets_blocked_variable(_predictor(obj).get("initContainers", [])),
    f"{_ISVC}:312": lambda obj: _sets_blocked_variable([_predictor(obj).get("model", {})]),
    f"{_ISVC}:470": lambda obj: not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", obj["metadata"]["name"]),
    f"{_ISVC}:482": lambda obj: _annotation(obj, "autoscalerClass") not in (None, *_AUTOSCALERS),
    f"{_ISVC}:516": _lacks_target("AverageValue", "averageValue"),
    f"{_ISVC}:520": _lacks_target("Value", "value"),
    f"{_ISVC}:557": lambda obj: (
        _annotation(obj, "autoscalerClass") == "hpa"
        and any(each["type"] != "Resource" for each in _predictor(obj).get("autoScaling", {}).get("metrics", []))
    ),
    f"{_ISVC}:568": lambda obj: _annotation(obj, "autoscalerClass") == "keda" and "scaleMetric" in _predictor(obj),
    f"{_ISVC}:602": lambda obj: any("external" not in each for each in _metrics(obj, "External")),
    f"{_ISVC}:605": lambda obj: any(
        not each["external"]["metric"].get("query") for each in _metrics(obj, "External") if "external" in each
    ),
    f"{_ISVC}:608": lambda obj: any(
        "value" not in each["external"]["target"] for each in _metrics(obj, "External") if "external" in each
    ),
    f"{_ISVC}:627": lambda obj: any(
        each["type"] not in ("Resource", "External", "PodMetric") for each in _metrics(obj)
    ),
    f"{_ISVC}:646": lambda obj: (
        _annotation(obj, "deploymentMode") != "Standard" and "deploymentStrategy" in _predictor(obj)
    ),
    f"{_ISVC}:730": lambda obj: any(not each["uri"] for each in _uris(obj)),
    f"{_ISVC}:734": lambda obj: any(each["mountPath"] == "/" for each in _uris(obj)),
    f"{_ISVC}:738": lambda obj: any(not each["mountPath"].startswith("/") for each in _uris(obj)),
    f"{_ISVC}:743": lambda obj: any(".." in each["mountPath"] for each in _uris(obj)),
    f"{_ISVC}:790": _repeats_claim_path,
    f"{_ISVC}:799": _has_no_common_parent,
    f"{_ISVC}:843": lambda obj: bool(_uris(obj)) and "storageUri" in _predictor(obj).get("model", {}),
    f"{_COMPONENT}:378": _any_predictor(lambda each: _min_replicas(each) < 0),
    f"{_COMPONENT}:381": _any_predictor(lambda each: each.get("maxReplicas", 0) < 0),
    f"{_COMPONENT}:384": _any_predictor(lambda each: 0 < each.get("maxReplicas", 0) < _min_replicas(each)),
    f"{_COMPONENT}:394": _any_predictor(lambda each: each.get("containerConcurrency", 0) < 0),
    f"{_COMPONENT}:416": _any_predictor(lambda each: len(_IMPLEMENTATIONS & each.keys()) != 1),
}


def _lora(obj: dict[str, Any]) -> dict[str, Any]:
    return obj["spec"]["model"].get("lora", {})  # type: ignore[no-any-return]


def _adapter_names(obj: dict[str, Any]) -> list[str]:
    return [adapter.get("name", "") for adapter in _lora(obj).get("adapters", [])]


def _scaling(obj: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the scaling of the workload, if it is set."""
    if "scaling" in obj["spec"]:
        yield obj["spec"]["scaling"]


def _keda(obj: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from (each["keda"] for each in _scaling(obj) if "keda" in each)


_LLM_INFERENCE_SERVICE: dict[str, Check] = {
    f"{_LLM}:268": lambda obj: "worker" in obj["spec"] and "parallelism" not in obj["spec"],
    f"{_LLM}:443": lambda obj: _lora(obj).get("maxRank", 1) < 1,
    f"{_LLM}:446": lambda obj: _lora(obj).get("maxAdapters", 1) < 1,
    f"{_LLM}:463": lambda obj: "" in _adapter_names(obj),
    f"{_LLM}:470": lambda obj: bool({".", ".."} & set(_adapter_names(obj))),
    f"{_LLM}:479": lambda obj: len(_adapter_names(obj)) > len(set(_adapter_names(obj))),
    f"{_LLM}:489": lambda obj: obj["spec"]["model"].get("name", obj["metadata"]["name"]) in _adapter_names(obj),
    f"{_LLM}:604": lambda obj: "replicas" in obj["spec"] and any(True for _ in _scaling(obj)),
    f"{_LLM}:613": lambda obj: any(each.get("minReplicas", 0) > each["maxReplicas"] for each in _scaling(obj)),
    f"{_LLM}:622": lambda obj: any({"wva", "keda"} <= each.keys() for each in _scaling(obj)),
    f"{_LLM}:631": lambda obj: any(not {"wva", "keda"} & each.keys() for each in _scaling(obj)),
    f"{_LLM}:688": lambda obj: any(not each.get("triggers") for each in _keda(obj)),
    f"{_LLM}:721": lambda obj: any(
        each.get("advanced", {}).get("horizontalPodAutoscalerConfig", {}).get("name") for each in _keda(obj)
    ),
    f"{_LLM}:743": lambda obj: any(
        "idleReplicaCount" in each.get("keda", {}) and "minReplicas" not in each for each in _scaling(obj)
    ),
    f"{_LLM}:750": lambda obj: any(
        each.get("keda", {}).get("idleReplicaCount", -1) >= each.get("minReplicas", 1 << 31) for each in _scaling(obj)
    ),
    # Not of a webhook: the controller ends with an error, and creates no pods.
    "v1alpha2/llmisvc/workload_lora.go:99": lambda obj: (
        obj["spec"].get("storageInitializer", {}).get("enabled") is False and bool(_lora(obj).get("adapters"))
    ),
}


def _has_two_priorities(obj: dict[str, Any]) -> bool:
    selected = [each for each in obj["spec"]["supportedModelFormats"] if each.get("autoSelect")]
    first = {each["name"]: each.get("priority") for each in reversed(selected)}
    return any(
        None not in (first[each["name"]], each.get("priority")) and first[each["name"]] != each.get("priority")
        for each in selected
    )


_SERVING_RUNTIME: dict[str, Check] = {
    f"{_RUNTIME}:171": _has_two_priorities,
    f"{_RUNTIME}:271": lambda obj: _sets_blocked_variable(obj["spec"]["containers"]),
}

RULES: dict[str, dict[str, Check]] = {
    "InferenceService": _INFERENCE_SERVICE,
    "LLMInferenceService": _LLM_INFERENCE_SERVICE,
    "ServingRuntime": _SERVING_RUNTIME,
}
"""Rules by kind, and by origin."""

UPDATE_RULES: dict[str, dict[str, Callable[[dict[str, Any], dict[str, Any]], bool]]] = {
    "InferenceService": {
        f"{_ISVC}:697": lambda old, new: _annotation(old, "deploymentMode") != _annotation(new, "deploymentMode"),
        f"{_ISVC}:704": lambda old, new: (
            _predictor(old).get("name") != _predictor(new).get("name")
            and _predictor(old).get("model", {}).get("storageUri") == _predictor(new).get("model", {}).get("storageUri")
        ),
    },
    "ServingRuntime": {
        f"{_RUNTIME}:213": lambda old, new: "workerSpec" in old["spec"] and "workerSpec" not in new["spec"],
    },
}
"""Rules of updates by kind, and by origin."""
