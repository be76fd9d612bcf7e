"""Tools of an episode in the forms of LangChain and of the OpenAI Agents SDK, which are imported when they are used."""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gumshoe.environments.registry import FINAL_ANSWER
from gumshoe.environments.tools import Call
from gumshoe.errors import UsageError
from gumshoe.json_text import InvalidJsonError, load_json

if TYPE_CHECKING:
    from agents import FunctionTool
    from langchain_core.tools import StructuredTool

Arguments = Mapping[str, Any] | str | None
"""Arguments of a call: a mapping, JSON text, or nothing."""
NOT_AN_OBJECT = "Error: the arguments are not a JSON object"
"""Result of a call whose arguments are text, but not a JSON object."""
_TAKEN = ("config", "run_manager")  # arguments of LangChain's own functions


@dataclass(frozen=True, slots=True)
class FrameworkTool:
    """A tool of an episode."""

    function: Mapping[str, Any]
    """Name, description and parameters, as in OpenAI's API."""
    call: Callable[[Call], str]
    call_async: Callable[[Call], Coroutine[Any, Any, str]]

    @property
    def name(self) -> str:
        return str(self.function["name"])

    @property
    def description(self) -> str:
        return str(self.function["description"])

    @property
    def parameters(self) -> dict[str, Any]:
        """The schema of the arguments."""
        return dict(self.function["parameters"])


def to_langchain_tool(tool: FrameworkTool) -> "StructuredTool":
    """Return a tool of LangChain.

    Raises:
        UsageError: if langchain-core is not installed, or an argument has the name of one of LangChain's own.
    """
    try:
        from langchain_core.tools import StructuredTool
    except ImportError:
        raise _missing("langchain-core", "LangChain") from None
    if taken := [each for each in _TAKEN if each in tool.parameters.get("properties", {})]:
        raise UsageError(
            "gateway.tool-not-callable",
            f"LangChain cannot call the tool {tool.name}: it needs the argument {taken[0]} itself; leave out the "
            "server of the tool, or call it as a function",
        )

    def run(**arguments: Any) -> str:
        return tool.call(Call(tool.name, arguments))

    async def run_async(**arguments: Any) -> str:
        return await tool.call_async(Call(tool.name, arguments))

    return StructuredTool(
        name=tool.name,
        description=tool.description,
        args_schema=tool.parameters,
        func=run,
        coroutine=run_async,
        return_direct=tool.name == FINAL_ANSWER,  # agents of LangChain end with the answer
    )


def read_arguments(given: Arguments) -> dict[str, Any] | None:
    """Return the arguments of a call as a dictionary, or None if a text is not a JSON object. Nothing is an empty one.

    Raises:
        TypeError: if they are neither a mapping nor a text.
    """
    if isinstance(given, str):
        try:
            found = load_json(given.strip() or "{}")
        except InvalidJsonError:
            return None
        return found if isinstance(found, dict) else None
    if given is None or isinstance(given, Mapping):
        return dict(given or {})
    raise TypeError(f"arguments of a tool must be keywords, a mapping or JSON text, got {type(given).__name__}")


def to_openai_tool(tool: FrameworkTool) -> "FunctionTool":
    """Return a tool of the OpenAI Agents SDK.

    Raises:
        UsageError: if openai-agents is not installed.
    """
    try:
        from agents import FunctionTool
    except ImportError:
        raise _missing("openai-agents", "the OpenAI Agents SDK") from None

    async def run(_context: Any, arguments: str) -> str:
        given = read_arguments(arguments)
        return NOT_AN_OBJECT if given is None else await tool.call_async(Call(tool.name, given))

    return FunctionTool(
        name=tool.name,
        description=tool.description,
        params_json_schema=tool.parameters,
        on_invoke_tool=run,
        strict_json_schema=False,  # optional arguments may be left out, as the model was trained
    )


def _missing(package: str, framework: str) -> UsageError:
    return UsageError(
        "gateway.framework-missing",
        f"tools for {framework} need {package}, which is not installed: pip install 'gumshoe-agents[agents]'",
    )
