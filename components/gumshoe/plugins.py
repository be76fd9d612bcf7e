"""Import custom code that a configuration names, and validate its settings (arguments after `*` in its signature)."""

import inspect
import sys
from collections.abc import Callable, Mapping
from importlib import import_module, invalidate_caches
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, create_model

from gumshoe.errors import UsageError
from gumshoe.model_validation import validate_model
from gumshoe.yaml_text import InvalidYamlError, load_yaml


def find_module(name: str) -> None:
    """Let Python find a module of the working directory, if no other module has its name.

    Processes that are started with `python -m` find it anyway, and commands such as `gumshoe` would not.
    """
    outermost = name.partition(".")[0]
    if outermost in sys.modules or find_spec(outermost) is not None:
        return
    here = Path.cwd()
    if (here / outermost).is_dir() or (here / f"{outermost}.py").is_file():
        sys.path.append(str(here))
        invalidate_caches()


def import_attribute(what: str, place: str, attribute: str, code: str) -> Any:
    """Import a module and return an attribute of it, or None if it has no such attribute.

    The module may be in the working directory.

    Raises:
        UsageError: if the module cannot be imported. The error has the given code, and its message names `what`.
    """
    try:
        find_module(place)
        return getattr(import_module(place), attribute, None)
    except (Exception, SystemExit) as failure:  # noqa: BLE001 - custom code may raise anything
        is_missing = isinstance(failure, ModuleNotFoundError) and place.startswith(failure.name or place)
        todo = (
            "install its package, add its directory to PYTHONPATH, or run the command in that directory"
            if is_missing
            else "check its code"
        )
        raise UsageError(code, f"{what}: cannot import {place}: {type(failure).__name__}: {failure}; {todo}") from None


def parse_named(value: Any, settings_key: str) -> tuple[str, dict[str, Any]] | None:
    """Return the name and the settings of a plugin in a configuration, or None if the value has another form.

    The forms are `name`, `{name: {setting: ...}}` and `{"name": name, settings_key: {setting: ...}}`; a string may be
    any of them, in YAML.
    """
    try:
        read = load_yaml(value) if isinstance(value, str) else value
    except InvalidYamlError:
        return None
    match read:
        case str(name) if name.strip():
            return name.strip(), {}
        case {"name": str(name), **rest} if set(rest) <= {settings_key}:
            settings = rest.get(settings_key)
        case dict(named) if len(named) == 1:
            ((name, settings),) = named.items()
        case _:
            return None
    return (name, settings or {}) if isinstance(name, str) and isinstance(settings, dict | None) else None


def settings_model(function: Callable[..., Any]) -> type[BaseModel]:
    """Return a model of a function's settings: its arguments after `*`, with their types and defaults.

    Raises:
        NameError: if a type does not exist at runtime.
    """
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    fields: dict[str, Any] = {
        each.name: (
            Any if each.annotation is each.empty else each.annotation,
            ... if each.default is each.empty else each.default,
        )
        for each in parameters
        if each.kind is each.KEYWORD_ONLY
    }
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, validate_default=True)
    return create_model(function.__name__, __config__=config, **fields)


def validate_settings(settings: type[BaseModel], given: Mapping[str, Any], code: str, what: str) -> dict[str, Any]:
    """Validate settings, and return all of them by name, defaults included. `what` begins an error's message.

    Raises:
        UsageError: if a setting is unknown or invalid.
    """
    found = validate_model(settings, given, code, what)
    return {name: getattr(found, name) for name in settings.model_fields}
