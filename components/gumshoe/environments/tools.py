"""Tools as typed callables: their JSON schemas, and calls of them with arguments that a model wrote."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MethodType
from typing import Any

from pydantic import ConfigDict, ValidationError, validate_call

Run = Callable[..., str]
"""A tool: called with the model's arguments, it gives the text of the result."""

_STRICT = ConfigDict(strict=True, arbitrary_types_allowed=True)


class UnknownToolError(Exception):
    """There is no tool of that name."""


class BadArgumentsError(Exception):
    """The arguments are not those of the tool's signature."""


class ToolError(Exception):
    """A call was well formed and cannot be carried out; the model is told why, and goes on."""


@dataclass(frozen=True, slots=True)
class Call:
    """What a model asks for."""

    name: str
    arguments: dict[str, Any]


class Toolbox:
    """The tools of one environment, by name.

    The schema of each comes from its signature and docstring (Google style), strictly checked: no argument is
    converted to another type.
    """

    def __init__(self, tools: list[Run]) -> None:
        self._tools: Mapping[str, Run] = {tool.__name__: tool for tool in tools}
        self._checked: Mapping[str, Run] = {name: _checked(tool) for name, tool in self._tools.items()}

    @property
    def tools(self) -> list[Run]:
        """The tools as they are, unchecked."""
        return list(self._tools.values())

    def schemas(self) -> list[dict[str, Any]]:
        """Each tool as chat templates and chat models take it; not to be changed, since others are given them too."""
        return [_schema(*_parts(tool)) for tool in self._tools.values()]

    def run(self, call: Call) -> str:
        """The result of a call.

        Raises:
            UnknownToolError, BadArgumentsError: the call is no use; its message says what is wrong.
            ToolError: the tool says that it cannot be done.
        """
        tool = self._checked.get(call.name)
        if tool is None:
            raise UnknownToolError(f"there is no tool {call.name!r}; there are {', '.join(self._tools)}")
        try:
            return tool(**call.arguments)
        except ValidationError as error:
            if error.title.rpartition(".")[2] != call.name:  # of something that the tool itself does
                raise
            faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg'].lower()}" for fault in error.errors()]
            raise BadArgumentsError(f"{call.name}: {'; '.join(faults)}") from None


# Checks and schemas take longer to make than a search takes, and each episode has a toolbox of its own: they are made
# once for a function, which all instances of an environment's class share.


def _checked(tool: Run) -> Run:
    """A tool that refuses arguments of other types."""
    if isinstance(tool, MethodType):
        return MethodType(_validated(tool.__func__), tool.__self__)
    return _validated(tool)


@lru_cache(maxsize=256)
def _validated(function: Run) -> Run:
    return validate_call(config=_STRICT)(function)


def _parts(tool: Run) -> tuple[Run, bool]:
    """A tool's function, and whether it is a method."""
    return (tool.__func__, True) if isinstance(tool, MethodType) else (tool, False)


@lru_cache(maxsize=256)
def _schema(function: Run, is_method: bool) -> dict[str, Any]:
    """The schema of a function, or of a method as an instance has it: without `self`."""
    from transformers.utils.chat_template_utils import get_json_schema  # takes a second to import

    schema: dict[str, Any] = get_json_schema(MethodType(function, object()) if is_method else function)
    schema["function"].pop("return", None)  # always text
    return schema
