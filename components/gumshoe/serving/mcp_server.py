"""The agent server's tools for MCP clients: the same as an agent has, and the agent itself.

What always holds: a tool reaches the inboxes of the principal that sent the request, and no other.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from typing import Annotated, Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from gumshoe.agent.tools import BadArgumentsError, Call
from gumshoe.agent.tools import ToolError as RefusedCallError
from gumshoe.serving.app import note, scenario_for
from gumshoe.serving.problems import explained, log_unexpected
from gumshoe.serving.service import AnswerService

_ABOUT = """\
Answers questions about mail. `ask` has an agent find the answer, with the messages that hold it; `search_inbox` and \
`read_email` are the tools that it has, to search and read for yourself."""
Inbox = Annotated[str | None, Field(description="Whose mail; where you may read one inbox only, that is taken.")]
Day = Annotated[date | None, Field(description="Nothing sent later is seen; today unless given.")]


def make_mcp(service: AnswerService) -> MCPServer[Any]:
    """The server, whose requests bear a principal in their state."""
    server: MCPServer[Any] = MCPServer("gumshoe", instructions=_ABOUT, log_level="WARNING")
    settings = service.settings

    async def run(context: Context[Any, Any], inbox: str | None, day: date | None, call: Call) -> str:
        with _told_of():
            request: Any = context.request_context.request
            return await service.call(scenario_for(request, call.name, inbox, day, settings), call)

    @server.tool()
    async def search_inbox(
        context: Context[Any, Any],
        keywords: Annotated[
            list[str], Field(description="Words that all must appear in a message; several in one are a phrase.")
        ],
        sender: Annotated[str | None, Field(description="Only messages from this address.")] = None,
        recipient: Annotated[str | None, Field(description="Only messages to this address.")] = None,
        sent_after: Annotated[
            str | None, Field(description="Only those sent on this day or later (YYYY-MM-DD).")
        ] = None,
        sent_before: Annotated[str | None, Field(description="Only those sent before this day (YYYY-MM-DD).")] = None,
        inbox_address: Inbox = None,
        query_date: Day = None,
    ) -> str:
        """Search an inbox: up to ten messages that contain every keyword, the newest first."""
        period = {"sent_after": sent_after, "sent_before": sent_before}
        arguments = {"keywords": keywords, "sender": sender, "recipient": recipient, **period}
        return await run(context, inbox_address, query_date, Call("search_inbox", arguments))

    @server.tool()
    async def read_email(
        context: Context[Any, Any],
        message_id: Annotated[str, Field(description="The id of a message, as a search lists it.")],
        inbox_address: Inbox = None,
        query_date: Day = None,
    ) -> str:
        """Read one message of an inbox."""
        return await run(context, inbox_address, query_date, Call("read_email", {"message_id": message_id}))

    @server.tool()
    async def ask(
        context: Context[Any, Any],
        question: Annotated[str, Field(description="What to find out.")],
        inbox_address: Inbox = None,
        query_date: Day = None,
    ) -> dict[str, Any]:
        """Have an agent answer a question about an inbox."""
        with _told_of():
            request: Any = context.request_context.request
            scenario = scenario_for(request, question, inbox_address, query_date, settings)
            answer = await service.answer(scenario, None, lambda _: None)
            note(request, answer, settings)
        return {
            "answer": answer.answer,
            "success": answer.success,
            "reason": answer.reason,
            "sources": [
                {"message_id": each.message_id, "sent": each.sent and each.sent.isoformat(), "subject": each.subject}
                for each in answer.sources
            ],
            "policy": answer.policy,
        }

    return server


@contextmanager
def _told_of() -> Iterator[None]:
    """What goes wrong is told to the client as over HTTP, and of a call what is wrong with it."""
    try:
        yield
    except (RefusedCallError, BadArgumentsError) as error:
        raise ToolError(str(error)) from None
    except Exception as error:  # noqa: BLE001 - the SDK would tell the client what it says
        log_unexpected(error)
        _, title, detail = explained(error)
        raise ToolError(f"{title}: {detail}") from None
