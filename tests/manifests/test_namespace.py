"""Test the namespace: a Kubeflow profile's is taken over without conflicts, and another name is set in one place."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.fake_kubernetes import FakeKubernetes
from tests.conftest import skip_missing
from tests.manifests.kustomize import MANIFESTS, OVERLAYS, Object, build_over, of_kind, overlay

PROFILE = tuple(yaml.safe_load_all((Path(__file__).parent / "profile.yaml").read_text()))
ENFORCE = "pod-security.kubernetes.io/enforce"
PART_OF = "app.kubernetes.io/part-of"
OTHER = "team-a"


def apply(fake: FakeKubernetes, name: str) -> subprocess.CompletedProcess[str]:
    """Apply an overlay as documented."""
    kubectl = shutil.which("kubectl") or skip_missing("kubectl (1.25 or later)")
    command = [kubectl, f"--kubeconfig={fake.kubeconfig}", "apply", "--server-side", "--validate=false", "-k"]
    return subprocess.run([*command, MANIFESTS / "overlays" / name], capture_output=True, text=True, check=False)


@pytest.fixture
def profile(cluster: FakeKubernetes) -> FakeKubernetes:
    """Return a cluster in which Kubeflow has created the profile `gumshoe`."""
    for each in deepcopy(PROFILE):
        cluster.put(each)
    return cluster


@pytest.mark.ci
@pytest.mark.parametrize("name", OVERLAYS)
def test_an_overlay_applies_to_the_namespace_of_a_profile(profile: FakeKubernetes, name: str) -> None:
    before = deepcopy(profile.objects)
    done = apply(profile, name)
    assert (done.returncode, done.stderr) == (0, "")
    made = profile.objects["namespaces", "", "gumshoe"]["metadata"]
    for mode in ("enforce", "warn", "audit"):
        assert made["labels"][f"pod-security.kubernetes.io/{mode}"] == "restricted"
    for key, old in before.items():
        new = profile.objects[key]
        assert old["metadata"].get("labels", {}).items() <= new["metadata"].get("labels", {}).items()
        assert old["metadata"].get("annotations", {}).items() <= new["metadata"].get("annotations", {}).items()
        if old["kind"] != "Namespace":
            assert new == old, "an object of Kubeflow has changed"
    assert apply(profile, name).returncode == 0


def test_a_label_of_another_manager_is_a_conflict_until_it_is_changed(profile: FakeKubernetes) -> None:
    """Kubeflow's option `pss` sets a pod security level."""
    namespace = profile.objects["namespaces", "", "gumshoe"]["metadata"]
    namespace["labels"][ENFORCE] = "baseline"
    namespace["managedFields"][0]["fieldsV1"]["f:metadata"]["f:labels"][f"f:{ENFORCE}"] = {}
    done = apply(profile, "dev")
    assert done.returncode == 1
    assert ENFORCE in done.stderr
    namespace["labels"][ENFORCE] = "restricted"
    assert apply(profile, "dev").returncode == 0


@pytest.mark.parametrize("name", OVERLAYS)
def test_every_object_except_the_namespace_is_labeled(name: str) -> None:
    for each in overlay(name):
        labels = each["metadata"].get("labels", {})
        assert labels.get(PART_OF) == (None if each["kind"] == "Namespace" else "gumshoe"), each["metadata"]["name"]


def _list_strings(document: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(document, dict):
        for name, value in document.items():
            yield from _list_strings(value, f"{path}.{name}")
    elif isinstance(document, list):
        for each in document:
            yield from _list_strings(each, path)
    elif isinstance(document, str):
        yield path, document


def names_of_the_program(objects: tuple[Object, ...] | list[Object]) -> set[str]:
    """Return the fields that contain the word gumshoe, except names of objects and the label of all objects."""
    word = re.compile(r"(?<![\w./-])gumshoe(?![\w.-])")
    fields = (
        (each["kind"] + path, text)
        for each in objects
        if each["kind"] not in ("ConfigMap", "Pipeline", "PipelineVersion", "Role")
        for path, text in _list_strings(each, "")
    )
    ignored = (".metadata.name", f".{PART_OF}")
    return {path for path, text in fields if word.search(text) and not path.endswith(ignored)}


@pytest.mark.parametrize("name", OVERLAYS)
def test_another_namespace_is_set_in_one_place(name: str, tmp_path: Path) -> None:
    objects = build_over([f"overlays/{name}"], [], tmp_path / "mine", namespace=OTHER)
    before = overlay(name)
    assert len(objects) == len(before)
    cluster_scoped = {(each["kind"], each["metadata"]["name"]) for each in before if not _namespace(each)} - {
        ("Namespace", "gumshoe")
    }
    for each in objects:
        key = (each["kind"], each["metadata"]["name"])
        assert _namespace(each) == ("" if key in cluster_scoped or each["kind"] == "Namespace" else OTHER)
    assert set(of_kind(objects, "Namespace")) == {OTHER}
    bindings = [*of_kind(objects, "RoleBinding").values(), *of_kind(objects, "ClusterRoleBinding").values()]
    assert {each["namespace"] for one in bindings for each in one["subjects"] if each["kind"] == "ServiceAccount"} == {
        OTHER
    }
    assert names_of_the_program(objects) <= {
        "ClusterRole.rules.resourceNames",
        "Job.spec.template.spec.containers.command",
        "LocalQueue.spec.clusterQueue",
        "PrometheusRule.spec.groups.rules.expr",  # the name of the queue
    }
    rules = [each for one in of_kind(objects, "PrometheusRule").values() for each in _list_strings(one, "")]
    assert not [text for _, text in rules if re.search(r"(namespace|job)=~?\"gumshoe", text)]
    for queue in of_kind(objects, "ClusterQueue").values():
        assert queue["spec"]["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": OTHER}


def _namespace(made: Object) -> str:
    return str(made["metadata"].get("namespace", ""))


def test_alerts_select_the_namespace_of_the_overlay(tmp_path: Path) -> None:
    def expressions(objects: Any) -> list[str]:
        groups = of_kind(objects, "PrometheusRule")["gumshoe-training"]["spec"]["groups"]
        return [rule["expr"] for group in groups for rule in group["rules"]]

    other = expressions(build_over(["overlays/prod"], [], tmp_path / "mine", namespace=OTHER))
    own = expressions(overlay("prod"))
    assert [each.replace(f'namespace="{OTHER}"', 'namespace="gumshoe"') for each in other] == own
    assert all("namespace=" in each for each in own if "cluster_queue" not in each)
