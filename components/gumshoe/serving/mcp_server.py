"""The agent server's tools for MCP clients: the same as an agent has, and the agent itself.

What always holds: a tool reaches the inboxes of the principal that sent the request, and no other.
"""

from datetime import date
from typing import Annotated, Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from gumshoe.agent.email import EmailEnvironment
from gumshoe.agent.policy import PolicyError
from gumshoe.agent.threads import ToolFailedError
from gumshoe.agent.tools import BadArgumentsError, Call
from gumshoe.agent.tools import ToolError as RefusedCallError
from gumshoe.errors import UnavailableError
from gumshoe.scenarios.scenario import Scenario
from gumshoe.serving.access import ForbiddenError, Principal
from gumshoe.serving.app import scenario_for
from gumshoe.serving.front import RefusedRequestError
from gumshoe.serving.service import AnswerService, BusyError, NotReadyError, TooSlowError

_ABOUT = """\
Answers questions about mail. `ask` has an agent find the answer, with the messages that hold it; `search_inbox` and \
`read_email` are the tools that it has, to search and read for yourself."""
Inbox = Annotated[str | None, Field(description="Whose mail; where you may read one inbox only, that is taken.")]
Day = Annotated[date | None, Field(description="Nothing sent later is seen; today unless given.")]


def make_mcp(service: AnswerService) -> MCPServer[Any]:
    """The server, whose requests bear a principal in their state."""
    server: MCPServer[Any] = MCPServer("gumshoe", instructions=_ABOUT, log_level="WARNING")
    most = service.settings.limits.question

    async def run(context: Context[Any, Any], inbox: str | None, day: date | None, call: Call) -> str:
        scenario = _scenario(context, call.name, inbox, day, most)
        environment = EmailEnvironment(service.index, scenario, 1)
        try:
            return await service.threads.run(call.name, environment.toolbox.run, call)
        except (RefusedCallError, BadArgumentsError, ToolFailedError) as error:
            raise ToolError(str(error)) from None

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
        scenario = _scenario(context, question, inbox_address, query_date, most)
        try:
            answer = await service.answer(scenario, None, lambda _: None)
        except (TooSlowError, NotReadyError) as error:
            raise ToolError(str(error)) from None
        except BusyError:
            raise ToolError("too many ask at once; ask again in a while") from None
        except (PolicyError, ToolFailedError):
            raise ToolError("the model gave no answer that can be used; try again later") from None
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


def _scenario(context: Context[Any, Any], question: str, inbox: str | None, day: date | None, most: int) -> Scenario:
    request: Any = context.request_context.request
    who: Principal = request.state.principal
    try:
        return scenario_for(who, question, inbox, day, most)
    except ForbiddenError:
        raise ToolError("you may not read that inbox") from None
    except RefusedRequestError as error:
        raise ToolError(error.detail) from None
    except UnavailableError as error:
        raise ToolError(str(error)) from None
