"""Test Argo CD's Application, for which there is no schema here, and the sync settings of resources."""

from typing import Any

import pytest
import yaml

from tests.manifests.kustomize import MANIFESTS, of_kind, overlay

# https://argo-cd.readthedocs.io/en/stable/user-guide/application-specification/: the fields that are used.
FIELDS: dict[str, Any] = {
    "project": str,
    "source": {"repoURL": str, "targetRevision": str, "path": str},
    "destination": {"server": str},
    "syncPolicy": {
        "automated": {"prune": bool, "selfHeal": bool},
        "syncOptions": [str],
        "retry": {"limit": int, "backoff": {"duration": str, "factor": int, "maxDuration": str}},
    },
    "ignoreDifferences": [{"group": str, "kind": str, "name": str, "jsonPointers": [str]}],
}
OPTIONS = {"ServerSideApply", "SkipDryRunOnMissingResource", "RespectIgnoreDifferences", "PruneLast"}


def fits(value: Any, fields: Any) -> bool:
    if isinstance(fields, dict):
        return isinstance(value, dict) and all(
            name in fields and fits(each, fields[name]) for name, each in value.items()
        )
    if isinstance(fields, list):
        return isinstance(value, list) and all(fits(each, fields[0]) for each in value)
    return isinstance(value, fields)


def test_the_application_is_valid_and_deploys_an_existing_overlay() -> None:
    made = yaml.safe_load((MANIFESTS / "components" / "argocd" / "application.yaml").read_text())
    assert (made["apiVersion"], made["kind"]) == ("argoproj.io/v1alpha1", "Application")
    assert fits(made["spec"], FIELDS)
    assert {each.partition("=")[0] for each in made["spec"]["syncPolicy"]["syncOptions"]} == OPTIONS
    assert (MANIFESTS.parent / made["spec"]["source"]["path"] / "kustomization.yaml").is_file()


@pytest.mark.parametrize("name", ["prod", "prod-k8s-native"])
def test_the_namespace_is_never_deleted(name: str) -> None:
    (namespace,) = of_kind(overlay(name), "Namespace").values()
    options = namespace["metadata"]["annotations"]["argocd.argoproj.io/sync-options"]
    assert set(options.split(",")) == {"Prune=false", "Delete=false"}


def test_pipeline_versions_are_never_changed_or_deleted() -> None:
    made = yaml.safe_load((MANIFESTS / "components" / "argocd" / "application.yaml").read_text())
    ignored = {(each["group"], each["kind"]): each["jsonPointers"] for each in made["spec"]["ignoreDifferences"]}
    assert ignored["pipelines.kubeflow.org", "PipelineVersion"] == ["/spec"]
    pipelines, versions = (of_kind(overlay("prod-k8s-native"), kind) for kind in ("Pipeline", "PipelineVersion"))
    for each in versions.values():
        notes = each["metadata"]["annotations"]
        assert notes["argocd.argoproj.io/sync-options"] == "Prune=false"
        before = pipelines[each["spec"]["pipelineName"]]["metadata"]["annotations"]["argocd.argoproj.io/sync-wave"]
        assert int(before) < int(notes["argocd.argoproj.io/sync-wave"])
