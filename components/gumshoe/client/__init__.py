"""Ask an agent server (`gumshoe serve`) from Python. Nothing but the base installation is needed.

from gumshoe.client import AgentClient

with AgentClient("http://127.0.0.1:8000", key="gum_...") as client:
    answer = client.ask("When is the invoice due?", inbox="ann@example.com")
    print(answer.answer, [source.label for source in answer.sources])
"""

from gumshoe.client.agent_client import (
    AgentClient,
    AgentServerError,
    AuthenticationError,
    InboxForbiddenError,
    RequestRejectedError,
    ServerUnavailableError,
)
from gumshoe.client.responses import AgentAnswer, AgentStep, AnswerCost, CitedDocument, CitedMessage, CitedText

__all__ = [
    "AgentAnswer",
    "AgentClient",
    "AgentServerError",
    "AgentStep",
    "AnswerCost",
    "AuthenticationError",
    "CitedDocument",
    "CitedMessage",
    "CitedText",
    "InboxForbiddenError",
    "RequestRejectedError",
    "ServerUnavailableError",
]
