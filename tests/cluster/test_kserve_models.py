"""Test the conversion of KServe's resources to the models of its SDK."""

from typing import Any

import pytest

from gumshoe.cluster.kserve_models import read_model


def nest_service(spec: dict[str, Any], status: dict[str, Any]) -> dict[str, Any]:
    about = {"name": "mail", "namespace": "agents", "labels": {"a": "b"}}
    return {"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService", "metadata": about} | {
        "spec": spec,
        "status": status,
    }


def test_nested_models_of_kserve_and_kubernetes_are_read() -> None:
    model = {"modelFormat": {"name": "vLLM"}, "env": [{"name": "A", "value": "1"}], "args": ["--port=8080"]}
    predictor = {"minReplicas": 1, "model": model, "tolerations": [{"key": "gpu"}], "nodeSelector": {"zone": "a"}}
    status = {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}
    service = read_model("V1beta1InferenceService", nest_service({"predictor": predictor}, status), strict=True)
    assert (service.metadata.name, service.metadata.labels) == ("mail", {"a": "b"})
    read = service.spec.predictor
    assert (read.min_replicas, read.model.model_format.name, read.model.env[0].value) == (1, "vLLM", "1")
    assert (read.tolerations[0].key, read.node_selector, service.spec.canary) == ("gpu", {"zone": "a"}, None)
    assert (service.status.conditions[0].type, service.status.canary_statuses) == ("Ready", None)


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ({"predictor": {"modell": {}}}, "V1beta1PredictorSpec has no field modell"),
        ({"predictor": {"tolerations": [{"keys": "gpu"}]}}, "V1Toleration has no field keys"),
        ({"predictor": {"model": {}}}, "model_format"),
        ({"predictor": {"containers": [{"image": "vllm"}]}}, "name"),
    ],
)
def test_only_strict_conversion_rejects_faults(spec: dict[str, Any], fault: str) -> None:
    service = nest_service(spec, {})
    with pytest.raises(ValueError, match=fault):
        read_model("V1beta1InferenceService", service, strict=True)
    assert read_model("V1beta1InferenceService", service).metadata.name == "mail"


@pytest.mark.parametrize("data", [None, "text", 1, []])
def test_values_that_do_not_fit_stay_as_they_are(data: Any) -> None:
    assert read_model("V1beta1InferenceService", data) == data
    assert read_model("dict(str, V1Container)", data) == data
