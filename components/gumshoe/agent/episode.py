"""Run one episode: turns of a policy, calls of tools, until one of the endings."""

import asyncio
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gumshoe.agent.chat_format import ChatFormat, NoCallError, UnusableCallError, parse_call
from gumshoe.agent.environment import Ending, Environment
from gumshoe.agent.policy import Policy, PolicyError, Sampling
from gumshoe.agent.tools import BadArgumentsError, ToolError, UnknownToolError
from gumshoe.agent.trajectory import Segment, Trajectory
from gumshoe.errors import UnavailableError

_LEAST_ROOM = 8  # tokens: the shortest turn that can be of use
_LONG_RESULT = 10_000  # characters, encoded in 2 ms: for less, going to a thread and back is not worth it


class ToolFailedError(UnavailableError):
    """A tool did not answer in time, or could not: a failure of infrastructure, never of the model."""


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """Bounds on one episode. Times are in seconds."""

    max_turns: int = 10
    max_context: int = 8192
    """Most tokens of a whole episode."""
    tool_deadline: float = 30


@dataclass(frozen=True, slots=True)
class Said:
    """One turn of a model."""

    segments: tuple[Segment, ...]
    """What was injected before it, and what was sampled."""
    text: str
    version: str
    cut: bool
    """It was cut off because the context is full."""


class Speaker(Protocol):
    """The model's side of one conversation."""

    async def say(self, result: str | None) -> Said | None:
        """The next turn, after a tool's result (None at the start); None where the context has no room for one.

        Raises:
            PolicyError: there is no answer that can be used.
        """
        ...


class TokenSpeaker:
    """Speaks in token ids: the whole history is the ids that were sampled, and glue."""

    def __init__(
        self,
        policy: Policy,
        chat: ChatFormat,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        max_context: int,
        seed: str,
    ) -> None:
        self._policy, self._chat, self._sampling = policy, chat, sampling
        self._max_context, self._seed = max_context, seed
        self._coming = Segment("prompt", chat.shown(prompt_ids), tuple(prompt_ids))
        self._ids: list[int] = []
        self._turn = 0

    async def say(self, result: str | None) -> Said | None:
        """As `Speaker.say`. A turn that was cut off after its call is closed before the result follows."""
        if result is not None:
            long = len(result) > _LONG_RESULT
            self._coming = await asyncio.to_thread(self._injected, result) if long else self._injected(result)
        room = self._max_context - len(self._ids) - len(self._coming.ids)
        if room < _LEAST_ROOM:
            return None
        self._ids += self._coming.ids
        asked = replace(self._sampling, max_tokens=min(self._sampling.max_tokens, room))
        seed = int(hashlib.sha256(f"{self._seed}/{self._turn}".encode()).hexdigest()[:8], 16) >> 1
        completion = await self._policy.sample(self._ids, asked, stop_ids=self._chat.stop_ids, seed=seed)
        self._turn += 1
        self._ids += completion.ids
        text = self._chat.text(completion.ids)
        sampled = Segment("sampled", self._chat.shown(completion.ids), completion.ids, completion.logprobs)
        cut = completion.finish == "length" and asked.max_tokens == room
        return Said((self._coming, sampled), text, completion.version, cut)

    def _injected(self, result: str) -> Segment:
        closing = () if self._ids[-1] in self._chat.stop_ids else self._chat.stop_ids[:1]
        text = self._chat.shown(closing) + self._chat.glue(result)  # what is encoded, rather than decoded again
        return Segment("injected", text, (*closing, *self._chat.glue_ids(result)))


async def run_episode(speaker: Speaker, environment: Environment, sample: int, limits: EpisodeLimits) -> Trajectory:
    """One episode from its first turn to its ending.

    What the model does wrong is an ending, or a tool's message to it. Tools run in threads, off the event loop.

    Raises:
        PolicyError, ToolFailedError: infrastructure failed; the episode says nothing about the model.
    """
    segments: list[Segment] = []
    version, result = "", None
    policy_seconds = tool_seconds = 0.0
    ending: Ending = "max turns"
    detail, turns = "", 0
    while turns < limits.max_turns:
        started = time.monotonic()
        said = await speaker.say(result)
        policy_seconds += time.monotonic() - started
        if said is None:
            ending = "context full"
            break
        if version and said.version != version:
            raise PolicyError(f"the policy changed within an episode, from {version} to {said.version}")
        version = said.version
        segments += said.segments
        turns += 1
        if said.cut:
            ending = "context full"
            break
        started = time.monotonic()
        try:
            result = await _called(said.text, environment, limits.tool_deadline)
        except _EndedError as ended:
            ending, detail = ended.ending, ended.detail
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
    )


class _EndedError(Exception):
    """A call that cannot be used has ended the episode."""

    def __init__(self, ending: Ending, detail: object) -> None:
        super().__init__(ending)
        self.ending, self.detail = ending, str(detail)


async def _called(text: str, environment: Environment, deadline: float) -> str:
    """What the tool that a turn calls says to the model."""
    try:
        call = parse_call(text)
    except NoCallError as error:
        raise _EndedError("no call", error) from None
    except UnusableCallError as error:
        raise _EndedError("unparseable call", error) from None
    try:
        async with asyncio.timeout(deadline):
            return await asyncio.to_thread(environment.toolbox.run, call)
    except UnknownToolError as error:
        raise _EndedError("unknown tool", error) from None
    except BadArgumentsError as error:
        raise _EndedError("bad arguments", error) from None
    except ToolError as error:
        environment.record.tool_errors += 1
        return f"Error: {error}"
    except TimeoutError:
        raise ToolFailedError(f"{call.name} did not answer in {deadline:g} seconds") from None
