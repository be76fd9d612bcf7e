"""Validate mappings from configurations and pipelines with pydantic models, and report faults as a `UsageError`."""

from collections.abc import Container, Iterator, Mapping
from dataclasses import MISSING, fields
from itertools import islice
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from gumshoe.errors import UsageError

ModelT = TypeVar("ModelT", bound=BaseModel)
OptionsT = TypeVar("OptionsT")
_KEY_FAULTS = ("extra_forbidden", "missing")
_MOST_SHOWN = 60  # characters of a value in a message
_WITHOUT_VALUE = (*_KEY_FAULTS, "value_error")  # the value does not matter, or is in the message


class ParameterModel(BaseModel):
    """Base of the models of pipeline parameters that are mappings.

    Values must have the declared types: a bool is not a number, nor is a string. Kubeflow passes all numbers in a
    mapping as floats, so whole floats are accepted as integers.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @field_validator("*", mode="before")
    @classmethod
    def _convert_whole_floats(cls, value: Any) -> Any:
        return to_int_if_whole(value)


def to_int_if_whole(value: Any) -> Any:
    """Convert a whole float to int, and return any other value unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def validate_model(model: type[ModelT], values: object, code: str, what: str) -> ModelT:
    """Return values as a pydantic model. A `GumshoeError` that a validator raises keeps its own code and message.

    `what` begins the message, e.g. `invalid limits`. The values must not be secret, because the message contains them.

    Raises:
        UsageError: if the values are invalid. The message names each wrong key and its value; if a key is unknown or
            missing, it lists those that exist.
    """
    try:
        return model.model_validate(dict(values) if isinstance(values, Mapping) else values)
    except ValidationError as error:
        places = dict.fromkeys(each["loc"][:-1] for each in error.errors() if each["type"] in _KEY_FAULTS)
        hints = "".join(_describe_fields(model, place) for place in places)
        raise UsageError(code, f"{what}: {describe_validation_error(error, with_values=True)}{hints}") from None


def validate_options(
    kind: type[OptionsT], values: object, code: str, what: str, *, without: Container[str] = ()
) -> OptionsT:
    """Return values as an instance of a dataclass of options, whose integers are limits and thus must be >= 0.

    Tuples are given as lists. The fields `without` are not accepted. The rest is as in `validate_model`.

    Raises:
        UsageError: if the values are invalid.
    """
    model: type[ParameterModel] = create_model("Options", __base__=ParameterModel, **dict(_list_options(kind, without)))
    found = validate_model(model, values, code, what).model_dump()
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in found.items()})


def _list_options(kind: type, without: Container[str]) -> Iterator[tuple[str, Any]]:
    """Yield name, and type and default, of the fields of a dataclass, as `create_model` takes them."""
    hints = get_type_hints(kind)
    for each in fields(kind):
        if each.name in without:
            continue
        hint, default = hints[each.name], ... if each.default is MISSING else each.default
        if hint in (int, int | None):
            hint = Annotated[hint, Field(ge=0)]
        elif get_origin(hint) is tuple:
            hint = list[get_args(hint)[0]]  # type: ignore[misc]
            default = list(default) if isinstance(default, tuple) else default
        yield each.name, (hint, default)


def describe_validation_error(error: ValidationError, most: int = 5, *, with_values: bool = False) -> str:
    """Return the key and the reason of each fault that pydantic found, up to `most` of them.

    With `with_values`, the wrong values are added; they must not be secret.
    """
    return "; ".join(_describe_fault(each, with_values) for each in islice(error.errors(), most))


def _describe_fault(fault: ErrorDetails, with_value: bool) -> str:
    key, kind = ".".join(map(str, fault["loc"])), fault["type"]
    why = "must be a mapping" if kind in ("model_type", "dict_type") else fault["msg"].removeprefix("Value error, ")
    found = f", got {_shorten(fault['input'])}" if with_value and kind not in _WITHOUT_VALUE else ""
    return f"{key}: {why[:1].lower()}{why[1:]}{found}".removeprefix(": ")


def _describe_fields(model: type[BaseModel], place: tuple[str | int, ...]) -> str:
    """Describe what the model at a place in a model accepts; empty if that is in a list or has one of several types."""
    for name in place:
        kind = model.model_fields[name].annotation if isinstance(name, str) and name in model.model_fields else None
        if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
            return ""
        model = kind
    known = ", ".join(_describe_field(*item) for item in model.model_fields.items()) or "no settings"
    return f"; {'.'.join(map(str, place)) or 'it'} accepts {known}"


def _describe_field(name: str, field: FieldInfo) -> str:
    has_default = not field.is_required() and field.default_factory is None
    shown = "optional" if field.default is None else f"{_shorten(field.default)} by default"
    return f"{name} ({_name_type(field.annotation)}{f', {shown}' if has_default else ''})"


def _name_type(kind: Any) -> str:
    """Return the name of a type as in Python code, without the metadata of `Annotated` and the `None` of a union."""
    if get_origin(kind) is Annotated:
        return _name_type(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return " | ".join(_name_type(each) for each in get_args(kind) if each is not NoneType)
    is_plain = isinstance(kind, type) and not get_args(kind)
    return kind.__name__ if is_plain else str(kind).replace("typing.", "")


def _shorten(value: object) -> str:
    """Return a value as in Python code, cut to a length that fits into a message."""
    shown = repr(value)
    return shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}…"
