"""Check a change of a release before Helm makes it, so that nothing is left half changed.

The check sends what Helm will send, as dry runs: the API server checks the permissions, and finds the fields that
another program has changed meanwhile. Dry runs need the same permissions as the requests themselves.
"""

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gumshoe.cluster.kubernetes_api import Cluster, ClusterError, shorten

Object = dict[str, Any]
PROGRAM_MANAGER = "helm"
"""Name under which the program helm manages fields."""
_APPLY, _JSON_PATCH = "application/apply-patch+yaml", "application/json-patch+json"
_DRY = {"dryRun": "All"}
_CONFLICT = "FieldManagerConflict"  # cause of a 409
_MANAGER = re.compile(r'"([^"]+)"')
_DENIED = re.compile(r'User "([^"]*)" cannot (\w+) resource "([^"]+)"(?: in API group "([^"]+)")?')
_STEP = re.compile(r"\.([^.\[]+)|\[([^\]]*)\]")  # in a path such as .spec.containers[name="agent"].image
_HOOK, _POLICY = "helm.sh/hook", "helm.sh/resource-policy"
_ATTEMPTS = 5
_DELETE: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "dryRun": ["All"]}
_SHOWN = 10  # conflicts that a message lists


def library_manager() -> str:
    """Return the name under which Helm's library manages fields: that of the program that runs in this process.

    The library takes it from the title of the process, which programs may change.
    """
    try:
        title = Path("/proc/self/cmdline").read_bytes().partition(b"\0")[0].decode(errors="replace")
    except OSError:  # outside Linux
        title = sys.orig_argv[0] if sys.orig_argv else "unknown"
    return Path(title).name


@dataclass(frozen=True, slots=True)
class FieldConflict:
    """A field that another program manages, with another value than the release's."""

    kind: str
    name: str
    path: str
    manager: str
    current: str
    wanted: str

    def __str__(self) -> str:
        path = self.path.removeprefix(".")
        return f"{self.kind} {self.name}: {path} is {self.current} (by {self.manager}), the release has {self.wanted}"


@dataclass(slots=True)
class ReleaseCheck:
    """Check one change of a release. Helm itself is not called."""

    cluster: Cluster
    release: str
    manager: str | None
    """Name under which Helm manages fields; None if it overwrites the fields of others anyway."""
    denials: list[ClusterError] = field(default_factory=list)
    rejections: list[ClusterError] = field(default_factory=list)
    """Answers of the API server to requests that it rejects for other reasons than permissions and conflicts."""
    conflicts: list[FieldConflict] = field(default_factory=list)
    _conflicting: list[Object] = field(default_factory=list)
    _renamed: list[str] = field(default_factory=list)
    """Paths of the objects whose fields Helm manages under another name."""
    _kinds: dict[str, dict[str, tuple[str, bool]]] = field(default_factory=dict)
    """Plural of each kind and if it has a namespace, by API version."""

    def try_change(self, wanted: list[Object], before: list[Object]) -> None:
        """Try to apply the wanted objects, to delete the others, and to store the release.

        Raises:
            ClusterUnavailableError: if the cluster does not answer or fails.
        """
        self._try_to_store("POST", "PUT")
        for each in filter(_is_resource, wanted):
            self._try_to_apply(each)
        kept = {_key(each) for each in wanted}
        for each in before:
            if _key(each) not in kept:
                self._try_to_delete(each)

    def try_removal(self, objects: list[Object]) -> None:
        """Try to delete all objects of a release, and the release itself.

        Raises:
            ClusterUnavailableError: if the cluster does not answer or fails.
        """
        self._try_to_store("PUT", "DELETE")
        for each in objects:
            self._try_to_delete(each)

    def overwrite_conflicts(self) -> None:
        """Apply the objects with conflicts, and take over the fields from the other programs.

        Raises:
            ClusterError: if the cluster rejects a request.
            ClusterUnavailableError: if the cluster does not answer or fails.
        """
        for each in self._conflicting:
            self._apply(each, {"force": "true"})

    def take_over(self) -> None:
        """Let Helm manage under its present name what it has managed under another one.

        The program and the library have different names. Without this, they would count as different programs.

        Raises:
            ClusterError: if the cluster rejects a request.
            ClusterUnavailableError: if the cluster does not answer or fails.
        """
        for path in self._renamed:
            for attempt in range(_ATTEMPTS):
                meta = self.cluster.request("GET", path)["metadata"]
                change = [
                    {"op": "replace", "path": "/metadata/managedFields", "value": self._rename(meta["managedFields"])},
                    {"op": "replace", "path": "/metadata/resourceVersion", "value": meta["resourceVersion"]},
                ]
                try:
                    self.cluster.request("PATCH", path, body=change, content_type=_JSON_PATCH)
                    break
                except ClusterError as error:  # a controller has changed the object since it was read
                    if error.status != 409 or attempt == _ATTEMPTS - 1:
                        raise

    def _rename(self, entries: list[Object]) -> list[Object]:
        """Combine the entries of all names of Helm into one."""
        own = [each for each in entries if _is_of_helm(each)]
        fields: Object = {}
        for each in own:
            fields = _unite(fields, each["fieldsV1"])
        others = [each for each in entries if not _is_of_helm(each)]
        return [*others, {**own[-1], "manager": self.manager, "fieldsV1": fields}]

    def _try_to_apply(self, wanted: Object) -> None:
        path = self._find_path(wanted)
        if path is None:  # Helm reports a missing kind
            return
        live = self._read(path)
        if self.manager and live:
            managers = {each["manager"] for each in live["metadata"].get("managedFields") or [] if _is_of_helm(each)}
            if managers - {self.manager}:
                self._renamed.append(path)
        try:
            self._apply(wanted, {**_DRY, "force": "false" if self.manager else "true"})
        except ClusterError as error:
            if error.status == 403 and _DENIED.search(error.message):
                self.denials.append(error)
            elif error.status == 409:
                self._note_conflicts(error, wanted, live or {})
            elif error.status == 422 and live and (self.manager is None or path in self._renamed):
                pass  # fields that Helm removes are still in the dry run, because another name manages them
            elif error.status != 404:
                self.rejections.append(error)

    def _note_conflicts(self, error: ClusterError, wanted: Object, live: Object) -> None:
        found = []
        for cause in error.causes:
            manager = _MANAGER.search(str(cause.get("message")))
            if cause.get("reason") == _CONFLICT and manager and not _is_name_of_helm(manager[1]):
                path, kind = str(cause.get("field")), wanted["kind"]
                values = [_format_value(kind, _find_value(each, path)) for each in (live, wanted)]
                found.append(FieldConflict(kind, wanted["metadata"]["name"], path, manager[1], *values))
        if found:
            self.conflicts += found
            self._conflicting.append(wanted)

    def _try_to_delete(self, wanted: Object) -> None:
        path = self._find_path(wanted)
        if path is None or (wanted["metadata"].get("annotations") or {}).get(_POLICY) == "keep":
            return
        self._try("DELETE", path, _DELETE)

    def _try_to_store(self, *methods: str) -> None:
        """Try to write a Secret like the ones in which Helm stores releases. It does not exist, and is not created."""
        if not (os.environ.get("HELM_DRIVER") or "secret").startswith("secret"):
            return
        name = "gumshoe-release-check"
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}}
        place = f"/api/v1/namespaces/{self.cluster.namespace}/secrets"
        for method in methods:
            body = _DELETE if method == "DELETE" else secret
            self._try(method, place if method == "POST" else f"{place}/{name}", body)

    def _try(self, method: str, path: str, body: Object) -> None:
        """Send a dry run, and note if it is denied or rejected. An object that does not exist is no problem."""
        try:
            self.cluster.request(method, path, _DRY, body)
        except ClusterError as error:
            if error.status == 403:
                self.denials.append(error)
            elif error.status not in (404, 409):
                self.rejections.append(error)

    def _apply(self, wanted: Object, query: Mapping[str, str]) -> None:
        path = self._find_path(wanted)
        if path is not None:
            manager = self.manager or PROGRAM_MANAGER
            self.cluster.request("PATCH", path, {"fieldManager": manager, **query}, self._mark(wanted), _APPLY)

    def _mark(self, wanted: Object) -> Object:
        """Return an object with the label and annotations that Helm adds to it."""
        meta = wanted["metadata"]
        owner = {
            "meta.helm.sh/release-name": self.release,
            "meta.helm.sh/release-namespace": self.cluster.namespace,
        }
        labels = {**(meta.get("labels") or {}), "app.kubernetes.io/managed-by": "Helm"}
        annotations = {**(meta.get("annotations") or {}), **owner}
        return {**wanted, "metadata": {**meta, "labels": labels, "annotations": annotations}}

    def _read(self, path: str) -> Object | None:
        try:
            return dict(self.cluster.request("GET", path))
        except ClusterError as error:
            if error.status == 403:
                self.denials.append(error)
            return None

    def _find_path(self, wanted: Object) -> str | None:
        """Return the path of an object in the API; None if the cluster does not have its kind."""
        version, meta = wanted["apiVersion"], wanted["metadata"]
        prefix = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if version not in self._kinds:
            self._kinds[version] = {}
            with suppress(ClusterError):
                for each in self.cluster.request("GET", prefix)["resources"]:
                    if "/" not in each["name"]:
                        self._kinds[version][each["kind"]] = each["name"], each["namespaced"]
        if wanted["kind"] not in self._kinds[version]:
            return None
        plural, is_namespaced = self._kinds[version][wanted["kind"]]
        space = f"/namespaces/{meta.get('namespace') or self.cluster.namespace}" if is_namespaced else ""
        return f"{prefix}{space}/{plural}/{meta['name']}"


def describe_denials(denials: list[ClusterError]) -> str:
    """Describe the missing permissions in one line, e.g. `"ann" may not delete inferenceservices.serving.kserve.io`."""
    missing: dict[str, list[str]] = {}
    others = []
    for error in denials:
        found = _DENIED.search(error.message)
        if found is None:
            others.append(shorten(error.message))
            continue
        user, verb, resource, group = found.groups()
        missing.setdefault(user, []).append(f"{verb} {resource}{f'.{group}' if group else ''}")
    listed = [f'"{user}" may not {", ".join(dict.fromkeys(each))}' for user, each in missing.items()]
    return "; ".join(dict.fromkeys([*listed, *others]))


def describe_rejections(rejections: list[ClusterError]) -> str:
    """Describe rejected requests in one line."""
    return "; ".join(dict.fromkeys(each.message for each in rejections))


def describe_conflicts(conflicts: list[FieldConflict]) -> str:
    """Describe conflicts in one line."""
    more = f"; and {len(conflicts) - _SHOWN} more fields" if len(conflicts) > _SHOWN else ""
    return "; ".join(map(str, conflicts[:_SHOWN])) + more


def _is_resource(wanted: Object) -> bool:
    """Return True unless an object belongs to a hook, which Helm creates and deletes by itself."""
    return _HOOK not in (wanted["metadata"].get("annotations") or {})


def _key(found: Object) -> tuple[str, str, str | None]:
    return found["kind"], found["metadata"]["name"], found["metadata"].get("namespace")


def _is_of_helm(entry: Object) -> bool:
    return entry["operation"] == "Apply" and _is_name_of_helm(entry["manager"])


def _is_name_of_helm(manager: str) -> bool:
    """Return True if Helm manages fields under this name: the program, or the library in any Python."""
    return manager in (PROGRAM_MANAGER, library_manager()) or bool(re.fullmatch(r"python[\d.]*", manager))


def _unite(fields: Object, others: Object) -> Object:
    """Unite two sets of fields in the format FieldsV1."""
    both = dict(fields)
    for name, inner in others.items():
        both[name] = _unite(both.get(name, {}), inner)
    return both


def _find_value(found: Any, path: str) -> Any:
    """Return the value at a path in the API server's notation; None if it does not exist."""
    for name, selector in _STEP.findall(path):
        if name:
            found = found.get(name) if isinstance(found, dict) else None
        elif isinstance(found, list):
            found = next(_select_items(found, selector), None)
    return found


def _select_items(items: list[Any], selector: str) -> Iterator[Any]:
    """Yield the items that a selector such as `containerPort=80,protocol="TCP"`, `="value"` or `0` means."""
    if selector.isdigit():
        yield from items[int(selector) : int(selector) + 1]
        return
    pairs = [each.partition("=") for each in selector.split(",")]
    for each in items:
        with suppress(ValueError):
            if all((each.get(key) if key else each) == json.loads(value) for key, _, value in pairs):
                yield each


def _format_value(kind: str, value: Any) -> str:
    """Format a value for a message; not that of a Secret."""
    return "hidden" if kind == "Secret" else "not set" if value is None else shorten(json.dumps(value))
