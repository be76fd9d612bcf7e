"""Ask an agent server (`gumshoe serve`) from Python. Nothing but the base installation is needed.

from gumshoe.client import AgentClient

with AgentClient("http://127.0.0.1:8000", key="gum_...") as client:
    answer = client.ask("When is the audit?", inbox="ann@example.com")
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
from gumshoe.client.responses import Answer, AnswerStep, Cost, DocumentSource, MessageSource, SourceText

__all__ = [
    "AgentClient",
    "AgentServerError",
    "Answer",
    "AnswerStep",
    "AuthenticationError",
    "Cost",
    "DocumentSource",
    "InboxForbiddenError",
    "MessageSource",
    "RequestRejectedError",
    "ServerUnavailableError",
    "SourceText",
]
