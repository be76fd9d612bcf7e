"""Tools as typed callables: their JSON schemas, and calls of them with arguments that a model wrote."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict, ValidationError, validate_call

Run = Callable[..., str]
"""A tool: called with the model's arguments, it gives the text of the result."""


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
        strict = ConfigDict(strict=True, arbitrary_types_allowed=True)
        self._tools: Mapping[str, Run] = {tool.__name__: tool for tool in tools}
        self._checked: Mapping[str, Run] = {
            name: validate_call(config=strict)(tool) for name, tool in self._tools.items()
        }

    def schemas(self) -> list[dict[str, Any]]:
        """Each tool as chat templates and chat models take it."""
        from transformers.utils.chat_template_utils import get_json_schema  # takes a second to import

        schemas = [get_json_schema(tool) for tool in self._tools.values()]
        for schema in schemas:
            schema["function"].pop("return", None)  # always text
        return schemas

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
            faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg'].lower()}" for fault in error.errors()]
            raise BadArgumentsError(f"{call.name}: {'; '.join(faults)}") from None
