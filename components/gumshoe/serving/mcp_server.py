"""Provide the environment's tools, and the agent itself as a tool, to MCP clients.

Invariant: a tool only reads the inboxes of the principal that sent the request.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from inspect import Parameter
from typing import Annotated, Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field, TypeAdapter

from gumshoe.environments.base import Source
from gumshoe.environments.tools import BadArgumentsError, Call, Toolbox, ToolFunction
from gumshoe.environments.tools import ToolError as RefusedCallError
from gumshoe.serving.app import build_scenario, log_answer
from gumshoe.serving.errors import describe_error, log_unexpected
from gumshoe.serving.service import AnswerService

_ABOUT = """\
Answers questions {about}. `ask` has an agent find the answer, with what it stands in; {tools} are the tools that it \
has, to search and read for yourself."""
_SOURCE: TypeAdapter[Source] = TypeAdapter(Source)
Inbox = Annotated[str | None, Field(description="Whose mail; where you may read one inbox only, that is taken.")]
Day = Annotated[date | None, Field(description="Nothing sent later is seen; today unless given.")]
_CONTEXT, _INBOX, _DAY = (
    Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
    for name, annotation, default in (
        ("context", Context[Any, Any], Parameter.empty),
        ("inbox_address", Inbox, None),
        ("query_date", Day, None),
    )
)


def create_mcp_server(service: AnswerService) -> MCPServer[Any]:
    """Create the MCP server. Its requests must have a principal in their state."""
    tools, has_inboxes = service.env_factory.list_tools(), service.env_factory.has_inboxes
    named = " and ".join(f"`{tool.__name__}`" for tool in tools)
    about = _ABOUT.format(about="about mail" if has_inboxes else "from documents", tools=named)
    server: MCPServer[Any] = MCPServer("gumshoe", instructions=about, log_level="WARNING")
    more = [_INBOX, _DAY] if has_inboxes else []

    async def run(
        call: Call, context: Context[Any, Any], inbox_address: str | None = None, query_date: date | None = None
    ) -> str:
        with _translate_errors():
            request: Any = context.request_context.request
            return await service.call(build_scenario(request, call.name, inbox_address, query_date, service), call)

    async def ask(
        *,
        question: str,
        context: Context[Any, Any],
        inbox_address: str | None = None,
        query_date: date | None = None,
    ) -> dict[str, Any]:
        with _translate_errors():
            request: Any = context.request_context.request
            scenario = build_scenario(request, question, inbox_address, query_date, service)
            answer = await service.answer(scenario, None, lambda _: None)
            log_answer(request, answer, service.settings)
        return {
            "answer": answer.answer,
            "success": answer.success,
            "reason": answer.reason,
            "sources": [_SOURCE.dump_python(each, mode="json") for each in answer.sources],
            "policy": answer.policy,
            "chosen": answer.chosen,
        }

    for tool in tools:
        _register(server, _wrap_tool(tool, run, more), _read_description(tool))
    asked = Annotated[str, Field(description="What to find out.")]
    question = Parameter("question", Parameter.KEYWORD_ONLY, annotation=asked)
    _register(server, _with_signature(ask, [question, *more], dict[str, Any]), "Have an agent answer a question.")
    return server


def _register(server: MCPServer[Any], tool: Callable[..., Any], description: str) -> None:
    server.tool(tool.__name__, description=description)(tool)


def _wrap_tool(tool: ToolFunction, run: Callable[..., Any], more: list[Parameter]) -> Callable[..., Any]:
    """Wrap a tool of an environment as a tool of the server, with additional arguments for the inbox and the date."""
    own = _describe_parameters(tool)
    extra = {each.name for each in (_CONTEXT, *more)}

    async def wrapper(**arguments: Any) -> str:
        call = Call(tool.__name__, {name: value for name, value in arguments.items() if name not in extra})
        result: str = await run(call, **{name: value for name, value in arguments.items() if name in extra})
        return result

    wrapper.__name__ = tool.__name__
    return _with_signature(wrapper, [*own, *more], str)


def _describe_parameters(tool: ToolFunction) -> list[Parameter]:
    """Return a tool's parameters, with the descriptions in its docstring."""
    properties = Toolbox([tool]).schemas()[0]["function"]["parameters"]["properties"]
    signature = inspect.signature(tool, eval_str=True)
    return [
        each.replace(
            kind=Parameter.KEYWORD_ONLY,
            annotation=Annotated[each.annotation, Field(description=properties[each.name]["description"])],
        )
        for each in signature.parameters.values()
    ]


def _read_description(tool: ToolFunction) -> str:
    return str(Toolbox([tool]).schemas()[0]["function"]["description"])


def _with_signature(function: Callable[..., Any], own: list[Parameter], result: Any) -> Callable[..., Any]:
    """Set a function's signature to these parameters and the context. The SDK derives the tool's schema from it."""
    parameters = [*own, _CONTEXT]
    signature = inspect.Signature(parameters, return_annotation=result)
    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": result}
    return function


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Report errors to the client as over HTTP, and the errors of a tool call with their own message."""
    try:
        yield
    except (RefusedCallError, BadArgumentsError) as error:
        raise ToolError(str(error)) from None
    except Exception as error:  # noqa: BLE001 - the SDK would reveal its message to the client
        log_unexpected(error)
        code, _, title, detail = describe_error(error)
        raise ToolError(f"{title}: {detail} [{code}]") from None
