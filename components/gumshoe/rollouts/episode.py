"""Run one episode: turns of a policy, calls of tools, until one of the endings."""

import hashlib
import time
from dataclasses import dataclass, replace
from typing import Protocol

from gumshoe.environments.base import Ending, Environment, Unusable
from gumshoe.environments.tools import BadArgumentsError, Call, ToolError, UnknownToolError
from gumshoe.inference.policy import Policy, PolicyError, Sampling
from gumshoe.rollouts.chat_format import ChatFormat, Encoded, NoCallError, UnusableCallError, parse_call
from gumshoe.rollouts.tool_threads import ToolThreads
from gumshoe.rollouts.trajectory import Segment, TokenUsage, Trajectory

_UNUSABLE: dict[type[Exception], Unusable] = {
    NoCallError: "no call",
    UnusableCallError: "unparseable call",
    UnknownToolError: "unknown tool",
    BadArgumentsError: "bad arguments",
}
_LEAST_ROOM = 8  # tokens: the shortest turn that can be of use


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """Bounds on one episode."""

    max_turns: int = 10
    max_context: int = 8192
    """Most tokens of a whole episode."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a model."""

    segments: tuple[Segment, ...]
    """What was injected before it, and what was sampled."""
    text: str
    version: str
    cut: bool
    """It was cut off because the context is full."""
    usage: TokenUsage | None = None
    """None where an endpoint does not say."""


class ChatSession(Protocol):
    """The model's side of one conversation."""

    def add_tool_result(self, result: str) -> None:
        """Take a tool's result, which comes before the next turn. Called in the thread that the tool ran in."""
        ...

    async def next_turn(self) -> Turn | None:
        """The next turn; None where the context has no room for one.

        Raises:
            PolicyError: there is no answer that can be used.
        """
        ...


class TokenChatSession:
    """Speaks in token ids: the whole history is the ids that were sampled, and glue."""

    def __init__(
        self,
        policy: Policy,
        chat: ChatFormat,
        prompt: Encoded,
        sampling: Sampling,
        max_context: int,
        seed: str,
    ) -> None:
        self._policy, self._chat, self._sampling = policy, chat, sampling
        self._max_context, self._seed = max_context, seed
        self._coming = Segment("prompt", prompt.text, prompt.ids)
        self._ids: list[int] = []
        self._turn = 0

    def add_tool_result(self, result: str) -> None:
        """As `ChatSession.add_tool_result`. Close a turn that was cut off after its call before the result follows."""
        stop = self._chat.stop_ids[0]
        glue = self._chat.glue(result)
        if self._ids[-1] in self._chat.stop_ids:
            self._coming = Segment("injected", glue.text, glue.ids)
        else:
            self._coming = Segment("injected", self._chat.end + glue.text, (stop, *glue.ids))

    async def next_turn(self) -> Turn | None:
        """As `ChatSession.next_turn`."""
        room = self._max_context - len(self._ids) - len(self._coming.ids)
        if room < _LEAST_ROOM:
            return None
        self._ids += self._coming.ids
        asked = self._sampling if self._sampling.max_tokens <= room else replace(self._sampling, max_tokens=room)
        seed = int(hashlib.sha256(f"{self._seed}/{self._turn}".encode()).hexdigest()[:8], 16) >> 1
        completion = await self._policy.sample(self._ids, asked, stop_ids=self._chat.stop_ids, seed=seed)
        self._turn += 1
        usage = TokenUsage(len(self._ids), len(completion.ids))
        self._ids += completion.ids
        text, closed = self._chat.decode_turn(completion.ids)
        sampled = Segment("sampled", text + closed, completion.ids, completion.logprobs)
        cut = completion.finish == "length" and asked.max_tokens == room
        return Turn((self._coming, sampled), text, completion.version, cut, usage)


async def run_episode(
    speaker: ChatSession, environment: Environment, sample: int, limits: EpisodeLimits, threads: ToolThreads
) -> Trajectory:
    """One episode from its first turn to its ending.

    What the model does wrong is an ending, or a tool's message to it.

    Raises:
        PolicyError, ToolFailedError: infrastructure failed; the episode says nothing about the model.
    """
    segments: list[Segment] = []
    version = ""
    usage: TokenUsage | None = TokenUsage()
    policy_seconds = tool_seconds = 0.0
    ending: Ending = "max turns"
    detail, turns = "", 0
    while turns < limits.max_turns:
        started = time.monotonic()
        said = await speaker.next_turn()
        policy_seconds += time.monotonic() - started
        if said is None:
            ending = "context full"
            break
        if version and said.version != version:
            raise PolicyError(
                "rollouts.policy-changed", f"the policy changed during an episode: from {version} to {said.version}"
            )
        version = said.version
        segments += said.segments
        turns += 1
        usage = usage + said.usage if usage and said.usage else None
        if said.cut:
            ending = "context full"
            break
        started = time.monotonic()
        try:
            call = parse_call(said.text)
            await threads.run(call.name, _carry_out, call, environment, speaker)
        except tuple(_UNUSABLE) as error:
            ending, detail = _UNUSABLE[type(error)], str(error)
            break
        finally:
            tool_seconds += time.monotonic() - started
        if environment.finished:
            ending = "answer"
            break
    return Trajectory(
        environment.scenario.id,
        sample,
        version,
        ending,
        detail,
        segments,
        environment.record,
        turns,
        policy_seconds,
        tool_seconds,
        usage,
    )


def _carry_out(call: Call, environment: Environment, speaker: ChatSession) -> None:
    """Call a tool, and give its result to the speaker. The thread that does it also encodes the result."""
    try:
        result = environment.toolbox.run(call)
    except ToolError as error:
        environment.record.tool_errors += 1
        result = f"Error: {error}"
    if not environment.finished:
        speaker.add_tool_result(result)
