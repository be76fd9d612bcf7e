"""Validate Kubernetes objects against the schemas beside the checkout, like an API server."""

import importlib.util
import json
import re
from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

TOOL = Path(__file__).parents[3] / "shared" / "tools" / "validate_manifests.py"
_CRDS = TOOL.parents[1] / "crds"
KUBERNETES = "1.34"
"""Version of the schemas."""


def faults_of(objects: Iterable[dict[str, Any]]) -> list[str]:
    """Return what is wrong with each object, e.g. `Service/mail: .spec.port: unknown field`.

    Raises:
        ValueError: if there is no object.
    """
    tool, environment = _load_tool()
    found = [json.loads(json.dumps(each)) for each in objects]
    if not found:
        raise ValueError("there is no object to check")
    return [
        f"{each['kind']}/{each['metadata'].get('name')}: {fault}"
        for each in found
        for fault in tool.validate(each, _load_schemas(each["kind"]), KUBERNETES, environment)
    ]


@cache
def _load_tool() -> tuple[Any, Any]:
    """Return the tool, and the environment of the rules in schemas."""
    spec = importlib.util.spec_from_file_location("validate_manifests", TOOL)
    assert spec is not None
    assert spec.loader is not None
    tool: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    tool.yaml = SimpleNamespace(safe_load_all=partial(yaml.load_all, Loader=yaml.CSafeLoader))  # five times as fast
    return tool, tool.celpy.Environment()


@cache
def _load_schemas(kind: str) -> Any:
    """Return the schemas of custom resources of a kind, none for Kubernetes' own: to parse all takes seconds."""
    tool, _ = _load_tool()
    named = re.compile(rf"^ +kind: {re.escape(kind)}$", re.M)
    found = [path for path in sorted(_CRDS.glob("*.yaml")) if named.search(path.read_text(encoding="utf-8"))]
    tool.CRDS = SimpleNamespace(glob=lambda _: found)
    return tool.load_crds()
