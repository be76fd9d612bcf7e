"""Test the chart's objects against the rules of KServe's webhooks, and that each rule detects a bad object."""

from copy import deepcopy
from functools import reduce
from typing import Any

import pytest

from tests.charts.kserve_webhooks import RULES, UPDATE_RULES, find_update_violations, find_violations
from tests.charts.test_agent_chart import MODES, chart, merge, of_kind, render, values_of

CHANGES: dict[str, dict[str, Any]] = {
    "as they are": {},
    "scaled": {"serving": {"replicas": {"min": 1, "max": 4}, "runtimeCanary": {"percent": 0}}},
    "runtime canary": {"serving": {"replicas": {"min": 2, "max": 2}, "runtimeCanary": {"percent": 20, "tag": "v1"}}},
    "restricted": {"serving": {"restricted": True}},
    "claims": {"model": {"uri": "pvc://models/qwen"}, "previous": {"name": "r6", "uri": "pvc://models/adapters/r6"}},
}
DELETED = object()
"""Value of a change that deletes the field."""

_CANARY, _METRIC = "spec.canary.0", "spec.predictor.autoScaling.metrics.0"
_KEDA = "spec.scaling.keda"
BROKEN: dict[str, dict[str, list[tuple[str, Any]]]] = {
    "InferenceService": {
        "189": [("metadata.annotations.serving~kserve~io/deploymentMode", "Knative")],
        "203": [(f"{_CANARY}.predictor.name", "")],
        "207": [("spec.canary.1", {"predictor": {"name": "canary", "model": {}}, "trafficPercent": 1})],
        "212": [("spec.predictor.name", "canary")],
        "216": [(f"{_CANARY}.trafficPercent", -1)],
        "231": [(f"{_CANARY}.predictor.workerSpec", {"pipelineParallelSize": 2})],
        "236": [(f"{_CANARY}.predictor.maxReplicas", 1)],
        "239": [(f"{_CANARY}.predictor.scaleTarget", 1)],
        "242": [(f"{_CANARY}.predictor.scaleMetric", "cpu")],
        "245": [(f"{_CANARY}.predictor.autoScaling", {"metrics": [{"type": "External"}]})],
        "254": [(f"{_CANARY}.predictor.minReplicas", 5)],
        "261": [("spec.canary.1", {"predictor": {"name": "other", "model": {}}, "trafficPercent": 90})],
        "296": [("spec.predictor.model.name", "vllm")],
        "303": [("spec.predictor.containers", [{"name": "more", "env": [{"name": "PYTHONPATH", "value": "/x"}]}])],
        "307": [("spec.predictor.initContainers", [{"name": "more", "env": [{"name": "PYTHONPATH", "value": "/x"}]}])],
        "312": [("spec.predictor.model.env.0.name", "PYTHONPATH")],
        "470": [("metadata.name", "2026-mail")],
        "482": [("metadata.annotations.serving~kserve~io/autoscalerClass", "kpa")],
        "516": [(f"{_METRIC}.external.target", {"type": "AverageValue", "value": "4"})],
        "520": [(f"{_METRIC}.external.target", {"type": "Value", "averageValue": "4"})],
        "557": [("metadata.annotations.serving~kserve~io/autoscalerClass", "hpa")],
        "568": [("spec.predictor.scaleMetric", "cpu")],
        "602": [(f"{_METRIC}.external", DELETED)],
        "605": [(f"{_METRIC}.external.metric.query", "")],
        "608": [(f"{_METRIC}.external.target", {"type": "AverageValue", "averageValue": "4"})],
        "627": [(f"{_METRIC}.type", "Object")],
        "646": [("metadata.annotations.serving~kserve~io/deploymentMode", DELETED)],
        "730": [("spec.predictor.storageUris.0.uri", "")],
        "734": [("spec.predictor.storageUris.0.mountPath", "/")],
        "738": [("spec.predictor.storageUris.0.mountPath", "mnt/models")],
        "743": [("spec.predictor.storageUris.0.mountPath", "/mnt/../models")],
        "790": [(f"spec.predictor.storageUris.{i}", {"uri": f"pvc://{i}", "mountPath": "/a"}) for i in (2, 3)],
        "799": [("spec.predictor.storageUris.0.mountPath", "/models")],
        "843": [("spec.predictor.model.storageUri", "s3://bucket/model")],
        "378": [("spec.predictor.minReplicas", -1)],
        "381": [("spec.predictor.maxReplicas", -1)],
        "384": [("spec.predictor.minReplicas", 9)],
        "394": [("spec.predictor.containerConcurrency", -1)],
        "416": [("spec.predictor.sklearn", {})],
    },
    "LLMInferenceService": {
        "268": [("spec.worker", {"containers": []})],
        "443": [("spec.model.lora", {"maxRank": 0})],
        "446": [("spec.model.lora", {"maxAdapters": 0})],
        "463": [("spec.model.lora", {"adapters": [{"uri": "s3://a"}]})],
        "470": [("spec.model.lora", {"adapters": [{"name": "..", "uri": "s3://a"}]})],
        "479": [("spec.model.lora", {"adapters": [{"name": "a", "uri": "s3://a"}, {"name": "a", "uri": "s3://b"}]})],
        "489": [("spec.model.lora", {"adapters": [{"name": "base", "uri": "s3://a"}]})],
        "604": [("spec.replicas", 1)],
        "613": [("spec.scaling.minReplicas", 9)],
        "622": [("spec.scaling.wva", {})],
        "631": [(_KEDA, DELETED)],
        "688": [(f"{_KEDA}.triggers", [])],
        "721": [(f"{_KEDA}.advanced", {"horizontalPodAutoscalerConfig": {"name": "mine"}})],
        "743": [(f"{_KEDA}.idleReplicaCount", 0), ("spec.scaling.minReplicas", DELETED)],
        "750": [(f"{_KEDA}.idleReplicaCount", 1)],
        "99": [("spec.model.lora", {"adapters": [{"name": "a", "uri": "s3://a"}]})],
    },
    "ServingRuntime": {
        "171": [("spec.supportedModelFormats", [{"name": "a", "autoSelect": True, "priority": i} for i in (1, 2)])],
        "271": [("spec.containers.0.env", [{"name": "PYTHONPATH", "value": "/x"}])],
    },
}
"""Changes that break each rule, by kind and by the line of its origin. A ~ in a path is a dot."""


def change(obj: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return a copy of an object with a field set, appended or, for `DELETED`, deleted."""
    changed = deepcopy(obj)
    *parents, last = [each.replace("~", ".") for each in path.split(".")]
    place: Any = changed
    for key in parents:
        place = place[int(key) if isinstance(place, list) else key]
    if isinstance(place, list):
        place[int(last) : int(last) + 1] = [value]
    elif value is DELETED:
        del place[last]
    else:
        place[last] = value
    return changed


def valid_object(kind: str, origin: str) -> dict[str, Any]:
    """Return an object of the chart that has the fields of a rule."""
    canary = BROKEN[kind][origin][0][0].startswith("spec.canary") or origin in ("189", "212")
    replicas = {"min": 1, "max": 1 if canary else 3}
    serving = {"replicas": replicas, "strategy": "Recreate"} | ({"runtimeCanary": {"percent": 20}} if canary else {})
    if kind == "LLMInferenceService":
        return dict(of_kind(render(values_of("llmisvc")), kind))
    return dict(of_kind(render(merge(values_of("standard"), {"serving": serving})), kind))


@pytest.mark.parametrize("changes", CHANGES)
@pytest.mark.parametrize("mode", MODES)
def test_the_objects_pass_the_webhooks(mode: str, changes: str) -> None:
    values = merge(values_of(mode), CHANGES[changes])
    if values.get("serving", {}).get("mode", "standard") != "standard":
        values["serving"].pop("runtimeCanary", None)
    for obj in render(values).values():
        assert find_violations(obj) == [], obj["metadata"]["name"]


@pytest.mark.parametrize(("kind", "line"), [(kind, line) for kind, lines in BROKEN.items() for line in lines])
def test_every_rule_detects_a_bad_object(kind: str, line: str) -> None:
    good = valid_object(kind, line)
    assert find_violations(good) == []
    bad = reduce(lambda obj, each: change(obj, *each), BROKEN[kind][line], good)
    assert line in [origin.rpartition(":")[2] for origin in find_violations(bad)]


def test_there_is_a_bad_object_for_every_rule() -> None:
    lines = {kind: [origin.rpartition(":")[2] for origin in rules] for kind, rules in RULES.items()}
    assert {kind: sorted(found) for kind, found in BROKEN.items()} == {k: sorted(found) for k, found in lines.items()}


@pytest.mark.parametrize("changes", CHANGES)
def test_every_change_of_values_passes_as_an_update(changes: str) -> None:
    before, after = render(values_of("standard")), render(merge(values_of("standard"), CHANGES[changes]))
    for key in before.keys() & after.keys():
        assert find_update_violations(before[key], after[key]) == [], key


def test_the_rules_of_updates_detect_bad_ones() -> None:
    objects = render(values_of("standard"))
    service, runtime = (of_kind(objects, kind) for kind in ("InferenceService", "ServingRuntime"))
    updates = [
        (service, change(service, "metadata.annotations.serving~kserve~io/deploymentMode", "Knative")),
        (service, change(service, "spec.predictor.name", "other")),
        (change(runtime, "spec.workerSpec", {"containers": []}), runtime),
    ]
    found = [origin for old, new in updates for origin in find_update_violations(old, new)]
    assert found == [origin for rules in UPDATE_RULES.values() for origin in rules]


@pytest.mark.parametrize("name", ["2026-mail", "my.mail", "-mail"])
def test_a_release_name_that_kserve_would_refuse_is_refused(name: str) -> None:
    with pytest.raises(Exception, match="fullnameOverride"):
        chart().render(values_of("standard"), name=name, namespace="agents")


def test_the_names_of_kserve_s_objects_are_short_enough() -> None:
    values = merge(values_of("standard"), {"fullnameOverride": "a" * 40, "serving": {"runtimeCanary": {"percent": 5}}})
    service = of_kind(render(values), "InferenceService")
    names = [
        f"{service['metadata']['name']}-{each['predictor']['name']}-predictor" for each in service["spec"]["canary"]
    ]
    assert all(len(name) <= 63 for name in names)
