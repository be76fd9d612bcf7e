"""Manage Helm releases of the agent chart. Each call has a deadline."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import yaml

import gumshoe
from gumshoe.cluster.helm import TIMEOUT, Helm, HelmChart, HelmFailure, Release, find_helm, open_helm, translate_failure
from gumshoe.cluster.kubernetes_api import Cluster, ClusterError
from gumshoe.cluster.release_check import ReleaseCheck, describe_conflicts, describe_denials, describe_rejections
from gumshoe.errors import GumshoeError, UnavailableError, UsageError

T = TypeVar("T")
CHART = "gumshoe-agent"
_RELEASE = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,51}[a-z0-9])?")  # names that Helm accepts
_MARGIN = 60.0  # seconds beyond the timeout after which a change counts as killed
_CHANGE_ROLE, _REMOVE_ROLE = "gumshoe-deploy", "gumshoe-operate"  # Roles of Gumshoe's manifests
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, if PyYAML was built with libyaml


@dataclass(frozen=True)
class StoredRelease:
    """The last revision of a release, as Helm stores it."""

    release: Release
    values: dict[str, Any]
    """The values that were given, without the chart's defaults."""
    manifest: str
    """The Kubernetes objects of the release, as YAML documents."""
    field_manager: str | None = None
    """Name under which Helm manages the objects' fields; None if it does not use server-side apply for them."""

    @cached_property
    def objects(self) -> list[dict[str, Any]]:
        """The Kubernetes objects of the release."""
        return _parse_objects(self.manifest)

    def find_name(self, kind: str, ending: str = "") -> str | None:
        """Return the name of the object of a kind, or of the one whose name has this ending."""
        names = (each["metadata"]["name"] for each in self.objects if each["kind"] == kind)
        return next((name for name in names if name.endswith(ending)), None)


class Releases:
    """Manage the releases of a namespace.

    Raises:
        UsageError: if Helm is not installed or the chart is missing.
    """

    def __init__(self, cluster: Cluster, chart: Path | None = None) -> None:
        self.cluster = cluster
        self._place = chart or find_chart()
        self._helm = open_helm(self._place, cluster)

    def list_newest(self) -> list[Release]:
        """Return the last revision of each release of the chart, sorted by name."""
        newest: dict[str, Release] = {}
        for each in self._call(lambda helm: helm.list_releases(CHART)):
            known = newest.get(each.name)
            if known is None or known.revision < each.revision:
                newest[each.name] = each
        return sorted(newest.values(), key=lambda release: release.name)

    def find(self, name: str) -> StoredRelease | None:
        """Return a release, or None if it does not exist.

        Raises:
            UsageError: if the name is invalid, or the release belongs to another chart.
        """
        check_name(name)
        found = self._call(lambda helm: helm.find(name))
        if found is None:
            return None
        if found.chart_name != CHART:
            raise UsageError(
                "deploy.release-of-other-chart",
                f"Helm release {name} belongs to chart {found.chart_name}; choose another name",
            )
        return StoredRelease(found.release, found.values, found.manifest, found.field_manager)

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
        return sorted(self._call(lambda helm: helm.list_history(name)), key=lambda release: -release.revision)

    def get_values(self, name: str, revision: int) -> dict[str, Any]:
        """Return the values of a revision."""
        return self._call(lambda helm: helm.get_values(name, revision))

    def list_values(self, name: str) -> list[dict[str, Any]]:
        """Return the values of all revisions that Helm stores, newest first."""
        return [self.get_values(name, each.revision) for each in self.list_history(name)]

    def check_values(self, name: str, values: dict[str, Any]) -> None:
        """Check that the chart accepts the values, before anything is changed.

        Raises:
            UsageError: if it does not; the message names the key.
        """
        self._call_offline(lambda: self._helm.render(name, values))

    def apply(
        self,
        name: str,
        values: dict[str, Any],
        description: str,
        *,
        create_namespace: bool = False,
        is_forced: bool = False,
    ) -> None:
        """Install or upgrade a release with these values. If forced, overwrite fields that another program changed.

        Raises:
            UsageError: if the chart rejects them.
            UnavailableError: if another change is in progress.
            ClusterError: if a permission is missing, or the cluster rejects an object; nothing was changed.
            GumshoeError: if the cluster or Helm rejects the change. If another program changed a field, nothing was
                changed.
        """
        stored = self.find(name)
        if stored and stored.release.status.startswith("pending-"):
            self._recover(stored.release, is_forced=is_forced)
            stored = self.get(name)
        wanted = self._call_offline(lambda: self._helm.render(name, values))
        self._check_change(name, stored, _parse_objects(wanted), is_forced=is_forced)
        if stored is None:
            self._call(lambda helm: helm.install(name, values, description, create_namespace=create_namespace))
            return
        self._call(lambda helm: helm.upgrade(name, values, description))

    def _recover(self, pending: Release, *, is_forced: bool) -> None:
        """Roll back a release whose last change was killed: Helm accepts no other change before that.

        Raises:
            UnavailableError: if the change may still be in progress.
        """
        age = (datetime.now(UTC) - pending.updated).total_seconds()
        if age < TIMEOUT + _MARGIN:
            minutes = (TIMEOUT + _MARGIN - age) / 60
            raise UnavailableError(
                "deploy.change-in-progress",
                f"another change of {pending.name} is in progress or was killed: {pending.status}; try again in "
                f"{minutes:.0f} minutes, or run `gumshoe rollback {pending.name} --revision N` with a revision from "
                f"`gumshoe deployments show {pending.name}`",
            )
        complete = (each for each in self.list_history(pending.name) if each.status in ("deployed", "superseded"))
        self.rollback(pending.name, next(complete, pending).revision, is_forced=is_forced)

    def rollback(self, name: str, revision: int, *, is_forced: bool = False) -> None:
        """Roll back to a revision, even after an operation was killed. If forced, overwrite fields like `apply`.

        Raises:
            UsageError: if the release or the revision does not exist.
            ClusterError: if a permission is missing, or the cluster rejects an object; nothing was changed.
            GumshoeError: if the cluster or Helm rejects the change. If another program changed a field, nothing was
                changed.
        """
        stored = self.get(name)
        known = [each.revision for each in self.list_history(name)]
        if revision not in known:
            raise UsageError(
                "deploy.no-such-revision",
                f"revision {revision} of {name} does not exist; use one of {', '.join(map(str, known))}",
            )
        wanted = self._call(lambda helm: helm.get_manifest(name, revision))
        self._check_change(name, stored, _parse_objects(wanted), is_forced=is_forced)
        self._call(lambda helm: helm.rollback(name, revision))

    def remove(self, name: str) -> None:
        """Uninstall a release and delete its history.

        Raises:
            UsageError: if it does not exist.
            ClusterError: if the cluster refuses to delete one of its objects; nothing was changed.
            GumshoeError: if the cluster or Helm rejects the change.
        """
        check = ReleaseCheck(self.cluster, name, None)
        check.try_removal(self.get(name).objects)
        self._raise_if_refused(check, f"{name} cannot be removed", _REMOVE_ROLE)
        self._call(lambda helm: helm.uninstall(name))

    def try_apply(self, stored: StoredRelease, values: dict[str, Any], *, is_forced: bool = False) -> None:
        """Check that the cluster would accept a change, and change nothing.

        Raises:
            UsageError: if the chart rejects the values.
            ClusterError: if a permission is missing, or the cluster rejects an object.
            GumshoeError: if another program changed a field, unless forced.
        """
        name = stored.release.name
        wanted = self._call_offline(lambda: self._helm.render(name, values))
        self._try_change(name, stored, _parse_objects(wanted), is_forced=is_forced)

    def _check_change(
        self, name: str, stored: StoredRelease | None, wanted: list[dict[str, Any]], *, is_forced: bool
    ) -> None:
        """Check that the cluster accepts a change. If forced, take over the fields that other programs changed."""
        check = self._try_change(name, stored, wanted, is_forced=is_forced)
        check.take_over()
        check.overwrite_conflicts()

    def _try_change(
        self, name: str, stored: StoredRelease | None, wanted: list[dict[str, Any]], *, is_forced: bool
    ) -> ReleaseCheck:
        """Try a change with dry runs.

        Raises:
            ClusterError: if a permission is missing, or the cluster rejects an object.
            GumshoeError: if another program changed a field, unless forced.
        """
        check = ReleaseCheck(self.cluster, name, stored.field_manager if stored else None)
        check.try_change(wanted, stored.objects if stored else [])
        self._raise_if_refused(check, f"{name} cannot be changed", _CHANGE_ROLE)
        if check.conflicts and not is_forced:
            raise GumshoeError(
                "deploy.conflict",
                f"another program changed fields of {name} in namespace {self.cluster.namespace}: "
                f"{describe_conflicts(check.conflicts)}; nothing was changed; undo that change, set the chart's value "
                "to it, e.g. --set agent.replicas=N after `kubectl scale`, or overwrite it with --force",
            )
        return check

    def _raise_if_refused(self, check: ReleaseCheck, what: str, role: str) -> None:
        if check.denials:
            raise ClusterError(
                "cluster.access-denied",
                f"{what} in namespace {self.cluster.namespace}: {describe_denials(check.denials)}; nothing was "
                f"changed; use an account that may, e.g. one with the Role {role} of Gumshoe's manifests",
                403,
            )
        if check.rejections:
            raise ClusterError(
                "cluster.request-rejected",
                f"{what} in namespace {self.cluster.namespace}: {describe_rejections(check.rejections)}; nothing was "
                "changed; correct the values or the cluster's policy that this names",
                check.rejections[0].status,
            )

    @property
    def chart_version(self) -> str:
        return self._chart.version

    @property
    def defaults(self) -> dict[str, Any]:
        """The chart's default values."""
        return self._chart.defaults

    @property
    def chart_directory(self) -> Path:
        """Directory of the chart."""
        return self._place

    @cached_property
    def _chart(self) -> HelmChart:
        return self._call_offline(self._helm.read_chart)

    @cached_property
    def _connected(self) -> Helm:
        self.cluster.check()  # it reports better than Helm what is wrong, and sooner
        return self._helm

    def _call(self, call: Callable[[Helm], T]) -> T:
        """Call Helm after a check that the cluster answers, and translate its errors."""
        return self._call_offline(lambda: call(self._connected))

    def _call_offline(self, call: Callable[[], T]) -> T:
        """Call Helm without a cluster, and translate its errors."""
        try:
            return call()
        except HelmFailure as failure:
            raise translate_failure(failure, self.cluster) from None


def _parse_objects(manifest: str) -> list[dict[str, Any]]:
    return [each for each in yaml.load_all(manifest, _LOADER) if each]


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
    cluster = Cluster("default")  # it is not contacted
    helm = find_helm(find_chart(), cluster)
    if helm is None:
        return
    try:
        helm.check_schema(values)
    except HelmFailure as failure:
        raise translate_failure(failure, cluster) from None


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
