"""Episodes over small mailboxes, whose agents call tools only."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

from gumshoe.environments.email import EmailEnvironment
from gumshoe.gateway.agent_episode import AgentEpisode
from gumshoe.inference.policy import Sampling
from gumshoe.mail.index import MailIndex
from gumshoe.rollouts.agent_settings import AgentSettings
from gumshoe.rollouts.chat_format.chat_format import ChatFormat
from gumshoe.rollouts.episode import EpisodeLimits, EpisodeStart
from gumshoe.rollouts.tool_threads import ToolThreads
from gumshoe.rollouts.turn_sampler import TurnSampler
from tests.mail.mailbox import KEEP_ALL, make_index, record
from tests.scenarios.questions import ANN, BOB, scenario

if TYPE_CHECKING:
    from gumshoe.gateway.foreign_tools import ForeignTools

SECRET_OF_ANN, SECRET_OF_BOB = "The gas price is 4711.", "The oil price is 815."
ID_OF_ANN, ID_OF_BOB = "<1@example.com>", "<2@example.com>"


def make_two_inboxes(directory: Any) -> MailIndex:
    """Return an index in which Ann and Bob have one message each that the other does not have."""
    eve = {"sender": "eve@example.com"}
    mail = [
        record(1, body=SECRET_OF_ANN, to=[ANN], **eve),
        record(2, body=SECRET_OF_BOB, to=[BOB], **eve),
    ]
    return make_index(directory, mail, KEEP_ALL)


@asynccontextmanager
async def open_episode(
    chat: ChatFormat,
    index: MailIndex,
    inbox: str = ANN,
    environment: Any = None,
    foreign: "ForeignTools | None" = None,
    **settings: Any,
) -> AsyncIterator[AgentEpisode]:
    """Yield an episode about an inbox."""
    async with ToolThreads(2, 3600) as threads:
        place = environment or EmailEnvironment(index, scenario(1, inbox_address=inbox), 10)
        start = EpisodeStart(place, "seed", EpisodeLimits(10, 100_000), threads)
        sampler = TurnSampler(cast(Any, None), chat, Sampling(max_tokens=9))
        yield AgentEpisode(start, sampler, 100_000, AgentSettings(name="some.agent:run", **settings), foreign)
