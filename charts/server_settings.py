"""Take types, limits, defaults and descriptions of chart values from the settings of the agent server."""

from typing import Any

from charts.json_schema import JsonSchema, format_schema
from pydantic import Field

from gumshoe.serving.settings import ServeSettings

_SET_BY_TEMPLATES = {"index", "host", "port", "metrics_port", "model.policy", "model.canary", "access.keys"}
"""Settings that the templates compute."""
_CONTRADICTORY = {"model.adapter", "model.base"}
"""Settings that the server refuses together with those."""
_with_value: set[str] = set()
"""Settings that have a chart value of their own, added by `from_setting`."""


def from_setting(path: str, *, default: Any = None, description: str | None = None, **limits: Any) -> Any:
    """Return the field of a chart value that the templates pass to the server as a setting, e.g. `model.max_context`.

    Type, limits, default and description are the setting's; `default` and `description` replace them, and `limits`
    (JSON Schema keywords, e.g. `pattern`) are added. A string that is None by default is "" in the chart. The setting
    can then no longer be given in `agent.settings`.
    """
    _with_value.add(path)
    *sections, name = path.split(".")
    settings: Any = ServeSettings
    schema = format_schema(ServeSettings)
    for section in sections:
        settings, schema = settings.model_fields[section].annotation, schema["properties"][section]
    field, schema = settings.model_fields[name], schema["properties"][name]
    kinds = schema.get("type")
    if default is None:
        default = "" if field.default is None and "string" in (kinds or ()) else field.default
    if isinstance(kinds, list) and default is not None:
        kinds = [kind for kind in kinds if kind != "null"]
        schema["type"] = kinds if len(kinds) > 1 else kinds[0]
    schema["description"] = description or field.description
    return Field(default, description=schema["description"], json_schema_extra={**schema, **limits})


def describe_settings(schema: JsonSchema) -> None:
    """Add to the JSON Schema of `agent.settings` all settings of the server that do not follow from other values."""
    schema["properties"] = _select(format_schema(ServeSettings)["properties"])
    schema["additionalProperties"] = False


def _select(properties: dict[str, JsonSchema], section: str = "") -> dict[str, JsonSchema]:
    """Return the settings that users may give, all of them optional."""
    selected = {}
    for name, schema in properties.items():
        if section + name in _SET_BY_TEMPLATES | _CONTRADICTORY | _with_value:
            continue
        inner = {"properties": _select(schema["properties"], f"{section}{name}.")} if "properties" in schema else {}
        selected[name] = {key: value for key, value in schema.items() if key != "required"} | inner
    return selected
