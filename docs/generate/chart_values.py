"""Page of the values of the Helm chart."""

from collections.abc import Iterator

from charts.agent_values import ChartValues
from docs.generate.json_schema import Json, describe_type, list_properties
from docs.generate.markdown import anchor, code, page, sentence, table


def render_chart_values() -> str:
    """Return the page."""
    schema = ChartValues.model_json_schema(by_alias=True)
    found = list(list_properties(schema))
    sections = [each for each in found if each.schema.get("x-name", "").endswith("Values")]
    return page(
        "Chart values",
        "Values of the chart `charts/agent`, which serves an agent on Kubernetes: in a file (`gumshoe deploy -f "
        "values.yaml`), or one at a time (`--set agent.replicas=4`). `values.schema.json` in the chart is their JSON "
        "Schema.",
        "## General",
        _render_rows({**schema, "properties": {each.name: each.schema for each in found if each not in sections}}, ""),
        (line for each in sections for line in _render_section(each.name, each.schema, schema["$defs"])),
    )


def _render_section(name: str, schema: Json, definitions: Json) -> Iterator[str]:
    yield from [f"## {name}", "", *([sentence(schema["description"])] if "description" in schema else [])]
    yield from _render_rows({**schema, "$defs": definitions}, f"{name}.")


def _render_rows(schema: Json, prefix: str) -> Iterator[str]:
    return table(("value", "type", "default", "description"), _rows(schema, prefix))


def _rows(schema: Json, prefix: str) -> Iterator[tuple[str, str, str, str]]:
    for each in list_properties(schema):
        name = prefix + each.name
        if each.schema.get("x-name", "").endswith("Values"):
            yield from _rows({**each.schema, "$defs": each.definitions}, f"{name}.")
        else:
            kind = describe_type(each.schema, each.definitions)
            yield f"{anchor(name)}{code(name)}", kind, each.default, each.description
