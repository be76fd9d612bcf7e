"""The tools of an episode, for agents: as Python functions, LangChain tools, and tools of the OpenAI Agents SDK."""

import asyncio
import concurrent.futures
import inspect
import keyword
from collections.abc import Callable, Coroutine, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, Protocol

from gumshoe.environments.tools import Call, Toolbox, ToolFunction
from gumshoe.errors import UsageError
from gumshoe.gateway.foreign_tools import ForeignTools
from gumshoe.gateway.framework_tools import (
    NOT_AN_OBJECT,
    Arguments,
    FrameworkTool,
    read_arguments,
    to_langchain_tool,
    to_openai_tool,
)
from gumshoe.gateway.gateway_errors import UnknownKeyError

if TYPE_CHECKING:
    from agents import FunctionTool
    from langchain_core.tools import StructuredTool

AsyncToolFunction = Callable[..., Coroutine[Any, Any, str]]
"""A tool as a coroutine function."""
_JSON_TYPES: Mapping[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list[Any],
    "object": dict[str, Any],
}
_CHECK_INTERVAL = 1.0  # seconds after which a thread that waits for a result checks that the gateway still runs


class ToolEpisode(Protocol):
    """What the tools of an episode need of it. See `AgentEpisode`."""

    @property
    def toolbox(self) -> Toolbox: ...

    async def call_tool(self, call: Call) -> str: ...


class EpisodeTools:
    """Tools of one episode: those of its environment, and those of MCP servers that the agent's settings name.

    Results are the same text as in Gumshoe's own loop, also for calls that the tool refuses, e.g. because of wrong
    arguments. Calls are recorded. Once the episode is over or has used up its calls, they raise a `GatewayError`.

    Create it in the event loop of the gateway. Agents may then call the tools in any thread and any event loop, except
    that functions which are not async cannot be called in the gateway's own loop.

    Raises:
        UsageError: if a foreign tool has the name of one of the environment's.
    """

    def __init__(self, episode: ToolEpisode, foreign: ForeignTools | None = None) -> None:
        self._episode, self._foreign = episode, foreign or ForeignTools()
        self._loop = asyncio.get_running_loop()
        self._foreign.check_names(tool.__name__ for tool in episode.toolbox.tools)

    def schemas(self) -> list[dict[str, Any]]:
        """Return the schema of each tool, as `{"type": "function", "function": {...}}`."""
        return deepcopy(list_tool_schemas(self._episode, self._foreign))

    def functions(self) -> tuple[ToolFunction, ...]:
        """Return the tools as functions, with names, signatures and docstrings."""
        return tuple(_build_function(each, self._call) for each in self._shapes)

    def async_functions(self) -> tuple[AsyncToolFunction, ...]:
        """Return the tools as coroutine functions, with names, signatures and docstrings."""
        return tuple(_build_async_function(each, self._call_async) for each in self._shapes)

    def langchain(self) -> "list[StructuredTool]":
        """Return the tools as tools of LangChain, for `invoke` and `ainvoke`.

        Raises:
            UsageError: if langchain-core is not installed, or cannot call a foreign tool.
        """
        return [to_langchain_tool(each) for each in self._for_frameworks()]

    def openai_agents(self) -> "list[FunctionTool]":
        """Return the tools for the OpenAI Agents SDK.

        Raises:
            UsageError: if openai-agents is not installed.
        """
        return [to_openai_tool(each) for each in self._for_frameworks()]

    def call(self, name: str, given: Arguments = None, /, **arguments: Any) -> str:
        """Call a tool by its name, and return its result.

        The arguments are keywords, or a mapping, or the JSON text of a call as the model wrote it.

        Raises:
            GatewayError: if the episode is over, has used up its calls, or a tool failed.
            UsageError: if it is called in the event loop of the gateway. Use `call_async` there.
        """
        read = read_arguments(given)
        return NOT_AN_OBJECT if read is None else self._call(Call(name, {**read, **arguments}))

    async def call_async(self, name: str, given: Arguments = None, /, **arguments: Any) -> str:
        """Call a tool by its name as `call` does, and return its result.

        Raises:
            GatewayError: if the episode is over, has used up its calls, or a tool failed.
        """
        read = read_arguments(given)
        return NOT_AN_OBJECT if read is None else await self._call_async(Call(name, {**read, **arguments}))

    def _for_frameworks(self) -> list[FrameworkTool]:
        return [FrameworkTool(each["function"], self._call, self._call_async) for each in self.schemas()]

    @cached_property
    def _shapes(self) -> "list[_FunctionShape]":
        own = [_describe_tool(each) for each in self._episode.toolbox.tools]
        return [*own, *(_describe_schema(each["function"]) for each in self._foreign.schemas())]

    def _call(self, call: Call) -> str:
        """Run a call in the loop of the gateway, and wait for its result."""
        if _get_running_loop() is self._loop:
            raise UsageError(
                "gateway.call-blocks-loop",
                f"tool {call.name[:80]} was called in the event loop of the gateway, which would wait for itself; "
                "await one of `async_functions()`, or `call_async`",
            )
        future = self._submit(call)
        while not concurrent.futures.wait([future], timeout=_CHECK_INTERVAL).done:
            if self._loop.is_closed():
                raise _over()
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise _over() from None

    async def _call_async(self, call: Call) -> str:
        """Run a call in the loop of the gateway, from this or another loop."""
        if _get_running_loop() is self._loop:
            return await self._episode.call_tool(call)
        return await asyncio.wrap_future(self._submit(call))

    def _submit(self, call: Call) -> concurrent.futures.Future[str]:
        coroutine = self._episode.call_tool(call)
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:  # the loop is closed
            coroutine.close()
            raise _over() from None


def list_tool_schemas(episode: ToolEpisode, foreign: ForeignTools) -> list[dict[str, Any]]:
    """Return the schema of each tool of an episode. Do not modify them: they are shared."""
    return [*episode.toolbox.schemas(), *foreign.schemas()]


def _over() -> UnknownKeyError:
    return UnknownKeyError("gateway.unknown-key", "the run of the episode is over")


def _get_running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


@dataclass(frozen=True, slots=True)
class _FunctionShape:
    """What Python code sees of a tool."""

    name: str
    description: str
    signature: Signature
    optional: frozenset[str] = frozenset()
    """Arguments that are left out of a call if they are None."""

    def to_call(self, given: tuple[Any, ...], named: dict[str, Any]) -> Call:
        """Return the call that a function was called for. Wrong arguments become part of it: they are the model's.

        Raises:
            TypeError: if arguments without a name are too many, or are given twice.
        """
        names = [each.name for each in self.signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        if len(given) > len(names):
            raise TypeError(f"{self.name}() takes {len(names)} arguments but {len(given)} were given")
        arguments = dict(zip(names, given, strict=False))
        if twice := arguments.keys() & named.keys():
            raise TypeError(f"{self.name}() got multiple values for argument {min(twice)!r}")
        every = {**arguments, **named}
        return Call(self.name, {k: v for k, v in every.items() if v is not None or k not in self.optional})

    def apply_to(self, function: Any) -> None:
        """Give a function the name, the docstring and the signature of the tool."""
        function.__name__ = function.__qualname__ = self.name
        function.__doc__, function.__signature__ = self.description, self.signature
        kinds = {each.name: each.annotation for each in self.signature.parameters.values()}
        function.__annotations__ = {
            **{name: kind for name, kind in kinds.items() if kind is not Parameter.empty},
            "return": str,
        }


def _describe_tool(tool: ToolFunction) -> _FunctionShape:
    signature = inspect.signature(tool, eval_str=True)
    return _FunctionShape(tool.__name__, tool.__doc__ or "", signature)


def _describe_schema(function: Mapping[str, Any]) -> _FunctionShape:
    """Return what Python code sees of a tool that is known by its schema."""
    properties = function["parameters"].get("properties", {})
    required = set(function["parameters"].get("required", ()))
    ordered = sorted(properties, key=lambda name: name not in required)
    if all(map(_is_argument_name, properties)):
        parameters = [
            Parameter(
                name,
                Parameter.POSITIONAL_OR_KEYWORD,
                default=Parameter.empty if name in required else None,
                annotation=_read_type(properties[name], is_required=name in required),
            )
            for name in ordered
        ]
    else:
        parameters = [Parameter("arguments", Parameter.VAR_KEYWORD, annotation=Any)]
    described = "\n".join(f"    {name}: {_read_description(properties[name])}" for name in ordered)
    text = f"{function['description']}\n\nArgs:\n{described}" if described else function["description"]
    signature = Signature(parameters, return_annotation=str)
    return _FunctionShape(function["name"], text, signature, frozenset(properties) - required)


def _is_argument_name(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)


def _read_type(schema: Any, *, is_required: bool) -> Any:
    name = schema.get("type") if isinstance(schema, dict) else None
    found = _JSON_TYPES.get(name, Any) if isinstance(name, str) else Any
    return found if is_required or found is Any else found | None


def _read_description(schema: Any) -> str:
    return str(schema.get("description", "")) if isinstance(schema, dict) else ""


def _build_function(shape: _FunctionShape, call: Callable[[Call], str]) -> ToolFunction:
    def function(*given: Any, **named: Any) -> str:
        return call(shape.to_call(given, named))

    shape.apply_to(function)
    return function


def _build_async_function(shape: _FunctionShape, call: Callable[[Call], Coroutine[Any, Any, str]]) -> AsyncToolFunction:
    async def function(*given: Any, **named: Any) -> str:
        return await call(shape.to_call(given, named))

    shape.apply_to(function)
    return function
