"""Tasks of episodes that have no policy: with a stand-in of the tools."""

from collections.abc import Awaitable
from datetime import date
from typing import Any, cast

from gumshoe.gateway.agent_answers import ReturnedAnswer
from gumshoe.gateway.agent_clock import AgentClock
from gumshoe.gateway.agent_task import AgentTask
from gumshoe.gateway.agents import load_agent
from gumshoe.rollouts.agent_settings import AgentSettings

KEY = "key-of-the-episode-4f8a2b"
SCHEMA = {
    "type": "function",
    "function": {
        "name": "search_inbox",
        "description": "Search the inbox.",
        "parameters": {
            "type": "object",
            "properties": {"keywords": {"type": "array", "items": {"type": "string"}}},
            "required": ["keywords"],
        },
    },
}
TURNS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("search_inbox", {"keywords": ["invoice"]}),
    ("read_email", {"message_id": "<7@example.com>"}),
    ("return_final_answer", {"answer": "Friday", "message_ids": ["<7@example.com>"]}),
)
"""Turns of the model of `tests.gateway.fake_gateway`: each calls a tool."""


class NoTools:
    """Tools that can be shown, and not called."""

    def schemas(self) -> list[dict[str, Any]]:
        return [SCHEMA]


def make_task(base_url: str = "http://127.0.0.1:9/v1", tools: Any = None, mcp_url: str = "") -> AgentTask:
    return AgentTask(
        question="When is the invoice due?",
        system_prompt="Search the inbox.",
        user_prompt="I am ann@example.com. When is the invoice due?",
        base_url=base_url,
        api_key=KEY,
        model="policy",
        mcp_url=mcp_url or "http://127.0.0.1:9/mcp",
        tools=cast(Any, tools or NoTools()),
        inbox_address="ann@example.com",
        query_date=date(2024, 5, 2),
    )


def start_agent(settings: AgentSettings, task: AgentTask | None = None) -> Awaitable[ReturnedAnswer]:
    """Load an agent, and run one episode."""
    return load_agent(settings)(task or make_task(), AgentClock(settings.deadline))
