"""Make a fake cluster keep track of field managers, as the API server does for server-side apply.

https://kubernetes.io/docs/reference/using-api/server-side-apply/#conflicts
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import yaml

from tests.cluster.fake_kubernetes import FakeKubernetes

Object = dict[str, Any]
_APPLY = "application/apply-patch+yaml"


@contextmanager
def enforce_field_managers(fake: FakeKubernetes) -> Iterator[None]:
    """Merge applied objects into existing ones, and reject changes of fields that another manager owns."""
    original = fake.answer

    def answer(method: str, path: str, query: dict[str, str], body: bytes, content_type: str) -> tuple[int, Any]:
        if method != "PATCH" or not content_type.startswith(_APPLY):
            return original(method, path, query, body, content_type)
        status, live = original("GET", path, {}, b"", "")
        if status != 200:
            return original(method, path, query, body, content_type)
        applied, manager = yaml.safe_load(body), query["fieldManager"]
        conflicts = [*_list_conflicts(live, applied, manager)]
        if conflicts and query.get("force") != "true":
            return 409, _report(conflicts)
        entry = {"manager": manager, "operation": "Apply", "fieldsV1": _list_fields(applied)}
        others = [each for each in live["metadata"].get("managedFields", []) if each["manager"] != manager]
        made = _merge(live, applied)
        made["metadata"]["managedFields"] = [*others, entry]
        return original(method, path, query, json.dumps(made).encode(), content_type)

    fake.answer = answer  # type: ignore[method-assign]
    try:
        yield
    finally:
        fake.answer = original  # type: ignore[method-assign]


def _report(conflicts: list[tuple[str, str]]) -> Object:
    causes = [
        {"reason": "FieldManagerConflict", "message": f'conflict with "{manager}"', "field": field}
        for manager, field in conflicts
    ]
    many = "conflict" if len(causes) == 1 else "conflicts"
    listed = "\n".join(f"{each['message']}: {each['field']}" for each in causes)
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": 409,
        "reason": "Conflict",
        "message": f"Apply failed with {len(causes)} {many}: {listed}",
        "details": {"causes": causes},
    }


def _list_conflicts(live: Object, applied: Object, manager: str) -> Iterator[tuple[str, str]]:
    """Yield the other managers of fields that `applied` changes, with the fields."""
    for entry in live["metadata"].get("managedFields", []):
        if entry["manager"] == manager:
            continue
        for field in _list_paths(entry["fieldsV1"]):
            before, after = _get(live, field), _get(applied, field)
            if after is not None and before != after:
                yield entry["manager"], "." + ".".join(field)


def _list_paths(fields: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths of the leaves in a document of format FieldsV1. Items of lists are left out."""
    for name, inner in fields.items():
        if name.startswith("f:"):
            path = (*above, name.removeprefix("f:"))
            deeper = {key: value for key, value in inner.items() if key != "."}
            if deeper:
                yield from _list_paths(deeper, path)
            else:
                yield path


def _get(document: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        document = document.get(name) if isinstance(document, dict) else None
    return document


def _list_fields(document: Object) -> Object:
    """Return the fields of an applied object in the format FieldsV1, with lists as leaves."""
    return {
        f"f:{name}": _list_fields(value) if isinstance(value, dict) else {}
        for name, value in document.items()
        if name not in ("apiVersion", "kind")
    }


def _merge(live: Any, applied: Any) -> Any:
    if not (isinstance(live, dict) and isinstance(applied, dict)):
        return applied
    return {**live, **{name: _merge(live.get(name), value) for name, value in applied.items()}}
