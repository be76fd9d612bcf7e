"""What a configuration names of somebody's own code, and the settings that it gives to it: those after `*` in its
signature.
"""

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from gumshoe.errors import UsageError, faults_of


def imported(what: str, place: str, attribute: str, code: str) -> Any:
    """Return what a user's module has under a name, or None. An error names it as `what`, and has the given code.

    Raises:
        UsageError: the module cannot be imported.
    """
    try:
        return getattr(import_module(place), attribute, None)
    except Exception as failure:  # noqa: BLE001 - a module of somebody else's may fail in any way
        raise UsageError(
            code, f"{what}: cannot import {place}: {type(failure).__name__}: {failure}; check its name and its code"
        ) from None


def settings_of(function: Callable[..., Any]) -> type[BaseModel]:
    """What a function's settings must be: its arguments after `*`, with their types and defaults.

    Raises:
        NameError: a type is named by what is not there when it runs.
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


def checked(settings: type[BaseModel], given: Mapping[str, Any]) -> dict[str, Any]:
    """All settings by name, given or not.

    Raises:
        ValidationError: they are none.
    """
    found = settings.model_validate(dict(given))
    return {name: getattr(found, name) for name in settings.model_fields}


def faults(settings: type[BaseModel], error: ValidationError) -> str:
    """Return what is wrong with settings, and which settings exist."""
    known = ", ".join(map(_described, settings.model_fields.items())) or "no settings"
    return f"{faults_of(error)}; it accepts {known}"


def _described(item: tuple[str, Any]) -> str:
    name, described = item
    kind = getattr(described.annotation, "__name__", str(described.annotation))
    return f"{name} ({kind})" if described.is_required() else f"{name} ({kind}, {described.default!r} by default)"
