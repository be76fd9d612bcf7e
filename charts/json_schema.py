"""Write the JSON Schema of a pydantic model as all versions of Helm read it: draft 7, without references."""

from typing import Any

from pydantic import BaseModel

JsonSchema = dict[str, Any]


def format_schema(model: type[BaseModel]) -> JsonSchema:
    """Return the JSON Schema of a model without references, titles and defaults."""
    schema = model.model_json_schema()
    return _simplify(schema, schema.pop("$defs", {}))


def _simplify(schema: JsonSchema, definitions: dict[str, JsonSchema]) -> JsonSchema:
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        schema = {**definitions[name], **{key: value for key, value in schema.items() if key != "$ref"}}
    simple: JsonSchema = {}
    for key, value in schema.items():
        match key, value:
            case ("title" | "default", _) | ("additionalProperties", True):
                pass
            case "description", str():
                simple[key] = " ".join(value.partition("\n\n")[0].split())
            case "properties", dict():
                simple[key] = {name: _simplify(each, definitions) for name, each in value.items()}
            case "anyOf" | "allOf" | "oneOf", list():
                simple[key] = [_simplify(each, definitions) for each in value]
            case "items" | "additionalProperties", dict():
                simple[key] = _simplify(value, definitions)
            case _:
                simple[key] = value
    return _merge_types(simple)


def _merge_types(schema: JsonSchema) -> JsonSchema:
    """Write a choice between different types as a list of types, so that Helm reports one error instead of one each.

    The other keywords of each choice are kept: they apply only to values of its type.
    """
    choices = schema.get("anyOf", [])
    types = [choice.get("type") for choice in choices]
    distinct = {"number" if kind == "integer" else str(kind) for kind in types}
    if not choices or None in types or len(distinct) < len(types) or any("enum" in choice for choice in choices):
        return schema
    merged = {key: value for choice in choices for key, value in choice.items()}
    return {**merged, **{key: value for key, value in schema.items() if key != "anyOf"}, "type": types}
