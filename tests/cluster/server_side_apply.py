"""Track which program manages which field of an object, as an API server does: owners, conflicts, removed fields.

Lists of objects with names are merged by name; other lists are replaced as a whole. Owners are stored in
`metadata.managedFields`, in the API server's own format.
https://kubernetes.io/docs/reference/using-api/server-side-apply/
"""

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

Object = dict[str, Any]
Path = tuple[str, ...]
_UNMANAGED = {("f:apiVersion",), ("f:kind",)} | {
    ("f:metadata", f"f:{name}")
    for name in ("name", "namespace", "uid", "generation", "resourceVersion", "creationTimestamp", "managedFields")
}


class FieldConflictError(Exception):
    """Report fields that another program manages and has set to another value."""

    def __init__(self, conflicts: list[tuple[str, Path]]) -> None:
        self.causes = [
            {"reason": "FieldManagerConflict", "message": f"conflict with {owner}", "field": _format_path(path)}
            for owner, path in conflicts
        ]
        listed = "; ".join(f"{each['message']}: {each['field']}" for each in self.causes)
        super().__init__(f"Apply failed with {len(conflicts)} conflict{'s' * (len(conflicts) > 1)}: {listed}")


def apply(live: Object, wanted: Object, manager: str, *, force: bool) -> Object:
    """Return the object after a server-side apply.

    Raises:
        FieldConflictError: if other programs manage a field with another value, unless `force` is true.
    """
    fields = dict(_list_fields(wanted))
    entries = [_read_entry(each) for each in live.get("metadata", {}).get("managedFields", [])]
    before = {path for entry, paths in entries if _is_of(entry, manager, "Apply") for path in paths}
    found = dict(_list_fields(live))
    others = [(entry, paths) for entry, paths in entries if not _is_of(entry, manager, "Apply")]
    conflicts = [
        (_describe_owner(entry), path)
        for entry, paths in others
        for path in sorted(paths & fields.keys())
        if found.get(path) != fields[path]
    ]
    if conflicts and not force:
        raise FieldConflictError(conflicts)
    lost = {path for _, path in conflicts}
    others = [(entry, paths - lost) for entry, paths in others]
    made: Object = merge(live, wanted)
    for path in before - fields.keys() - {path for _, paths in others for path in paths}:
        _remove(made, path)
    own: Object = {"manager": manager, "operation": "Apply", "apiVersion": wanted["apiVersion"]}
    made["metadata"]["managedFields"] = _write_entries([*others, (own, set(fields))])
    return made


def note_update(before: Object, after: Object, manager: str, subresource: str = "") -> None:
    """Make a program the manager of all fields that it changed by an ordinary update."""
    old, new = dict(_list_fields(before)), dict(_list_fields(after))
    changed = {path for path, value in new.items() if path not in old or old[path] != value}
    entries = [_read_entry(each) for each in before["metadata"].get("managedFields", [])]
    own: Object = {"manager": manager, "operation": "Update", "apiVersion": after["apiVersion"]}
    if subresource:
        own["subresource"] = subresource
    kept = {path for entry, paths in entries if entry == own for path in paths} & new.keys()
    left = [(entry, (paths - changed) & new.keys()) for entry, paths in entries if entry != own]
    after["metadata"]["managedFields"] = _write_entries([*left, (own, kept | changed)])


def merge(live: Any, wanted: Any) -> Any:
    """Merge an object into another, as an apply and a strategic merge patch do."""
    if isinstance(live, dict) and isinstance(wanted, dict):
        made = deepcopy(live)
        for name, value in wanted.items():
            if name.startswith("$"):  # a directive of a strategic merge patch, e.g. the order of a list
                continue
            if value is None:
                made.pop(name, None)
            else:
                made[name] = merge(made.get(name), value)
        return made
    if _is_named(live) and _is_named(wanted):
        given = {each["name"]: each for each in wanted}
        merged = [merge(each, given.pop(each["name"], {})) for each in live]
        return merged + [deepcopy(each) for each in given.values()]
    return deepcopy(wanted)


def _is_named(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) and "name" in each for each in value)


def _list_fields(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the path and value of each field. The status does not count."""
    inner: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        inner = [(f"f:{name}", each) for name, each in value.items() if path or name != "status"]
    elif _is_named(value):
        inner = [(f"k:{json.dumps({'name': each['name']}, separators=(',', ':'))}", each) for each in value]
    if not inner:
        yield path, value
    for name, each in inner:
        if (*path, name) not in _UNMANAGED:
            yield from _list_fields(each, (*path, name))


def _remove(made: Any, path: Path) -> None:
    """Remove a field, and the list entry or group that it leaves empty."""
    first, *rest = path
    if first.startswith("f:"):
        name = first.removeprefix("f:")
        if not isinstance(made, dict) or name not in made:
            return
        if rest:
            _remove(made[name], tuple(rest))
        if not rest or made[name] in ({}, []):
            del made[name]
        return
    name = json.loads(first.removeprefix("k:"))["name"]
    for each in [each for each in made if each.get("name") == name]:
        _remove(each, tuple(rest))
        if not each:
            made.remove(each)


def _read_entry(entry: Object) -> tuple[Object, set[Path]]:
    return {name: value for name, value in entry.items() if name not in ("fieldsV1", "fieldsType")}, {
        path for path, _ in _list_keys(entry["fieldsV1"])
    }


def _list_keys(fields: Object, path: Path = ()) -> Iterator[tuple[Path, None]]:
    if not fields:
        yield path, None
    for name, inner in fields.items():
        yield from _list_keys(inner, (*path, name))


def _write_entries(entries: list[tuple[Object, set[Path]]]) -> list[Object]:
    written = []
    for entry, paths in entries:
        fields: Object = {}
        for path in sorted(paths):
            place = fields
            for step in path:
                place = place.setdefault(step, {})
        if fields:
            written.append({**entry, "fieldsType": "FieldsV1", "fieldsV1": fields})
    return written


def _is_of(entry: Object, manager: str, operation: str) -> bool:
    return (entry["manager"], entry["operation"]) == (manager, operation)


def _describe_owner(entry: Object) -> str:
    within = f' with subresource "{entry["subresource"]}"' if entry.get("subresource") else ""
    using = f" using {entry['apiVersion']}" if entry["operation"] == "Update" else ""
    return f'"{entry["manager"]}"{within}{using}'


def _format_path(path: Path) -> str:
    """Format a path as error messages do, e.g. `.spec.template.spec.containers[name="agent"].image`."""
    steps = []
    for each in path:
        if each.startswith("f:"):
            steps.append(f".{each.removeprefix('f:')}")
        else:
            steps.append(f'[name="{json.loads(each.removeprefix("k:"))["name"]}"]')
    return "".join(steps)
