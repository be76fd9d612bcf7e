"""What an agent gets for an episode: its question, the address and key of the model, and the tools."""

from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gumshoe.gateway.episode_tools import EpisodeTools


@dataclass(frozen=True, slots=True)
class AgentTask:
    """An episode, as an agent sees it."""

    question: str
    system_prompt: str
    """Instructions for the tools, as Gumshoe's own loop gives them to the model."""
    user_prompt: str
    """The question with everything else that is specific to the episode."""
    base_url: str
    """Address of an OpenAI-compatible API, e.g. `http://127.0.0.1:8123/v1`."""
    api_key: str = field(repr=False)
    """Key of this episode. It is void when the episode ends."""
    model: str
    """Name under which to request the policy. The API accepts any name, and says which version answered."""
    mcp_url: str
    """Address of an MCP server (streamable HTTP) with the tools of this episode. It takes the key as bearer token."""
    tools: "EpisodeTools"
    inbox_address: str | None = None
    """None if the question is about documents."""
    query_date: date | None = None


_task: ContextVar[AgentTask] = ContextVar("agent_task")


def current_task() -> AgentTask:
    """Return the task of the episode that calls this, e.g. from a node of a graph.

    Raises:
        LookupError: outside of an episode, and in threads that an agent starts itself without a copy of its context.
    """
    return _task.get()
