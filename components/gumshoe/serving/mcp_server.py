"""The agent server's tools for MCP clients: the same as an agent has, and the agent itself.

What always holds: a tool reaches the inboxes of the principal that sent the request, and no other.
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
from gumshoe.environments.tools import BadArgumentsError, Call, Run, Toolbox
from gumshoe.environments.tools import ToolError as RefusedCallError
from gumshoe.serving.app import note, scenario_for
from gumshoe.serving.errors import log_unexpected, problem_of
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


def make_mcp(service: AnswerService) -> MCPServer[Any]:
    """The server, whose requests bear a principal in their state."""
    tools, has_inboxes = service.world.tools(), service.world.has_inboxes
    named = " and ".join(f"`{tool.__name__}`" for tool in tools)
    about = _ABOUT.format(about="about mail" if has_inboxes else "from documents", tools=named)
    server: MCPServer[Any] = MCPServer("gumshoe", instructions=about, log_level="WARNING")
    more = [_INBOX, _DAY] if has_inboxes else []

    async def run(
        call: Call, context: Context[Any, Any], inbox_address: str | None = None, query_date: date | None = None
    ) -> str:
        with _told_of():
            request: Any = context.request_context.request
            return await service.call(scenario_for(request, call.name, inbox_address, query_date, service), call)

    async def ask(
        *,
        question: str,
        context: Context[Any, Any],
        inbox_address: str | None = None,
        query_date: date | None = None,
    ) -> dict[str, Any]:
        with _told_of():
            request: Any = context.request_context.request
            scenario = scenario_for(request, question, inbox_address, query_date, service)
            answer = await service.answer(scenario, None, lambda _: None)
            note(request, answer, service.settings)
        return {
            "answer": answer.answer,
            "success": answer.success,
            "reason": answer.reason,
            "sources": [_SOURCE.dump_python(each, mode="json") for each in answer.sources],
            "policy": answer.policy,
            "chosen": answer.chosen,
        }

    for tool in tools:
        _add(server, _passed_on(tool, run, more), _described(tool))
    asked = Annotated[str, Field(description="What to find out.")]
    question = Parameter("question", Parameter.KEYWORD_ONLY, annotation=asked)
    _add(server, _with_signature(ask, [question, *more], dict[str, Any]), "Have an agent answer a question.")
    return server


def _add(server: MCPServer[Any], tool: Callable[..., Any], description: str) -> None:
    server.tool(tool.__name__, description=description)(tool)


def _passed_on(tool: Run, run: Callable[..., Any], more: list[Parameter]) -> Callable[..., Any]:
    """A tool of an environment as one of the server's: with its own arguments, and those that say whose mail it is."""
    own = _parameters(tool)
    beside = {each.name for each in (_CONTEXT, *more)}

    async def passed_on(**arguments: Any) -> str:
        call = Call(tool.__name__, {name: value for name, value in arguments.items() if name not in beside})
        result: str = await run(call, **{name: value for name, value in arguments.items() if name in beside})
        return result

    passed_on.__name__ = tool.__name__
    return _with_signature(passed_on, [*own, *more], str)


def _parameters(tool: Run) -> list[Parameter]:
    """A tool's arguments, with what its docstring says of each."""
    said = Toolbox([tool]).schemas()[0]["function"]["parameters"]["properties"]
    signature = inspect.signature(tool, eval_str=True)
    return [
        each.replace(
            kind=Parameter.KEYWORD_ONLY,
            annotation=Annotated[each.annotation, Field(description=said[each.name]["description"])],
        )
        for each in signature.parameters.values()
    ]


def _described(tool: Run) -> str:
    return str(Toolbox([tool]).schemas()[0]["function"]["description"])


def _with_signature(function: Callable[..., Any], own: list[Parameter], result: Any) -> Callable[..., Any]:
    """A function that says that it takes these arguments, and the context: what the SDK describes it by."""
    parameters = [*own, _CONTEXT]
    signature = inspect.Signature(parameters, return_annotation=result)
    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": result}
    return function


@contextmanager
def _told_of() -> Iterator[None]:
    """What goes wrong is told to the client as over HTTP, and of a call what is wrong with it."""
    try:
        yield
    except (RefusedCallError, BadArgumentsError) as error:
        raise ToolError(str(error)) from None
    except Exception as error:  # noqa: BLE001 - the SDK would tell the client what it says
        log_unexpected(error)
        code, _, title, detail = problem_of(error)
        raise ToolError(f"{title}: {detail} [{code}]") from None
