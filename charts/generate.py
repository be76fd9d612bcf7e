"""Generate a chart's values.yaml, values.schema.json and the table in its README from charts/agent_values.py.

Run `python -m charts.generate charts/agent`. `--check` only checks that the files are up to date.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from charts.agent_values import ChartValues
from charts.json_schema import format_schema
from pydantic import BaseModel
from pydantic.fields import FieldInfo

_BEGIN, _END = "<!-- values -->\n", "<!-- end of values -->"
_HEADER = "# Generated from charts/agent_values.py by `python -m charts.generate charts/agent`. Do not edit.\n\n"


def generate_files(chart: Path) -> dict[Path, str]:
    """Return the content of the generated files, by path."""
    values, readme = ChartValues(), chart / "README.md"
    head, _, rest = readme.read_text(encoding="utf-8").partition(_BEGIN)
    return {
        chart / "values.yaml": _HEADER + "\n".join(format_values(values)) + "\n",
        chart / "values.schema.json": json.dumps(format_chart_schema(), indent=2) + "\n",
        readme: head + _BEGIN + "\n".join(format_table(values)) + "\n" + _END + rest.partition(_END)[2],
    }


def format_values(section: BaseModel, indent: str = "") -> Iterator[str]:
    """Yield the lines of values.yaml. A section is commented with its docstring, a value with its description."""
    for name, value, field in _list_fields(section):
        if isinstance(value, BaseModel):
            yield from [] if indent else [""]
            yield from [f"{indent}# {value.__doc__}"] if value.__doc__ else []
            yield f"{indent}{name}:"
            yield from format_values(value, f"{indent}  ")
            continue
        yield f"{indent}# -- {field.description}"
        match value:
            case dict() if value:
                yield f"{indent}{name}:"
                yield from (f"{indent}  {_format_flow(key)}: {_format_flow(each)}" for key, each in value.items())
            case list() if value:
                yield f"{indent}{name}:"
                yield from (f"{indent}  - {_format_flow(each)}" for each in value)
            case _:
                yield f"{indent}{name}: {_format_scalar(value)}"


def format_table(values: BaseModel) -> Iterator[str]:
    """Yield the lines of the README's table of values."""
    yield from ["| value | default | |", "|---|---|---|"]
    yield from _format_rows(values)


def _format_rows(section: BaseModel, path: str = "") -> Iterator[str]:
    for name, value, field in _list_fields(section):
        if isinstance(value, BaseModel):
            yield from _format_rows(value, f"{path}{name}.")
        else:
            shown = _format_flow(value) if isinstance(value, dict | list) else _format_scalar(value)
            yield f"| `{path}{name}` | `{shown}` | {field.description} |"


def format_chart_schema() -> dict[str, Any]:
    """Return the JSON Schema of the values."""
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of gumshoe-agent",
        **format_schema(ChartValues),
    }
    schema["properties"]["global"] = {"type": "object"}  # Helm adds it if another chart depends on this one
    return schema


def _list_fields(section: BaseModel) -> Iterator[tuple[str, Any, FieldInfo]]:
    """Yield the name, the default and the field of each value or section in a section."""
    for attribute, field in type(section).model_fields.items():
        yield field.alias or attribute, getattr(section, attribute), field


def _format_flow(value: Any) -> str:
    """Return YAML in flow style, e.g. `{cpu: "4", memory: 32Gi}`."""
    match value:
        case dict():
            return "{" + ", ".join(f"{_format_flow(key)}: {_format_flow(each)}" for key, each in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_format_flow, value)) + "]"
        case str():
            plain = yaml.safe_dump([value], default_flow_style=True, width=sys.maxsize).strip() == f"[{value}]"
            return value if plain else json.dumps(value)
    return json.dumps(value)


def _format_scalar(value: Any) -> str:
    """Return YAML in block style, which needs fewer quotes."""
    if isinstance(value, str):
        plain = yaml.safe_dump(value, width=sys.maxsize).removesuffix("\n...\n") == value
        return value if plain else json.dumps(value)
    return _format_flow(value)


def main(arguments: list[str] | None = None) -> None:
    """Write the files, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chart", type=Path, help="directory of the chart")
    parser.add_argument("--check", action="store_true", help="only check, and exit with 1 if a file is outdated")
    options = parser.parse_args(arguments)
    files = generate_files(options.chart)
    outdated = [path for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if options.check and outdated:
        names = ", ".join(map(str, outdated))
        sys.exit(f"outdated: {names}; run python -m charts.generate {options.chart}")
    for path in [] if options.check else outdated:
        path.write_text(files[path], encoding="utf-8")


if __name__ == "__main__":
    main()
