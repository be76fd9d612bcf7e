"""Run one episode: turns of a policy and calls of tools, until it ends."""

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
_MIN_TURN_TOKENS = 8  # tokens; the shortest useful turn


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """Limits of one episode."""

    max_turns: int = 10
    max_context: int = 8192
    """Maximum number of tokens of the whole episode."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a model."""

    segments: tuple[Segment, ...]
    """Segments that were injected before it, and the sampled one."""
    text: str
    version: str
    is_truncated: bool
    """True if it was truncated because the context is full."""
    usage: TokenUsage | None = None
    """None if an endpoint does not report it."""


class ChatSession(Protocol):
    """Interface to a model in one conversation."""

    def add_tool_result(self, result: str) -> None:
        """Add a tool's result, which precedes the next turn. Called in the thread of the tool."""
        ...

    async def next_turn(self) -> Turn | None:
        """Return the next turn, or None if the context has no room for one.

        Raises:
            PolicyError: if there is no usable answer.
        """
        ...


class TokenChatSession:
    """Chat session in token ids. The history is the prompt, the sampled ids and the glue between turns."""

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
        self._next_input = Segment("prompt", prompt.text, prompt.ids)
        self._ids: list[int] = []
        self._turn = 0

    def add_tool_result(self, result: str) -> None:
        """Add a tool's result. If the turn was truncated after its call, end the turn first."""
        stop = self._chat.stop_ids[0]
        glue = self._chat.encode_tool_result(result)
        if self._ids[-1] in self._chat.stop_ids:
            self._next_input = Segment("injected", glue.text, glue.ids)
        else:
            self._next_input = Segment("injected", self._chat.end + glue.text, (stop, *glue.ids))

    async def next_turn(self) -> Turn | None:
        """Sample the next turn. See `ChatSession.next_turn`."""
        room = self._max_context - len(self._ids) - len(self._next_input.ids)
        if room < _MIN_TURN_TOKENS:
            return None
        self._ids += self._next_input.ids
        sampling = self._sampling if self._sampling.max_tokens <= room else replace(self._sampling, max_tokens=room)
        seed = int(hashlib.sha256(f"{self._seed}/{self._turn}".encode()).hexdigest()[:8], 16) >> 1
        completion = await self._policy.sample(self._ids, sampling, stop_ids=self._chat.stop_ids, seed=seed)
        self._turn += 1
        usage = TokenUsage(len(self._ids), len(completion.ids))
        self._ids += completion.ids
        text, closed = self._chat.decode_turn(completion.ids)
        sampled = Segment("sampled", text + closed, completion.ids, completion.logprobs)
        cut = completion.finish == "length" and sampling.max_tokens == room
        return Turn((self._next_input, sampled), text, completion.version, cut, usage)


async def run_episode(
    session: ChatSession, environment: Environment, sample: int, limits: EpisodeLimits, threads: ToolThreads
) -> Trajectory:
    """Run one episode to its end, and return its trajectory.

    Mistakes of the model do not raise: they end the episode, or the model receives an error message.

    Raises:
        PolicyError: if the policy failed; the episode then says nothing about the model.
        ToolFailedError: if a tool did not answer in time.
    """
    segments: list[Segment] = []
    version = ""
    usage: TokenUsage | None = TokenUsage()
    policy_seconds = tool_seconds = 0.0
    ending: Ending = "max turns"
    detail, turns = "", 0
    while turns < limits.max_turns:
        started = time.monotonic()
        turn = await session.next_turn()
        policy_seconds += time.monotonic() - started
        if turn is None:
            ending = "context full"
            break
        if version and turn.version != version:
            raise PolicyError(
                "rollouts.policy-changed", f"the policy changed during an episode: from {version} to {turn.version}"
            )
        version = turn.version
        segments += turn.segments
        turns += 1
        usage = usage + turn.usage if usage and turn.usage else None
        if turn.is_truncated:
            ending = "context full"
            break
        started = time.monotonic()
        try:
            call = parse_call(turn.text)
            await threads.run(call.name, _run_tool, call, environment, session)
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


def _run_tool(call: Call, environment: Environment, session: ChatSession) -> None:
    """Call a tool and add its result to the session, which encodes it in the same thread."""
    try:
        result = environment.toolbox.run(call)
    except ToolError as error:
        environment.record.tool_errors += 1
        result = f"Error: {error}"
    if not environment.finished:
        session.add_tool_result(result)
