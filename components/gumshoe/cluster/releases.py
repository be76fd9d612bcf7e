"""Helm releases of the agent's chart: what Helm keeps of them, and changes to them. Each call has a deadline."""

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
from gumshoe.cluster.kubernetes_api import Cluster, ClusterError, ClusterUnavailableError, kubeconfig, short
from gumshoe.errors import GumshoeError, UnavailableError, UsageError

T = TypeVar("T")
CHART = "gumshoe-agent"
_SECONDS = 180.0  # of a call
_RELEASE = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,51}[a-z0-9])?")  # what Helm takes
_MARGIN = 60.0  # seconds, until a change is taken for killed
_HISTORY = 20  # revisions that Helm keeps
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, if PyYAML was built with libyaml
_STALE = "another operation"  # how Helm says that an operation is going on, or was killed


@dataclass(frozen=True, slots=True)
class Release:
    """One revision of a release."""

    name: str
    namespace: str
    revision: int
    status: str
    """As Helm names it: deployed, superseded, failed, pending-upgrade, …"""
    chart_version: str
    updated: datetime


@dataclass(frozen=True, slots=True)
class StoredRelease:
    """What Helm keeps of a release's last revision."""

    release: Release
    values: dict[str, Any]
    """Those that were given; the chart has defaults for the others."""
    objects: list[dict[str, Any]]
    """What it is made of."""

    def of_kind(self, kind: str, ending: str = "") -> str | None:
        """The name of its object of a kind, or the one of them whose name ends so."""
        names = (each["metadata"]["name"] for each in self.objects if each["kind"] == kind)
        return next((name for name in names if name.endswith(ending)), None)


class Releases:
    """The releases of a namespace.

    Raises:
        UsageError: Helm's library is not installed, or the chart is not there.
    """

    def __init__(self, cluster: Cluster, chart: Path | None = None) -> None:
        if find_spec("helm_python") is None:
            raise UsageError(
                "cluster.missing-dependency", "deployments require helm-python: pip install 'gumshoe-agents[deploy]'"
            )
        self.cluster = cluster
        self._place = chart or own_chart()

    def newest(self) -> list[Release]:
        """The last revision of each release of the chart, by name."""
        found = self._told(lambda: self._helm.list(all_states=True))
        newest: dict[str, Release] = {}
        for each in found:
            known = newest.get(each["name"])
            if each.get("chart_name") == CHART and (known is None or known.revision < each["revision"]):
                newest[each["name"]] = _release(each)
        return sorted(newest.values(), key=lambda release: release.name)

    def find(self, name: str) -> StoredRelease | None:
        """A release; None where there is none.

        Raises:
            UsageError: Helm takes no such name, or that release is of another chart.
        """
        from helm_python import HelmNotFoundError

        check_name(name)

        try:
            status = self._told(lambda: self._helm.status(name))
        except HelmNotFoundError:
            return None
        if status.get("chart_name") != CHART:
            raise UsageError(
                "deploy.release-of-other-chart",
                f"Helm release {name} belongs to chart {status.get('chart_name')}; choose another name",
            )
        objects = [each for each in yaml.load_all(status.get("manifest") or "", _LOADER) if each]
        return StoredRelease(_release(status), self.values(name, status["revision"]), objects)

    def get(self, name: str) -> StoredRelease:
        """
        Raises:
            UsageError: there is no such release.
        """
        found = self.find(name)
        if found is None:
            known = ", ".join(each.name for each in self.newest()) or "none"
            raise UsageError(
                "deploy.no-such-deployment",
                f"deployment {name} does not exist in namespace {self.cluster.namespace}; deployments there: {known}",
            )
        return found

    def history(self, name: str) -> list[Release]:
        """All revisions that Helm keeps, the newest first."""
        found = map(_release, self._told(lambda: self._helm.history(name)))
        return sorted(found, key=lambda release: -release.revision)

    def values(self, name: str, revision: int) -> dict[str, Any]:
        """What a revision was given."""
        return dict(self._told(lambda: self._helm.get_values(name, revision=revision)) or {})

    def check(self, name: str, values: dict[str, Any]) -> None:
        """See whether the chart takes such values, before anything is changed.

        Raises:
            UsageError: it does not; the message names the key.
        """
        self._told(lambda: self._chart.render(values, name=name, namespace=self.cluster.namespace))

    def put(self, name: str, values: dict[str, Any], description: str, *, create_namespace: bool = False) -> Release:
        """Install a release with these values, or change it to them.

        Raises:
            UsageError: the chart rejects them.
            UnavailableError: another change is in progress.
            GumshoeError: the cluster, or Helm, refuses.
        """
        kept = self.find(name)
        if kept and kept.release.status.startswith("pending-"):
            self._recover(kept.release)
        put = self._helm.upgrade if kept else self._helm.install
        more: dict[str, Any] = {"max_history": _HISTORY} if kept else {"create_namespace": create_namespace}
        told: dict[str, Any] = self._told(
            lambda: put(
                self._chart,
                name,
                values,
                namespace=self.cluster.namespace,
                timeout=round(_SECONDS),
                description=description,
                **more,
            )
        )
        return _release(told)

    def _recover(self, pending: Release) -> None:
        """Take a release up whose last change was killed: Helm takes no other until it is rolled back.

        Raises:
            UnavailableError: the change may still be in progress.
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
        whole = (each for each in self.history(pending.name) if each.status in ("deployed", "superseded"))
        self.rollback(pending.name, next(whole, pending).revision)

    def rollback(self, name: str, revision: int) -> None:
        """Make a new revision that is as that one was, also where an operation was killed.

        Raises:
            UsageError: there is no such revision.
            GumshoeError: the cluster, or Helm, refuses.
        """
        known = [each.revision for each in self.history(name)]
        if revision not in known:
            raise UsageError(
                "deploy.no-such-revision",
                f"revision {revision} of {name} does not exist; use one of {', '.join(map(str, known))}",
            )
        self._told(lambda: self._helm.rollback(name, version=revision, timeout=round(_SECONDS)))

    def remove(self, name: str) -> None:
        """Take a release away, with all that Helm keeps of it."""
        self._told(lambda: self._helm.uninstall(name, timeout=round(_SECONDS)))

    @property
    def chart_version(self) -> str:
        return str(self._chart.version)

    @property
    def defaults(self) -> dict[str, Any]:
        """The chart's own values."""
        return dict(self._chart.values)

    @property
    def place(self) -> Path:
        """The directory of the chart."""
        return self._place

    @cached_property
    def _helm(self) -> Any:
        from helm_python import Config

        self.cluster.check()  # Helm waits for ever where a cluster is silent
        place = kubeconfig()
        one = place if place and os.pathsep not in place else None  # of several Helm sees the environment's alone
        return Config(
            namespace=self.cluster.namespace,
            kube_context=self.cluster.context,
            kubeconfig_path=Path(one).expanduser() if one else None,
        )

    @cached_property
    def _chart(self) -> Any:
        from helm_python import Chart

        return self._told(lambda: Chart.load(self._place))

    def _told(self, call: Callable[[], T]) -> T:
        """What Helm says, in time.

        Raises:
            ClusterUnavailableError: it says nothing.
            HelmNotFoundError: of what is asked for there is none.
        """
        from helm_python import HelmError

        try:
            return _in_time(call)
        except HelmError as error:
            raise _explained(error, self.cluster) from None


def check_name(name: str) -> None:
    """
    Raises:
        UsageError: Helm takes no such name.
    """
    if not _RELEASE.fullmatch(name):
        raise UsageError(
            "deploy.invalid-name",
            f"{name!r} is not a valid name of a Helm release; use at most 53 lower-case letters, digits and dashes",
        )


def check_keys(values: dict[str, Any]) -> None:
    """See whether the chart that comes with Gumshoe knows such values, as far as that can be told without the others.

    Raises:
        UsageError: it does not; the message names the key.
    """
    if find_spec("helm_python") is None:
        return
    from helm_python import Chart, HelmError

    try:
        Chart.load(own_chart()).validate_schema(values)
    except HelmError as error:
        raise _rejected_values(error) from None


def own_chart() -> Path:
    """The directory of the chart that comes with Gumshoe: in its package, or in its repository.

    Raises:
        UsageError: it is in neither.
    """
    package = Path(gumshoe.__file__).parent
    for place in (package / "charts" / "agent", package.parents[1] / "charts" / "agent"):
        if (place / "Chart.yaml").is_file():
            return place
    raise UsageError(
        "deploy.no-chart",
        "this installation of Gumshoe does not contain the Helm chart; name its directory with --chart",
    )


def _in_time(call: Callable[[], T]) -> T:
    """Run what cannot be interrupted in a thread of its own, which is left behind where it does not end."""
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


def _explained(error: Exception, cluster: Cluster) -> Exception:
    """What Helm says, as what it means for whoever asked."""
    from helm_python import HelmChartLoadError, HelmKubeError, HelmNotFoundError, HelmRenderError, HelmValuesError

    said = str(error)
    if isinstance(error, HelmNotFoundError):
        return error
    if _STALE in said:
        return UnavailableError(
            "deploy.change-in-progress", "another change of the release started at the same time; try again"
        )
    if isinstance(error, HelmRenderError | HelmValuesError) or "execution error at" in said or "schema" in said:
        return _rejected_values(error)
    if isinstance(error, HelmChartLoadError):
        return UsageError(
            "deploy.chart-unreadable", f"the chart cannot be read: {short(said)}; name its directory with --chart"
        )
    if isinstance(error, HelmKubeError) or "connection re" in said or "EOF" in said or "i/o timeout" in said:
        return ClusterUnavailableError(
            "cluster.api-unhealthy", f"the Kubernetes API failed: {short(said)}; try again later"
        )
    if "onflict" in said:
        return GumshoeError(
            "deploy.conflict",
            f"another program changed fields that the chart manages: {short(said)}; undo that change, or set the "
            "chart's value to it, e.g. --set agent.replicas=N after `kubectl scale`",
        )
    if "forbidden" in said:
        return ClusterError(
            "cluster.access-denied",
            f"Kubernetes denies access: {short(said)}; use a context or a service account that has this right",
        )
    if "no matches for kind" in said:
        return ClusterError(
            "deploy.missing-resource-kind",
            f"the cluster of namespace {cluster.namespace} lacks a resource kind that the chart needs: {short(said)}; "
            "install KServe, or the component that provides the kind",
        )
    return GumshoeError("deploy.helm-failed", f"Helm failed: {short(said)}")


def _rejected_values(error: Exception) -> UsageError:
    return UsageError("deploy.values-rejected", f"the chart rejects the values: {_fault(str(error))}; correct them")


def _fault(said: str) -> str:
    """The chart's own words, without where in its templates they stand."""
    own = re.search(r"execution error at \([^)]*\): (.+)", said, re.S)
    lines = [line.strip() for line in (own.group(1) if own else said).splitlines()]
    faults = [line for line in lines if line and not line.endswith(("schema(s) in the following chart(s):", ":"))]
    return short("; ".join(each.removeprefix("- ") for each in faults))


def _release(told: dict[str, Any]) -> Release:
    return Release(
        told["name"],
        told["namespace"],
        told["revision"],
        told["status"],
        told.get("chart_version", ""),
        datetime.fromisoformat(told["deployed_at"]),
    )
