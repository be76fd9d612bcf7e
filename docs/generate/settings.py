"""Pages and JSON Schemas of the settings of training and of the agent server."""

import json
from collections.abc import Iterator, Mapping

from docs.generate.json_schema import Json, Property, describe_type, list_properties
from docs.generate.markdown import anchor, code, page, sentence, table
from pydantic import BaseModel

from gumshoe.serving.settings import PREFIX as SERVE_PREFIX
from gumshoe.serving.settings import ServeSettings
from gumshoe.training.settings import TrainSettings
from gumshoe.training.settings_sources import CONFIGS, list_env_vars
from gumshoe.training.settings_sources import PREFIX as TRAIN_PREFIX

SCHEMAS: dict[str, type[BaseModel]] = {"train": TrainSettings, "serve": ServeSettings}
_TITLES = {"train": "Settings of gumshoe train", "serve": "Settings of gumshoe serve"}


def build_schema(name: str) -> dict[str, object]:
    """Return the JSON Schema of a settings file, for editors.

    Settings of a training run may have dotted names. Settings that the server must have may come from flags, so a file
    may leave them out.
    """
    schema = SCHEMAS[name].model_json_schema()
    schema.pop("required", None)
    if name == "train":
        schema["patternProperties"] = {rf"^({'|'.join(_sections(schema))})\.": {}}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": _TITLES[name]}


def format_schema(name: str) -> str:
    """Return a JSON Schema as the text of a file."""
    return json.dumps(build_schema(name), indent=2, ensure_ascii=False) + "\n"


def render_train_settings() -> str:
    """Return the page of the settings of a training run."""
    presets = ", ".join(code(each.stem) for each in sorted(CONFIGS.glob("*.yaml")))
    variables = {name: [variable] for name, variable in list_env_vars()}
    return page(
        "Training settings",
        "Settings of `gumshoe train`, `gumshoe warm-start`, `gumshoe plan` and the training steps of pipelines. They "
        "come from a YAML file (`--config FILE`), then from environment variables, then from flags "
        "(`--set optimizer.learning_rate=1e-5`); the later source wins.",
        f"`--config` also takes the name of a preset: {presets}. `gumshoe train --print-config` prints all settings, "
        "with the source of each.",
        f"{_describe_variables(TRAIN_PREFIX, 'optimizer.max_steps')} Some settings also have a variable with a "
        "familiar name; if both are set, the one with the prefix wins.",
        _describe_schema("train"),
        _render(TrainSettings, variables),
    )


def render_serve_settings() -> str:
    """Return the page of the settings of the agent server."""
    return page(
        "Server settings",
        "Settings of `gumshoe serve`. They come from a YAML file (`--config FILE`), then from environment variables, "
        "then from flags (`--set limits.queue=10`); the later source wins.",
        f"{_describe_variables(SERVE_PREFIX, 'limits.queue')} `gumshoe serve --print-config` prints all settings.",
        _describe_schema("serve"),
        _render(ServeSettings, {}),
    )


def _describe_variables(prefix: str, example: str) -> str:
    variable = prefix + example.upper().replace(".", "__")
    return (
        f"The environment variable of a setting is its name in capitals after `{prefix}`, with `__` for each dot: "
        f"`{example}` is `{variable}`."
    )


def _describe_schema(name: str) -> str:
    file = f"schemas/{name}.schema.json"
    return (
        f"Editors complete and check such a file with its JSON Schema, [{file}]({file}). In VS Code with the YAML "
        "extension, and in others that use the YAML language server, write the path or the address of the schema in "
        "the first line:\n\n"
        f"```yaml\n# yaml-language-server: $schema=docs/reference/{file}\n```"
    )


def _sections(schema: Json) -> list[str]:
    return [each.name for each in list_properties(schema) if "properties" in each.schema]


def _render(model: type[BaseModel], variables: Mapping[str, list[str]]) -> Iterator[str]:
    schema = model.model_json_schema()
    found = list(list_properties(schema))
    yield "## General"
    yield from _render_rows((each for each in found if "properties" not in _plain(each)), "", variables)
    for each in found:
        if "properties" in _plain(each):
            yield f"## {each.name}"
            yield ""
            yield sentence(each.schema.get("description", ""))
            section = {**each.schema, "$defs": each.definitions}
            yield from _render_rows(list_properties(section), f"{each.name}.", variables)


def _plain(found: Property) -> Json:
    """Return the schema of a section, or an empty one if the property is a value that happens to be an object."""
    return found.schema if found.schema.get("x-name", "").endswith("Settings") else {}


def _render_rows(found: Iterator[Property], prefix: str, variables: Mapping[str, list[str]]) -> Iterator[str]:
    rows = []
    for each in found:
        name = prefix + each.name
        notes = [f"Environment variable: {code(variable)}." for variable in variables.get(name, ())]
        kind = describe_type(each.schema, each.definitions)
        rows.append((f"{anchor(name)}{code(each.name)}", kind, each.default, " ".join([each.description, *notes])))
    return table(("setting", "type", "default", "description"), rows)
