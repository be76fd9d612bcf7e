"""Describe JSON Schemas in words: the type, limits and default of each property."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml
from docs.generate.markdown import code, sentence, table

Json = Mapping[str, Any]
_TYPES = {"boolean": "true or false", "object": "mapping", "null": "null"}
_PLURALS = {"integer": "integers", "number": "numbers", "string": "strings", "path": "paths", "mapping": "mappings"}
_FORMATS = {"date": "date (YYYY-MM-DD)", "path": "path", "uri": "URI"}
_LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
_SIZES = {
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
}
_REQUIRED = object()


@dataclass(frozen=True)
class Property:
    """A property of an object, with its dotted name."""

    name: str
    schema: Json
    is_required: bool
    definitions: Json = field(repr=False)

    @property
    def default(self) -> str:
        """The default value in YAML, as inline code. Empty if the value is required."""
        value = self.schema.get("default", _REQUIRED)
        if self.is_required:
            return "required"
        if value is _REQUIRED or value is None:
            return ""
        return code(format_value(value))

    @property
    def description(self) -> str:
        return sentence(self.schema.get("description", ""))


def format_value(value: Any) -> str:
    """Return a value in YAML on one line."""
    if isinstance(value, str):
        return value or '""'
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, int | bool) or not value:
        return json.dumps(value)
    if isinstance(value, list):
        value = [_shorten(each) for each in value]
    return str(yaml.safe_dump(_shorten(value), default_flow_style=True, width=10**6, sort_keys=False)).strip()


def _shorten(value: Any) -> Any:
    """Return a mapping without its empty mappings, e.g. the arguments of something that has none."""
    return {key: each for key, each in value.items() if each != {}} if isinstance(value, dict) else value


def list_properties(schema: Json) -> Iterator[Property]:
    """Yield the properties of an object, with references resolved."""
    definitions = schema.get("$defs", {})
    for name, found in schema.get("properties", {}).items():
        resolved = resolve(found, definitions)
        yield Property(name, resolved, name in schema.get("required", ()), definitions)


def resolve(schema: Json, definitions: Json) -> Json:
    """Return a schema with the definition that it refers to. Its own keywords win."""
    if "$ref" not in schema:
        return schema
    name = schema["$ref"].rpartition("/")[2]
    own = {key: value for key, value in schema.items() if key != "$ref"}
    return {**definitions[name], **own, "x-name": name}


def describe_type(schema: Json, definitions: Json, *, with_links: bool = False) -> str:
    """Return the type with its limits in words, e.g. `integer ≥ 1` or `list of strings`.

    With `with_links`, an object with a name is a link to its heading on the same page.
    """
    schema = resolve(schema, definitions)
    if "enum" in schema:
        return ", ".join(code(format_value(each)) for each in schema["enum"])
    if "const" in schema:
        return code(format_value(schema["const"]))
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        chosen = [each for each in choices if resolve(each, definitions).get("type") != "null"]
        return " or ".join(dict.fromkeys(describe_type(each, definitions, with_links=with_links) for each in chosen))
    kinds = schema.get("type", "any")
    kinds = [each for each in kinds if each != "null"] if isinstance(kinds, list) else [kinds]
    if with_links and "x-name" in schema:
        return f"[{schema['x-name']}](#{schema['x-name'].lower()})"
    if kinds == ["array"]:
        items = {key: each for key, each in schema.get("items", {}).items() if key not in _SIZES}
        inner = describe_type(items, definitions, with_links=with_links) if items else "any"
        named = "list" if inner == "any" else f"list of {_PLURALS.get(inner, inner)}"
        return ", ".join([named, *_list_sizes(schema)])
    return " or ".join(_name_type(each, schema) for each in kinds)


def _name_type(kind: str, schema: Json) -> str:
    named = _FORMATS.get(schema.get("format", ""), "string") if kind == "string" else _TYPES.get(kind, kind)
    limits = [f"{sign} {format_value(schema[key])}" for key, sign in _LIMITS.items() if key in schema]
    limits = limits if kind in ("integer", "number") else []
    return ", ".join([f"{named} {', '.join(limits)}".strip(), *_list_sizes(schema)])


def _list_sizes(schema: Json) -> list[str]:
    sizes = [text.format(f"{schema[key]:,}") for key, text in _SIZES.items() if key in schema]
    return ["not empty" if each.startswith("at least 1 ") else each for each in sizes]


def describe_properties(schema: Json, *, are_inputs: bool = True, with_links: bool = True) -> Iterator[str]:
    """Yield the lines of a table of an object's properties. Only inputs have defaults."""
    rows = (
        (
            code(each.name),
            describe_type(each.schema, each.definitions, with_links=with_links),
            *([each.default] if are_inputs else []),
            each.description,
        )
        for each in list_properties(schema)
    )
    return table(("name", "type", *(["default"] if are_inputs else []), "description"), rows)
