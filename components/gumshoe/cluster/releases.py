"""Manage Helm releases of the agent chart. Each call has a deadline."""

import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import yaml

import gumshoe
from gumshoe.cluster.kubernetes_api import Cluster, ClusterError, ClusterUnavailableError, find_kubeconfig, shorten
from gumshoe.errors import GumshoeError, UnavailableError, UsageError
from gumshoe.installation import install_command

T = TypeVar("T")
CHART = "gumshoe-agent"
_SECONDS = 180.0  # timeout of a call
_RELEASE = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,51}[a-z0-9])?")  # names that Helm accepts
_MARGIN = 60.0  # seconds beyond the timeout after which a change counts as killed
_HISTORY = 20  # revisions that Helm keeps
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, if PyYAML was built with libyaml
_STALE = "another operation"  # part of Helm's message if an operation is running or was killed


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
class StoredRelease:
    """The last revision of a release, as Helm stores it."""

    release: Release
    values: dict[str, Any]
    """The values that were given, without the chart's defaults."""
    objects: list[dict[str, Any]]
    """The Kubernetes objects of the release."""

    def find_name(self, kind: str, ending: str = "") -> str | None:
        """Return the name of the object of a kind, or of the one whose name has this ending."""
        names = (each["metadata"]["name"] for each in self.objects if each["kind"] == kind)
        return next((name for name in names if name.endswith(ending)), None)


class Releases:
    """Manage the releases of a namespace.

    Raises:
        UsageError: if helm-python is not installed or the chart is missing.
    """

    def __init__(self, cluster: Cluster, chart: Path | None = None) -> None:
        if find_spec("helm_python") is None:
            raise UsageError(
                "cluster.missing-dependency", f"deployments require helm-python: {install_command(extra='deploy')}"
            )
        self.cluster = cluster
        self._place = chart or find_chart()

    def list_newest(self) -> list[Release]:
        """Return the last revision of each release of the chart, sorted by name."""
        found = self._call_helm(lambda: self._helm.list(all_states=True))
        newest: dict[str, Release] = {}
        for each in found:
            known = newest.get(each["name"])
            if each.get("chart_name") == CHART and (known is None or known.revision < each["revision"]):
                newest[each["name"]] = _parse_release(each)
        return sorted(newest.values(), key=lambda release: release.name)

    def find(self, name: str) -> StoredRelease | None:
        """Return a release, or None if it does not exist.

        Raises:
            UsageError: if the name is invalid, or the release belongs to another chart.
        """
        from helm_python import HelmNotFoundError

        check_name(name)

        try:
            status = self._call_helm(lambda: self._helm.status(name))
        except HelmNotFoundError:
            return None
        if status.get("chart_name") != CHART:
            raise UsageError(
                "deploy.release-of-other-chart",
                f"Helm release {name} belongs to chart {status.get('chart_name')}; choose another name",
            )
        objects = [each for each in yaml.load_all(status.get("manifest") or "", _LOADER) if each]
        return StoredRelease(_parse_release(status), self.get_values(name, status["revision"]), objects)

    def get(self, name: str) -> StoredRelease:
        """Return a release.

        Raises:
            UsageError: if it does not exist.
        """
        found = self.find(name)
        if found is None:
            known = ", ".join(each.name for each in self.list_newest()) or "none"
            raise UsageError(
                "deploy.no-such-deployment",
                f"deployment {name} does not exist in namespace {self.cluster.namespace}; deployments there: {known}",
            )
        return found

    def list_history(self, name: str) -> list[Release]:
        """Return all revisions that Helm stores, newest first."""
        found = map(_parse_release, self._call_helm(lambda: self._helm.history(name)))
        return sorted(found, key=lambda release: -release.revision)

    def get_values(self, name: str, revision: int) -> dict[str, Any]:
        """Return the values of a revision."""
        return dict(self._call_helm(lambda: self._helm.get_values(name, revision=revision)) or {})

    def check_values(self, name: str, values: dict[str, Any]) -> None:
        """Check that the chart accepts the values, before anything is changed.

        Raises:
            UsageError: if it does not; the message names the key.
        """
        self._call_helm(lambda: self._chart.render(values, name=name, namespace=self.cluster.namespace))

    def apply(self, name: str, values: dict[str, Any], description: str, *, create_namespace: bool = False) -> Release:
        """Install or upgrade a release with these values.

        Raises:
            UsageError: if the chart rejects them.
            UnavailableError: if another change is in progress.
            GumshoeError: if the cluster or Helm rejects the change.
        """
        stored = self.find(name)
        if stored and stored.release.status.startswith("pending-"):
            self._recover(stored.release)
        method = self._helm.upgrade if stored else self._helm.install
        more: dict[str, Any] = {"max_history": _HISTORY} if stored else {"create_namespace": create_namespace}
        applied: dict[str, Any] = self._call_helm(
            lambda: method(
                self._chart,
                name,
                values,
                namespace=self.cluster.namespace,
                timeout=round(_SECONDS),
                description=description,
                **more,
            )
        )
        return _parse_release(applied)

    def _recover(self, pending: Release) -> None:
        """Roll back a release whose last change was killed: Helm accepts no other change before that.

        Raises:
            UnavailableError: if the change may still be in progress.
        """
        age = (datetime.now(UTC) - pending.updated).total_seconds()
        if age < _SECONDS + _MARGIN:
            minutes = (_SECONDS + _MARGIN - age) / 60
            raise UnavailableError(
                "deploy.change-in-progress",
                f"another change of {pending.name} is in progress or was killed: {pending.status}; try again in "
                f"{minutes:.0f} minutes, or run `gumshoe rollback {pending.name} --revision N` with a revision from "
                f"`gumshoe deployments show {pending.name}`",
            )
        complete = (each for each in self.list_history(pending.name) if each.status in ("deployed", "superseded"))
        self.rollback(pending.name, next(complete, pending).revision)

    def rollback(self, name: str, revision: int) -> None:
        """Roll back to a revision, even after an operation was killed.

        Raises:
            UsageError: if the revision does not exist.
            GumshoeError: if the cluster or Helm rejects the change.
        """
        known = [each.revision for each in self.list_history(name)]
        if revision not in known:
            raise UsageError(
                "deploy.no-such-revision",
                f"revision {revision} of {name} does not exist; use one of {', '.join(map(str, known))}",
            )
        self._call_helm(lambda: self._helm.rollback(name, version=revision, timeout=round(_SECONDS)))

    def remove(self, name: str) -> None:
        """Uninstall a release and delete its history."""
        self._call_helm(lambda: self._helm.uninstall(name, timeout=round(_SECONDS)))

    @property
    def chart_version(self) -> str:
        return str(self._chart.version)

    @property
    def defaults(self) -> dict[str, Any]:
        """The chart's default values."""
        return dict(self._chart.values)

    @property
    def chart_directory(self) -> Path:
        """Directory of the chart."""
        return self._place

    @cached_property
    def _helm(self) -> Any:
        from helm_python import Config

        self.cluster.check()  # Helm has no timeout if a cluster does not answer
        place = find_kubeconfig()
        one = place if place and os.pathsep not in place else None  # Helm reads several only from the environment
        return Config(
            namespace=self.cluster.namespace,
            kube_context=self.cluster.context,
            kubeconfig_path=Path(one).expanduser() if one else None,
        )

    @cached_property
    def _chart(self) -> Any:
        from helm_python import Chart

        return self._call_helm(lambda: Chart.load(self._place))

    def _call_helm(self, call: Callable[[], T]) -> T:
        """Call Helm with a deadline, and translate its errors.

        Raises:
            ClusterUnavailableError: if Helm does not finish in time.
            HelmNotFoundError: if the release does not exist.
        """
        from helm_python import HelmError

        try:
            return _run_with_deadline(call)
        except HelmError as error:
            raise _translate_error(error, self.cluster) from None


def check_name(name: str) -> None:
    """Check the name of a release.

    Raises:
        UsageError: if Helm does not accept it.
    """
    if not _RELEASE.fullmatch(name):
        raise UsageError(
            "deploy.invalid-name",
            f"{name!r} is not a valid name of a Helm release; use at most 53 lower-case letters, digits and dashes",
        )


def check_keys(values: dict[str, Any]) -> None:
    """Check that Gumshoe's own chart accepts these values, as far as possible without the other ones.

    Raises:
        UsageError: if it does not; the message names the key.
    """
    if find_spec("helm_python") is None:
        return
    from helm_python import Chart, HelmError

    try:
        Chart.load(find_chart()).validate_schema(values)
    except HelmError as error:
        raise _values_error(error) from None


def find_chart() -> Path:
    """Return the directory of Gumshoe's own chart, in the package or in the repository.

    Raises:
        UsageError: if neither contains it.
    """
    package = Path(gumshoe.__file__).parent
    for place in (package / "charts" / "agent", package.parents[1] / "charts" / "agent"):
        if (place / "Chart.yaml").is_file():
            return place
    raise UsageError(
        "deploy.no-chart",
        "this installation of Gumshoe does not contain the Helm chart; name its directory with --chart",
    )


def _run_with_deadline(call: Callable[[], T]) -> T:
    """Run a call that cannot be interrupted in a thread, which is abandoned after the deadline."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_SECONDS + 10)
    if errors:
        raise errors[0]
    if not results:
        raise ClusterUnavailableError(
            "deploy.helm-timeout",
            f"Helm did not finish within {_SECONDS:.0f} seconds; check that the cluster responds, then try again",
        )
    return results[0]


def _translate_error(error: Exception, cluster: Cluster) -> Exception:
    """Translate an error of Helm into one with a code and advice."""
    from helm_python import HelmChartLoadError, HelmKubeError, HelmNotFoundError, HelmRenderError, HelmValuesError

    message = str(error)
    if isinstance(error, HelmNotFoundError):
        return error
    if _STALE in message:
        return UnavailableError(
            "deploy.change-in-progress", "another change of the release started at the same time; try again"
        )
    if isinstance(error, HelmRenderError | HelmValuesError) or "execution error at" in message or "schema" in message:
        return _values_error(error)
    if isinstance(error, HelmChartLoadError):
        return UsageError(
            "deploy.chart-unreadable", f"the chart cannot be read: {shorten(message)}; name its directory with --chart"
        )
    if isinstance(error, HelmKubeError) or "connection re" in message or "EOF" in message or "i/o timeout" in message:
        return ClusterUnavailableError(
            "cluster.api-unhealthy", f"the Kubernetes API failed: {shorten(message)}; try again later"
        )
    if "onflict" in message:
        return GumshoeError(
            "deploy.conflict",
            f"another program changed fields that the chart manages: {shorten(message)}; undo that change, or set the "
            "chart's value to it, e.g. --set agent.replicas=N after `kubectl scale`",
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


def _values_error(error: Exception) -> UsageError:
    return UsageError(
        "deploy.values-rejected", f"the chart rejects the values: {_extract_reason(str(error))}; correct them"
    )


def _extract_reason(message: str) -> str:
    """Return the chart's own error message, without its position in the templates."""
    own = re.search(r"execution error at \([^)]*\): (.+)", message, re.S)
    lines = [line.strip() for line in (own.group(1) if own else message).splitlines()]
    faults = [line for line in lines if line and not line.endswith(("schema(s) in the following chart(s):", ":"))]
    return shorten("; ".join(each.removeprefix("- ") for each in faults))


def _parse_release(found: dict[str, Any]) -> Release:
    return Release(
        found["name"],
        found["namespace"],
        found["revision"],
        found["status"],
        found.get("chart_version", ""),
        datetime.fromisoformat(found["deployed_at"]),
    )
