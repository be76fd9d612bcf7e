"""What requests ask of Kubernetes, as its authorization has it, and what a Role allows."""

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
OPEN = re.compile(r"/version/?|/openapi/.*|/apis?/?|/api/v1|/apis/[^/]+(/[^/]+)?")  # to whoever is known at all


@dataclass(frozen=True, slots=True, order=True)
class Access:
    """Something that may be allowed, in one namespace."""

    group: str
    """Empty for Kubernetes' first resources."""
    resource: str
    """With its subresource, as pods/log."""
    verb: str


def accesses_of(method: str, path: str, query: Mapping[str, str], status: int) -> Iterator[Access]:
    """What a request needs, of which the answer had a status.

    https://kubernetes.io/docs/reference/access-authn-authz/authorization/#determine-the-request-verb
    """
    if OPEN.fullmatch(path):
        return
    found = _PATH.fullmatch(path)
    assert found, f"{method} {path} is of no known form"
    assert found["namespace"], f"{method} {path} is of the whole cluster, which no Role allows"
    several = "watch" if query.get("watch") in ("true", "True", "1") else "list"
    verbs = {
        "GET": ["get" if found["name"] else several],
        "POST": ["create"],
        "PUT": ["update"],
        "PATCH": ["patch", "create"] if status == 201 else ["patch"],  # to apply what there is not yet is to create it
        "DELETE": ["delete" if found["name"] else "deletecollection"],
    }
    resource = "/".join(filter(None, (found["resource"], found["sub"])))
    yield from (Access(found["group"] or "", resource, verb) for verb in verbs[method])


@contextmanager
def recorded(fake: FakeKubernetes) -> Iterator[set[Access]]:
    """What is asked of a cluster while the block runs."""
    seen: set[Access] = set()
    answered = fake.answer

    def answer(method: str, path: str, query: dict[str, str], body: bytes, content_type: str) -> tuple[int, Any]:
        status, found = answered(method, path, query, body, content_type)
        seen.update(accesses_of(method, path, query, status))
        return status, found

    fake.answer = answer  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        fake.answer = answered  # type: ignore[method-assign]


def allowed_by(rules: Iterable[Mapping[str, Any]]) -> list[Access]:
    """What rules allow; twice where two allow it."""
    return [
        Access(group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]
