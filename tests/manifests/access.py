"""Map requests to Kubernetes permissions, and compare them with Roles."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.cluster.fake_kubernetes import FakeKubernetes

_PATH = re.compile(
    r"/api(?:s/(?P<group>[^/]+))?/v[^/]+(?P<namespace>/namespaces/[^/]+)?/(?P<resource>[a-z]+)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<sub>[a-z]+))?"
)
OPEN = re.compile(
    r"/version/?|/openapi/.*|/apis?/?|/api/v1|/apis/[^/]+(/[^/]+)?"
)  # allowed for every authenticated account


@dataclass(frozen=True, slots=True, order=True)
class Access:
    """A permission in one namespace."""

    group: str
    """API group; empty for the core group."""
    resource: str
    """Resource with its subresource, e.g. pods/log."""
    verb: str


def get_accesses(method: str, path: str, query: Mapping[str, str], status: int) -> Iterator[Access]:
    """Yield the permissions that a request needs, given the status of its answer.

    https://kubernetes.io/docs/reference/access-authn-authz/authorization/#determine-the-request-verb
    """
    if OPEN.fullmatch(path):
        return
    found = _PATH.fullmatch(path)
    assert found, f"{method} {path} has an unknown form"
    assert found["namespace"], f"{method} {path} is cluster-scoped, which no Role allows"
    several = "watch" if query.get("watch") in ("true", "True", "1") else "list"
    verbs = {
        "GET": ["get" if found["name"] else several],
        "POST": ["create"],
        "PUT": ["update"],
        "PATCH": ["patch", "create"] if status == 201 else ["patch"],  # server-side apply creates missing objects
        "DELETE": ["delete" if found["name"] else "deletecollection"],
    }
    resource = "/".join(filter(None, (found["resource"], found["sub"])))
    yield from (Access(found["group"] or "", resource, verb) for verb in verbs[method])


@contextmanager
def record_access(fake: FakeKubernetes) -> Iterator[set[Access]]:
    """Record the permissions that are used while the block runs."""
    used: set[Access] = set()
    original = fake.answer

    def answer(method: str, path: str, query: dict[str, str], body: bytes, content_type: str) -> tuple[int, Any]:
        status, found = original(method, path, query, body, content_type)
        used.update(get_accesses(method, path, query, status))
        return status, found

    fake.answer = answer  # type: ignore[method-assign]
    try:
        yield used
    finally:
        fake.answer = original  # type: ignore[method-assign]


def list_allowed(rules: Iterable[Mapping[str, Any]]) -> list[Access]:
    """Return the permissions of rules. A permission in two rules is listed twice."""
    return [
        Access(group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]
