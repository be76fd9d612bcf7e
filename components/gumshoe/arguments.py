"""What a configuration names of somebody's own code, and the settings that it gives to it: those after `*` in its
signature.
"""

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from gumshoe.errors import GumshoeError, faults_of


def imported(what: str, place: str, attribute: str, error: type[GumshoeError]) -> Any:
    """What a module of somebody's has under a name, or None; `what` is what it is to be, as an error names it.

    Raises:
        error: the module cannot be imported.
    """
    try:
        return getattr(import_module(place), attribute, None)
    except Exception as failure:  # noqa: BLE001 - a module of somebody else's may fail in any way
        raise error(
            f"{what}: {place} cannot be imported ({type(failure).__name__}: {failure}); check its name and code"
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
    """What is wrong with settings, and what there is to set."""
    takes = ", ".join(map(_described, settings.model_fields.items())) or "no arguments"
    return f"{faults_of(error)}; it takes {takes}"


def _described(item: tuple[str, Any]) -> str:
    name, described = item
    kind = getattr(described.annotation, "__name__", str(described.annotation))
    return f"{name} ({kind})" if described.is_required() else f"{name} ({kind}, {described.default!r} unless given)"
