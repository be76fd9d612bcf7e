"""Page of the parameters of the pipelines."""

from collections.abc import Iterator
from typing import Any

from docs.generate.json_schema import format_value
from docs.generate.markdown import anchor, code, page, sentence, table

from gumshoe_pipelines.graphs import PIPELINES, compile_graph, find_builder

_TYPES = {
    "STRING": "string",
    "NUMBER_INTEGER": "integer",
    "NUMBER_DOUBLE": "number",
    "BOOLEAN": "true or false",
    "LIST": "list",
    "STRUCT": "mapping",
}


def render_pipelines() -> str:
    """Return the page."""
    graphs = {name: compile_graph(name) for name in PIPELINES}
    first = next(iter(graphs.values())).parameters
    same = {
        name: found
        for name, found in first.items()
        if all(each.parameters.get(name) == found for each in graphs.values())
    }
    return page(
        "Pipeline parameters",
        "Parameters of `gumshoe pipeline run` and `gumshoe pipeline submit`: in a YAML file (`--params FILE`), or one "
        "at a time (`-p NAME=VALUE`, in YAML). The form of a run in Kubeflow Pipelines has the same, except those that "
        "are [compiled into a pipeline](#compiled).",
        "## All pipelines",
        _render(same, "all"),
        "## Compiled",
        "A run in Kubeflow cannot have these. `gumshoe pipeline submit` compiles them into the pipeline that it sends, "
        "and `gumshoe pipeline compile` into its files. All pipelines have them.",
        _render_compiled(),
        (
            line
            for name, graph in graphs.items()
            for line in (
                f"## {name}",
                "",
                sentence(graph.spec["pipelineInfo"].get("description", "")),
                "",
                "Besides the parameters of [all pipelines](#all-pipelines):",
                *_render({key: value for key, value in graph.parameters.items() if key not in same}, name),
            )
        ),
    )


def _render_compiled() -> Iterator[str]:
    found = find_builder(next(iter(PIPELINES))).compiled_parameters
    rows = (
        (f"{anchor(f'compiled.{name}')}{code(name)}", "string", code(format_value("")), sentence(text))
        for name, text in sorted(found.items())
    )
    return table(("parameter", "type", "default", "description"), rows)


def _render(parameters: dict[str, Any], pipeline: str) -> Iterator[str]:
    ordered = sorted(parameters.items(), key=lambda each: ("defaultValue" in each[1], each[0]))
    rows = (
        (
            f"{anchor(f'{pipeline}.{name}')}{code(name)}",
            _TYPES[found["parameterType"]],
            code(format_value(found["defaultValue"])) if "defaultValue" in found else "required",
            sentence(found.get("description", "")),
        )
        for name, found in ordered
    )
    return table(("parameter", "type", "default", "description"), rows)
