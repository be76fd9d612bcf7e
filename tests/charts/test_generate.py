"""Test the files that are generated from the chart's model, and the server settings that Helm accepts."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from charts.agent_values import ChartValues
from charts.generate import format_table, main
from charts.json_schema import format_schema
from pydantic import BaseModel, Field, create_model

from gumshoe.serving.settings import ServeSettings
from tests.charts.test_agent_chart import CHART, chart, render, settings_of, values_of


def test_the_generated_files_are_up_to_date() -> None:
    main([str(CHART), "--check"])


@pytest.mark.parametrize("name", ["values.yaml", "values.schema.json", "README.md"])
def test_check_names_an_outdated_file_and_generating_corrects_it(name: str, tmp_path: Path) -> None:
    for each in ("values.yaml", "values.schema.json", "README.md"):
        shutil.copy(CHART / each, tmp_path)
    file = tmp_path / name
    file.write_text(file.read_text().replace("LoRA rank", "rank"))
    with pytest.raises(SystemExit, match=re.escape(name)):
        main([str(tmp_path), "--check"])
    main([str(tmp_path)])
    assert file.read_text() == (CHART / name).read_text()


def test_values_yaml_has_the_defaults_and_every_value_is_described() -> None:
    values = ChartValues()
    assert yaml.safe_load((CHART / "values.yaml").read_text()) == values.model_dump(by_alias=True)
    assert not [row for row in format_table(values) if row.endswith("| None |")]


def nest(path: str, value: Any) -> Any:
    """Return nested mappings, e.g. {"a": {"b": value}} for `a.b`."""
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


def list_leaves(tree: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yield the paths of all values that are not mappings."""
    for name, value in tree.items():
        yield from list_leaves(value, f"{path}{name}.") if isinstance(value, dict) else [f"{path}{name}"]


def list_server_settings(model: Any = ServeSettings, section: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path of each setting of the server, and its type and field as `create_model` takes them."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from list_server_settings(kind, f"{section}{name}.")
        else:
            yield f"{section}{name}", (kind, field)


def find_example(schema: dict[str, Any]) -> Any:
    """Return a value that a JSON Schema of one setting accepts."""
    match schema:
        case {"examples": [first, *_]}:
            return first
        case {"anyOf": [first, *_]}:
            return find_example(first)
        case {"type": [first, *_]}:
            return find_example({**schema, "type": first})
        case {"enum": [first, *_]}:
            return first
        case {"type": "array", "items": items}:
            return [find_example(items)]
        case {"type": "string", "pattern": pattern} if not re.search(pattern, "email"):
            return "https://host"
        case {"type": "integer" | "number"}:
            return schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
    return {"string": "email", "boolean": True, "object": {}}[schema["type"]]


def is_accepted(settings: dict[str, Any]) -> bool:
    from helm_python import HelmError

    try:
        chart().validate_schema({"agent": {"settings": settings}})
    except HelmError:
        return False
    return True


def test_helm_accepts_every_server_setting_that_the_chart_does_not_set() -> None:
    refused = set()
    for path, field in list_server_settings():
        model = create_model("Setting", value=field)
        example = find_example(format_schema(model)["properties"]["value"])
        model(value=example)
        refused |= set() if is_accepted(nest(path, example)) else {path}
    values = values_of("everything")
    set_by_chart = set(list_leaves(settings_of(render(values)))) - set(list_leaves(values["agent"]["settings"]))
    assert refused == set_by_chart | {"model.adapter", "model.base"}, "the server refuses these two with model.policy"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("limit", {}),
        ("limits.queu", 1),
        ("limits.queue", -1),
        ("limits.queue", "many"),
        ("limits.deadline", 0),
        ("model.temperature", 2.5),
        ("model.choose", "worst"),
        ("access.algorithms", ["none"]),
        ("access.inboxes", "*@example.com"),
        ("log_questions", "yes"),
        ("environment", 1),
    ],
)
def test_helm_refuses_wrong_server_settings_and_names_them(path: str, value: Any) -> None:
    section, _, name = f"agent.settings.{path}".rpartition(".")
    with pytest.raises(Exception, match=rf"/{section.replace('.', '/')}(/{name}|'.*'{name}')"):
        render({**values_of("standard"), "agent": {**values_of("standard")["agent"], "settings": nest(path, value)}})


@pytest.mark.parametrize("environment", ["documents", {"documents": {"reasoning": False}}, None])
def test_helm_accepts_every_form_of_an_environment(environment: Any) -> None:
    assert is_accepted({"environment": environment})


class ExampleItem(BaseModel):
    size: int | None = Field(None, ge=1)


class ExampleValues(BaseModel):
    """First paragraph.

    Second paragraph.
    """

    title: str | list[ExampleItem] = Field("", description="A title.")
    kind: Literal["a", "b"] | None = None
    number: int | float = 0


def test_the_schema_of_a_model_has_no_references() -> None:
    item = {"type": "object", "properties": {"size": {"type": ["integer", "null"], "minimum": 1}}}
    assert format_schema(ExampleValues) == {
        "description": "First paragraph.",
        "type": "object",
        "properties": {
            "title": {"type": ["string", "array"], "items": item, "description": "A title."},
            "kind": {"anyOf": [{"type": "string", "enum": ["a", "b"]}, {"type": "null"}]},
            "number": {"anyOf": [{"type": "integer"}, {"type": "number"}]},
        },
    }
