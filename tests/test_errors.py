"""Every error that reaches a user has a code, every code is documented, and none is left over."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from gumshoe.error_codes import load_error_codes

ROOT = Path(__file__).parents[1]
SOURCES = [*(ROOT / "components").rglob("*.py"), *(ROOT / "pipelines").rglob("*.py")]
CODE = re.compile(r"[a-z][a-z-]*\.[a-z0-9][a-z0-9-]*")


@cache
def _trees() -> dict[Path, ast.Module]:
    return {path.relative_to(ROOT): ast.parse(path.read_text()) for path in SOURCES}


def _nodes() -> Iterator[tuple[Path, ast.AST]]:
    return ((path, node) for path, tree in _trees().items() for node in ast.walk(tree))


def _last_name(node: ast.expr) -> str:
    """Return the last part of a dotted name; empty for other expressions."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _error_classes() -> set[str]:
    """Return the names of GumshoeError and of all that derive from it."""
    found = {"GumshoeError"}
    classes = [(node.name, {*map(_last_name, node.bases)}) for _, node in _nodes() if isinstance(node, ast.ClassDef)]
    while True:
        more = {name for name, bases in classes if found & bases} - found
        if not more:
            return found
        found |= more


def _errors_made() -> Iterator[tuple[str, ast.Call]]:
    classes = _error_classes()
    for path, node in _nodes():
        if isinstance(node, ast.Call) and _last_name(node.func) in classes:
            yield f"{path}:{node.lineno}", node


def _codes_of(argument: ast.expr) -> list[object] | None:
    """Return the codes that an argument may be, or None if another error or function decides."""
    match argument:
        case ast.Constant():
            return [argument.value]
        case ast.JoinedStr():
            return [ast.unparse(argument)]
        case ast.IfExp():
            return [*(_codes_of(argument.body) or []), *(_codes_of(argument.orelse) or [])]
    return None


@pytest.mark.ci
def test_every_error_has_a_listed_code_and_a_message() -> None:
    known = load_error_codes()
    faults = []
    for place, call in _errors_made():
        if len(call.args) < 2:
            faults.append(f"{place}: no code, or no message: {ast.unparse(call)[:120]}")
            continue
        faults += [
            f"{place}: not in any errors.toml: {code}" for code in _codes_of(call.args[0]) or () if code not in known
        ]
    assert faults == []


def test_every_listed_code_is_used() -> None:
    strings = {node.value for _, node in _nodes() if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    assert sorted(set(load_error_codes()) - strings) == []


def test_codes_are_well_formed_and_explained_in_sentences() -> None:
    for each in load_error_codes().values():
        assert CODE.fullmatch(each.code), each.code
        assert each.cause.endswith("."), each
        assert each.remedy.endswith("."), each


def test_an_area_is_listed_by_one_package() -> None:
    files = defaultdict(set)
    for path in (each for root in ("components", "pipelines") for each in (ROOT / root).rglob("errors.toml")):
        for area in re.findall(r'^\["([a-z-]+)\.', path.read_text(), re.M):
            files[area].add(path)
    assert {area: found for area, found in files.items() if len(found) > 1} == {}
