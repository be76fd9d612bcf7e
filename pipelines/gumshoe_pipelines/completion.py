"""Complete the names and the parameters of pipelines in shells, without importing kfp."""

import ast
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import typer

from gumshoe_pipelines.graphs import PIPELINES

_SHARED = "gumshoe_pipelines.parameters"


def complete_pipeline() -> list[str]:
    """Return the names of all pipelines."""
    return list(PIPELINES)


def complete_parameter(context: typer.Context) -> list[tuple[str, str]]:
    """Return `NAME=` and the description of each parameter of the pipeline on the command line, or of all pipelines."""
    given = context.params.get("name")
    modules = [PIPELINES[given][0]] if given in PIPELINES else [module for module, _ in PIPELINES.values()]
    found = dict(pair for module in (_SHARED, *modules) for pair in _read_parameters(module))
    return [(f"{name}=", description) for name, description in sorted(found.items())]


def _read_parameters(module: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the description of each annotated field of the dataclasses in a module, from its source."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return
    for node in ast.walk(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))):
        match node:
            case ast.AnnAssign(
                target=ast.Name(id=name),
                annotation=ast.Subscript(
                    value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[_, ast.Constant(value=about)])
                ),
            ):
                yield name, str(about)
