"""Tools as typed functions: build their JSON schemas, and call them with arguments that a model wrote."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from inspect import signature
from types import MethodType
from typing import Any, cast

from pydantic import ConfigDict, ValidationError, validate_call

from gumshoe.environments.argument_checks import find_bad_values, join_faults
from gumshoe.environments.data_marks import enclose_data, escape_marks

ToolFunction = Callable[..., str]
"""A tool: a function that takes the model's arguments and returns the text of the result."""

_MAX_NAME = 80  # characters of an unknown name in a message
_STRICT = ConfigDict(strict=True, arbitrary_types_allowed=True)


class UnknownToolError(Exception):
    """Report that there is no tool with that name."""


class BadArgumentsError(Exception):
    """Report arguments that do not match the tool's signature."""


class ToolError(Exception):
    """Report that a valid call failed. The model receives the message and continues."""


class UnknownSourceError(ToolError):
    """Report that a message or a document does not exist."""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of a model."""

    name: str
    arguments: dict[str, Any]
    id: str = ""
    """Id that the model gave it; empty if its format has none."""


def describe_unknown_tool(name: str, tools: Iterable[str]) -> str:
    """Return the message about a call of a tool that does not exist, with the names of those that do."""
    return f"there is no tool {name[:_MAX_NAME]!r}; there are {', '.join(tools)}"


class Toolbox:
    """Tools of one environment, by name.

    The schema of a tool comes from its signature and its docstring (Google style). Arguments are checked strictly and
    never converted to another type. With `marks`, what a call returns, or reports as a `ToolError`, is enclosed in the
    marks of `gumshoe.environments.data_marks`.
    """

    def __init__(self, tools: list[ToolFunction], *, marks: bool = False) -> None:
        self._marks = marks
        self._tools: Mapping[str, ToolFunction] = {tool.__name__: tool for tool in tools}
        self._checked_tools: Mapping[str, ToolFunction] = {
            name: _with_checks(tool) for name, tool in self._tools.items()
        }

    @property
    def tools(self) -> list[ToolFunction]:
        """The original tools, without argument checks."""
        return list(self._tools.values())

    @property
    def has_marks(self) -> bool:
        """True if results are enclosed in marks."""
        return self._marks

    def schemas(self) -> list[dict[str, Any]]:
        """Return the schema of each tool, for chat templates and chat APIs. Do not modify them: they are shared."""
        return [_build_schema(*_split_method(tool)) for tool in self._tools.values()]

    def run(self, call: Call) -> str:
        """Run a tool call and return its result.

        Raises:
            UnknownToolError: if there is no tool with that name.
            BadArgumentsError: if the arguments do not match the tool's signature.
            ToolError: if the tool fails.
        """
        tool = self._checked_tools.get(call.name)
        if tool is None:
            raise UnknownToolError(self._quote(describe_unknown_tool(call.name, self._tools)))
        if fault := join_faults(find_bad_values(call.arguments)):
            raise BadArgumentsError(self._quote(f"{call.name}: {fault}"))
        try:
            result = tool(**call.arguments)
        except ValidationError as error:
            if error.title.rpartition(".")[2] != call.name:  # raised inside the tool
                raise
            faults = join_faults(f"{'.'.join(map(str, each['loc']))}: {each['msg'].lower()}" for each in error.errors())
            raise BadArgumentsError(self._quote(f"{call.name}: {faults}")) from None
        except ToolError as error:
            if self._marks:
                error.args = (enclose_data(str(error)),)
            raise
        return enclose_data(result) if self._marks and result else result

    def _quote(self, message: str) -> str:
        """Return a message about a call that quotes the call, which a message in the data may have suggested."""
        return escape_marks(message) if self._marks else message


# Building variants, checks and schemas takes longer than a search, and each episode has its own toolbox. All are
# therefore cached by function, which all instances of an environment class share.


def vary_tool(
    tool: ToolFunction, without: tuple[str, ...] = (), reword: tuple[tuple[str, str], ...] = ()
) -> ToolFunction:
    """Return another form of a tool that is a method: without some arguments, which keep their defaults.

    Their descriptions are left out of its docstring, in which each first text in `reword` is replaced by the second.

    Raises:
        ValueError: if the docstring does not have a text to replace.
    """
    method = cast(MethodType, tool)
    return MethodType(_vary_function(method.__func__, without, reword), method.__self__)


@lru_cache(maxsize=256)
def _vary_function(
    function: ToolFunction, without: tuple[str, ...], reword: tuple[tuple[str, str], ...]
) -> ToolFunction:
    whole = signature(function)
    reduced = whole.replace(parameters=[each for name, each in whole.parameters.items() if name not in without])

    def variant(*arguments: Any, **named: Any) -> str:
        return function(**reduced.bind(*arguments, **named).arguments)

    attributes = {
        **{name: getattr(function, name) for name in ("__module__", "__name__", "__qualname__")},
        "__signature__": reduced,
        "__annotations__": {name: each for name, each in function.__annotations__.items() if name not in without},
        "__doc__": _reword_docstring(function, without, reword),
    }
    for name, value in attributes.items():
        setattr(variant, name, value)
    return variant


def _reword_docstring(function: ToolFunction, without: tuple[str, ...], reword: tuple[tuple[str, str], ...]) -> str:
    described = function.__doc__ or ""
    for name in without:
        described = re.sub(rf"^ *{name}: .*\n", "", described, count=1, flags=re.M)
    for old, new in reword:
        if old not in described:
            raise ValueError(f"{function.__qualname__}: {old!r} is not in the docstring")
        described = described.replace(old, new)
    return described


def _with_checks(tool: ToolFunction) -> ToolFunction:
    """Return the tool with strict checks of its arguments."""
    if isinstance(tool, MethodType):
        return MethodType(_validate_function(tool.__func__), tool.__self__)
    return _validate_function(tool)


@lru_cache(maxsize=256)
def _validate_function(function: ToolFunction) -> ToolFunction:
    return validate_call(config=_STRICT)(function)


def _split_method(tool: ToolFunction) -> tuple[ToolFunction, bool]:
    """Return the function of a tool, and True if the tool is a method."""
    return (tool.__func__, True) if isinstance(tool, MethodType) else (tool, False)


@lru_cache(maxsize=256)
def _build_schema(function: ToolFunction, is_method: bool) -> dict[str, Any]:
    """Return the schema of a function, or of a method without `self`."""
    from transformers.utils.chat_template_utils import get_json_schema  # takes a second to import

    schema: dict[str, Any] = get_json_schema(MethodType(function, object()) if is_method else function)
    schema["function"].pop("return", None)  # results are always text
    return schema
