"""Run one episode: turns of a policy and calls of tools, until it ends."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from gumshoe.environments.base import Ending, Environment, Unusable
from gumshoe.environments.tools import BadArgumentsError, Call, ToolError, UnknownToolError
from gumshoe.rollouts.chat_format.chat_format import ParsedTurn
from gumshoe.rollouts.chat_format.chat_settings import ChatSettings
from gumshoe.rollouts.tool_threads import ToolThreads
from gumshoe.rollouts.trajectory import Mistake, Segment, Span, TokenUsage, Trajectory

_NOT_RUN = "Error: not run, because the call before it cannot be used"


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """Limits of one episode."""

    max_turns: int = 10
    max_context: int = 8192
    """Maximum number of tokens of the whole episode."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a model."""

    spans: tuple[Span, ...]
    """Spans that were injected before it or within it, and the sampled ones."""
    parsed: ParsedTurn
    version: str
    is_truncated: bool
    """True if it was truncated because the context is full."""
    usage: TokenUsage | None = None
    """None if an endpoint does not report it."""
    segment: Segment | None = None
    """The segment that begins with it, if the history before it was rewritten."""
    is_cut_off: bool = False
    """True if it was truncated because it reached the maximum number of tokens of a turn."""


class ChatSession(Protocol):
    """Interface to a model in one conversation."""

    settings: ChatSettings

    def add_results(self, calls: Sequence[Call], results: Sequence[str]) -> Sequence[str]:
        """Add the results of the last turn's calls, which precede the next turn. Called in the thread of the tools.

        Return them as the model sees them: in place of one that does not fit into the context, it sees an error.
        """
        ...

    async def next_turn(self) -> Turn | None:
        """Return the next turn, or None if the context has no room for one.

        Raises:
            PolicyError: if there is no usable answer.
        """
        ...


class EpisodeObserver:
    """Observe the turns and calls of one episode. The methods of this class do nothing."""

    @contextmanager
    def sampling(self) -> Iterator[Callable[[Turn | None], None]]:
        """Observe a turn while it is sampled. The block passes it, or None without room for one, to the function.

        An error that this raises before the block ends the episode.
        """
        yield lambda _: None

    def begin_calls(self, calls: Sequence[Call]) -> None:
        """Observe calls before they run: all of a turn, or one that an agent makes. Called in the event loop.

        An error that this raises ends the episode.
        """

    def add_results(self, calls: Sequence[Call], results: Sequence[str]) -> None:
        """Observe the results of calls. Called in the thread of the tools."""


@dataclass(frozen=True, slots=True)
class EpisodeStart:
    """Everything that an episode starts with, except the policy."""

    environment: Environment
    seed: str
    limits: EpisodeLimits
    threads: ToolThreads
    sample: int = 0
    """Number of the episode in its group, from 0."""
    observer: EpisodeObserver = field(default_factory=EpisodeObserver)
    may_change_policy: bool = False
    """A turn may have a newer policy than the one before; else that is a failure of infrastructure."""


class EpisodeRunner(Protocol):
    """Run episodes of one policy."""

    async def __call__(self, start: EpisodeStart) -> Trajectory:
        """Run one episode to its end, and return its trajectory.

        Raises:
            UnavailableError: if something other than the model failed; the episode then says nothing about the model.
        """
        ...


class _BadCallError(Exception):
    """Report that a tool cannot be called as the model asks."""

    def __init__(self, kind: Unusable, detail: str, results: Sequence[str] = ()) -> None:
        super().__init__(detail)
        self.kind: Unusable = kind
        self.results = results
        """Results of the calls before it in the same turn."""


@dataclass(slots=True)
class _Episode:
    """State of a running episode."""

    session: ChatSession
    environment: Environment
    trajectory: Trajectory
    observer: EpisodeObserver
    may_change_policy: bool
    starts: list[int] = field(default_factory=list)
    """Number of `record.deeds` before each call of the turn that ran."""

    def add_turn(self, turn: Turn) -> None:
        """Add a turn to the trajectory.

        Raises:
            PolicyError: if another policy sampled it than the turns before.
        """
        done = self.trajectory
        done.spans += done.name_policy(turn.version, turn.spans, may_change=self.may_change_policy)
        done.segments += [turn.segment] if turn.segment else []
        done.turns += 1
        done.usage = done.usage + turn.usage if done.usage and turn.usage else None

    def respond(self, turn: Turn) -> tuple[Ending, str] | None:
        """Run the calls of a turn and give back their results. Return why the episode ends, or None."""
        parsed, before = turn.parsed, len(self.environment.record.deeds)
        self.starts = []
        try:
            if parsed.problem is not None:
                raise _BadCallError(parsed.problem, parsed.detail)
            results = self._run_calls(parsed.calls)
        except _BadCallError as error:
            self.trajectory.deeds.append(len(self.environment.record.deeds) - before)
            return self._answer_mistake(turn, error)
        self.trajectory.deeds.append(len(self.environment.record.deeds) - before)
        if self.environment.finished:
            return "answer", ""
        self._add_results(parsed.calls, results)
        return None

    def _add_results(self, calls: Sequence[Call], results: Sequence[str]) -> None:
        """Give results to the model. What it does not see counts as not shown, for rewards and metrics."""
        shown = self.session.add_results(calls, results)
        ends = [*self.starts[1:], len(self.environment.record.deeds)]
        ran = zip(self.starts, ends, results, shown, strict=False)  # there may be results of calls that did not run
        unseen = [deed for start, end, given, seen in ran if seen != given for deed in range(start, end)]
        if unseen and hasattr(self.environment, "withdraw_results"):
            self.environment.withdraw_results(unseen)
        self.observer.add_results(calls, shown)

    def _run_calls(self, calls: Sequence[Call]) -> list[str]:
        """Return the results of calls, which run one after the other; after the final answer, no other one runs."""
        results = list[str]()
        for call in calls:
            self.starts.append(len(self.environment.record.deeds))
            try:
                results.append(self.environment.toolbox.run(call))
            except ToolError as error:
                self.environment.record.tool_errors += 1
                results.append(f"Error: {error}")
            except UnknownToolError as error:
                raise _BadCallError("unknown tool", str(error), results) from None
            except BadArgumentsError as error:
                raise _BadCallError("bad arguments", str(error), results) from None
            if self.environment.finished:
                break
        return results

    def _answer_mistake(self, turn: Turn, error: _BadCallError) -> tuple[Ending, str] | None:
        """Tell the model what is wrong with its turn, if the settings say so; else return why the episode ends."""
        done, parsed, settings = self.trajectory, turn.parsed, self.session.settings
        if turn.is_cut_off and error.kind in ("no call", "unparseable call"):
            return "truncated", str(error)
        if settings.on_bad_call == "end" or len(done.mistakes) >= settings.max_bad_calls:
            return error.kind, str(error)
        done.mistakes.append(Mistake(done.turns, error.kind, str(error)))
        calls = parsed.calls or (Call("", {}),)
        left = len(calls) - len(error.results) - 1
        self._add_results(calls, [*error.results, f"Error: {error}", *[_NOT_RUN] * left])
        return None


async def run_episode(session: ChatSession, start: EpisodeStart) -> Trajectory:
    """Run one episode to its end, and return its trajectory.

    Mistakes of the model do not raise: they end the episode, or the model receives an error message.

    Raises:
        PolicyError: if the policy failed; the episode then says nothing about the model.
        ToolFailedError: if a tool did not answer in time.
    """
    done = Trajectory.begin(start.environment, start.sample)
    episode = _Episode(session, start.environment, done, start.observer, start.may_change_policy)
    while done.turns < start.limits.max_turns:
        started = time.monotonic()
        with start.observer.sampling() as observe:
            turn = await session.next_turn()
            observe(turn)
        done.policy_seconds += time.monotonic() - started
        if turn is None:
            done.ending = "context full"
            break
        episode.add_turn(turn)
        if turn.is_truncated:
            done.ending = "context full"
            break
        start.observer.begin_calls(turn.parsed.calls)
        started = time.monotonic()
        name = turn.parsed.calls[0].name if turn.parsed.calls else "none"
        ended = await start.threads.run(name, episode.respond, turn)
        done.tool_seconds += time.monotonic() - started
        if ended is not None:
            done.ending, done.detail = ended
            break
    return done
