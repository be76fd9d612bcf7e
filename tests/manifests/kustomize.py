"""Render the manifests with `kubectl kustomize`, and evaluate selectors and pod security."""

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.conftest import skip_missing

Object = dict[str, Any]
MANIFESTS = Path(__file__).parents[2] / "manifests"
NAMESPACE = "gumshoe"
"""Namespace of the overlays."""
OVERLAYS = sorted(each.name for each in (MANIFESTS / "overlays").iterdir())


def components() -> list[str]:
    """Return the names of the components for all clusters that need no file of the user, sorted."""
    return sorted(
        each.parent.name
        for each in MANIFESTS.glob("components/*/kustomization.yaml")
        if yaml.safe_load(each.read_text())["kind"] == "Component" and each.parent.name not in ("amd", "proxy", "trust")
    )


def build_overlay(directory: Path) -> str:
    kubectl = shutil.which("kubectl") or skip_missing("kubectl (1.25 or later)")
    done = subprocess.run([kubectl, "kustomize", directory], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def read(text: str) -> list[Object]:
    return list(yaml.load_all(text, yaml.CSafeLoader))  # a faster yaml.safe_load_all


@cache
def overlay(name: str) -> tuple[Object, ...]:
    """Return the objects of an overlay. They are shared: do not change them."""
    return tuple(read(build_overlay(MANIFESTS / "overlays" / name)))


def build_with_components(names: Sequence[str], directory: Path) -> list[Object]:
    """Return the objects of the base with these components."""
    return build_over(["base"], [f"components/{name}" for name in names], directory)


def build_over(
    resources: Sequence[str], parts: Sequence[str], directory: Path, *, namespace: str = NAMESPACE
) -> list[Object]:
    """Return the objects of an overlay in `directory` with these directories as resources and components."""
    directory.mkdir()

    def locate(part: str) -> str:
        return os.path.relpath(MANIFESTS / part, directory.resolve())

    made = {
        "namespace": namespace,
        "transformers": [locate("transformers")],
        "resources": [*map(locate, resources)],
        "components": [*map(locate, parts)],
    }
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(made))
    return read(build_overlay(directory))


def of_kind(objects: Iterable[Object], kind: str) -> dict[str, Any]:
    """Return the objects of a kind by name."""
    return {each["metadata"]["name"]: each for each in objects if each["kind"] == kind}


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return True if a label selector matches labels."""
    named = all(labels.get(name) == value for name, value in selector.get("matchLabels", {}).items())
    return named and all(
        each["operator"] == "In" and labels.get(each["key"]) in each["values"]
        for each in selector.get("matchExpressions", [])
    )


def find_violations(pod: Mapping[str, Any]) -> Iterator[str]:
    """Yield the violations of the Pod Security Standard "restricted" in a pod's specification.

    https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted
    """
    yield from (f"{each} is set" for each in ("hostNetwork", "hostPID", "hostIPC") if pod.get(each))
    allowed = {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
    for volume in pod.get("volumes", []):
        yield from (f"volume {volume['name']} is of a {kind}" for kind in volume.keys() - allowed - {"name"})
    whole = pod.get("securityContext", {})
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        name, own = container["name"], container.get("securityContext", {})
        either = {**whole, **own}
        if either.get("runAsNonRoot") is not True or either.get("runAsUser") == 0:
            yield f"{name} may run as root"
        if either.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
            yield f"{name} has no seccomp profile"
        if own.get("allowPrivilegeEscalation") is not False or own.get("privileged"):
            yield f"{name} may gain privileges"
        capabilities = own.get("capabilities", {})
        if "ALL" not in capabilities.get("drop", []) or set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}:
            yield f"{name} has capabilities"
        yield from (
            f"{name} has port {each['hostPort']} of its host"
            for each in container.get("ports", [])
            if "hostPort" in each
        )
