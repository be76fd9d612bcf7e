"""Describe what deployments need from Helm, choose the `helm` program or the Python library, and translate errors."""

import re
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol

from gumshoe.cluster.kubernetes_api import Cluster, ClusterError, ClusterUnavailableError, shorten
from gumshoe.errors import GumshoeError, UnavailableError, UsageError
from gumshoe.installation import install_command

TIMEOUT = 180.0  # seconds that Helm may take for one call
HISTORY = 20  # revisions that Helm keeps
_STALE = "another operation"  # part of Helm's message if an operation is running or was killed
_OUTAGES = (  # parts of Helm's messages, which are those of Go's network and of Kubernetes' API machinery
    "cluster unreachable",
    "connection re",
    "connection lost",
    "EOF",
    "i/o timeout",
    "handshake timeout",
    "no route to host",
    "network is unreachable",
    "is currently unable to handle",  # 503
    "unable to return a response in the time",  # 504
    "an error on the server",  # 500 without an explanation
    "etcdserver: ",
    "too many requests",  # 429
)

FailureReason = Literal["chart", "kubernetes", "not-found", "timeout", "values", "other"]


class HelmFailure(Exception):  # noqa: N818 - never reaches users; `translate_failure` makes an error of it
    """Report that a call of Helm failed, with Helm's message."""

    def __init__(self, message: str, reason: FailureReason = "other") -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Release:
    """One revision of a release."""

    name: str
    namespace: str
    revision: int
    status: str
    """Helm's status: deployed, superseded, failed, pending-upgrade, …"""
    chart_version: str
    updated: datetime


@dataclass(frozen=True, slots=True)
class HelmRelease:
    """The last revision of a release, with what Helm stores about it."""

    release: Release
    chart_name: str
    values: dict[str, Any]
    """The values that were given, without the chart's defaults."""
    manifest: str
    """The Kubernetes objects of the release, as YAML documents."""
    field_manager: str | None
    """Name under which Helm manages the objects' fields; None if it does not use server-side apply for them."""


@dataclass(frozen=True, slots=True)
class HelmChart:
    """A chart's version and default values."""

    version: str
    defaults: dict[str, Any]


class Helm(Protocol):
    """Helm, for one chart and the namespace of one cluster. All methods raise `HelmFailure`."""

    def read_chart(self) -> HelmChart:
        """Read the chart, without a cluster."""
        ...

    def check_schema(self, values: dict[str, Any]) -> None:
        """Check values against the chart's schema, without a cluster. Values that are required may be missing."""
        ...

    def render(self, name: str, values: dict[str, Any]) -> str:
        """Render the chart's objects as YAML documents, without a cluster. It checks the values."""
        ...

    def list_releases(self, chart_name: str) -> list[Release]:
        """Return the releases of charts of that name, in any status."""
        ...

    def find(self, name: str) -> HelmRelease | None:
        """Return a release, or None if it does not exist."""
        ...

    def list_history(self, name: str) -> list[Release]:
        """Return all revisions that Helm stores."""
        ...

    def get_values(self, name: str, revision: int) -> dict[str, Any]:
        """Return the values that were given for a revision."""
        ...

    def get_manifest(self, name: str, revision: int) -> str:
        """Return the objects of a revision, as YAML documents."""
        ...

    def install(self, name: str, values: dict[str, Any], description: str, *, create_namespace: bool) -> None:
        """Install the chart. This does not wait until the pods are ready, and nor do the other changes."""
        ...

    def upgrade(self, name: str, values: dict[str, Any], description: str) -> None:
        """Upgrade a release to the chart and exactly these values."""
        ...

    def rollback(self, name: str, revision: int) -> None:
        """Roll back to a revision."""
        ...

    def uninstall(self, name: str) -> None:
        """Uninstall a release and delete its history."""
        ...


def find_helm(chart: Path, cluster: Cluster) -> Helm | None:
    """Return the `helm` program if it is on the path, else the Python library if it is installed, else None."""
    from gumshoe.cluster.helm_library import HelmLibrary
    from gumshoe.cluster.helm_program import HelmProgram, find_program

    program = find_program()
    if program is not None:
        return HelmProgram(program, chart, cluster)
    return HelmLibrary(chart, cluster) if find_spec("helm_python") is not None else None


def open_helm(chart: Path, cluster: Cluster) -> Helm:
    """Return Helm as `find_helm` does.

    Raises:
        UsageError: if neither the program nor the library is installed.
    """
    helm = find_helm(chart, cluster)
    if helm is None:
        raise UsageError(
            "cluster.missing-dependency",
            "deployments require Helm: put the program helm, version 3 or 4, on the PATH "
            f"(https://helm.sh/docs/intro/install), or install its Python library: {install_command(extra='helm')}",
        )
    return helm


def translate_failure(failure: HelmFailure, cluster: Cluster) -> GumshoeError:
    """Translate a failure of Helm into an error with a code and advice."""
    message, reason = str(failure), failure.reason
    if reason == "timeout":
        return ClusterUnavailableError(
            "deploy.helm-timeout",
            f"Helm did not finish within {TIMEOUT:.0f} seconds; check that the cluster responds, then try again",
        )
    if reason == "not-found":
        return UsageError(
            "deploy.no-such-deployment",
            f"the deployment does not exist in namespace {cluster.namespace}: {shorten(message)}; list those that do "
            "with `gumshoe deployments`",
        )
    if _STALE in message:
        return UnavailableError(
            "deploy.change-in-progress", "another change of the release started at the same time; try again"
        )
    if reason == "values" or "execution error at" in message or "schema" in message:
        return UsageError(
            "deploy.values-rejected", f"the chart rejects the values: {_find_fault(message)}; correct them"
        )
    if reason == "chart":
        return UsageError(
            "deploy.chart-unreadable", f"the chart cannot be read: {shorten(message)}; name its directory with --chart"
        )
    if reason == "kubernetes" or any(each in message for each in _OUTAGES):
        return ClusterUnavailableError(
            "cluster.api-unhealthy", f"the Kubernetes API failed: {shorten(message)}; try again later"
        )
    return _translate_rejection(message, cluster)


def _translate_rejection(message: str, cluster: Cluster) -> GumshoeError:
    """Translate the message of a change that the cluster rejected."""
    if "onflict" in message:
        return GumshoeError(
            "deploy.conflict",
            f"another program changed fields that the chart manages: {shorten(message)}; undo that change, set the "
            "chart's value to it, e.g. --set agent.replicas=N after `kubectl scale`, or overwrite it with --force",
        )
    if "forbidden" in message:
        return ClusterError(
            "cluster.access-denied",
            f"Kubernetes denies access: {shorten(message)}; use a context or a service account that has this right",
        )
    if "no matches for kind" in message:
        return ClusterError(
            "deploy.missing-resource-kind",
            f"the cluster of namespace {cluster.namespace} lacks a resource kind that the chart needs: "
            f"{shorten(message)}; install KServe, or the component that provides the kind",
        )
    return GumshoeError("deploy.helm-failed", f"Helm failed: {shorten(message)}")


def _find_fault(message: str) -> str:
    """Return the chart's own error message, without its position in the templates."""
    own = re.search(r"execution error at \([^)]*\): (.+)", message, re.S)
    lines = [line.strip() for line in (own.group(1) if own else message).splitlines()]
    faults = [line for line in lines if line and not line.endswith(("schema(s) in the following chart(s):", ":"))]
    return shorten("; ".join(each.removeprefix("- ") for each in faults))
