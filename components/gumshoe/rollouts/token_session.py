"""Chat session in token ids: the history is the prompt, the sampled ids, and the glue between turns."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from gumshoe.environments.tools import Call
from gumshoe.inference.policy import Policy, Sampling
from gumshoe.rollouts.chat_format.chat_format import ChatFormat, Encoded
from gumshoe.rollouts.episode import Turn
from gumshoe.rollouts.trajectory import Segment, Span
from gumshoe.rollouts.turn_sampler import MAX_TOKEN_CHARACTERS, MIN_TURN_TOKENS, TurnSampler

_TOO_LONG = (
    "Error: the result has {length:,} characters, and the conversation has no room for them. Read or list less "
    "at once, e.g. a page or another source, or answer with what you know."
)


@dataclass(slots=True)
class _PastTurn:
    """A turn in the history, with what came before it."""

    before: Encoded
    """The prompt, or the results of the turn before."""
    ids: tuple[int, ...]
    """[tokens]: sampled, and the end of the reasoning if the budget ended it."""


class TokenChatSession:
    """Chat session in token ids with a policy.

    Reasoning of earlier turns stays in the history. If the chat format drops it, each turn after one with reasoning
    begins a new segment: the ids after the reasoning are kept, and nothing is encoded again.
    """

    def __init__(
        self,
        policy: Policy,
        chat: ChatFormat,
        prompt: Encoded,
        tools: Sequence[dict[str, Any]],
        sampling: Sampling,
        max_context: int,
        seed: str,
    ) -> None:
        self._sampler, self._chat, self._tools = TurnSampler(policy, chat, sampling), chat, tools
        self._max_context, self._seed = max_context, seed
        self.settings = chat.settings
        self._next_input, self._origin = prompt, "prompt"
        self._past: list[_PastTurn] = []
        self._ids: list[int] = []
        self._segment = 0
        self._calls = 0

    def add_results(self, calls: Sequence[Call], results: Sequence[str]) -> Sequence[str]:
        """Add the results of the last turn's calls. If the turn was truncated after its call, end the turn first.

        If they leave no room for a turn, the longest ones are replaced by errors, so that one long message does not end
        the episode. See `ChatSession.add_results`.
        """
        shown, most = list(results), MAX_TOKEN_CHARACTERS * self._max_context
        for _ in results:
            if sum(map(len, shown)) <= most and self._encode(calls, shown):
                break
            longest = max(shown, key=len)
            shown[shown.index(longest)] = min(longest, _TOO_LONG.format(length=len(longest)), key=len)
        else:
            self._encode(calls, shown)
        self._origin = "injected"
        self._calls += len(calls)
        return shown

    def _encode(self, calls: Sequence[Call], results: Sequence[str]) -> bool:
        """Encode results as the next input, and return True if they leave room for a turn."""
        self._next_input = self._chat.encode_results(calls, results, self._ids[-1], self._calls)
        room = self._max_context - MIN_TURN_TOKENS - len(self._next_input.ids)
        return len(self._ids) <= room or len(self._list_history()) <= room

    async def next_turn(self) -> Turn | None:
        """Sample the next turn. See `ChatSession.next_turn`."""
        segment = self._rewrite_history()
        room = self._max_context - len(self._ids) - len(self._next_input.ids)
        if room < MIN_TURN_TOKENS:
            return None
        before = self._next_input
        self._ids += before.ids
        spans = [Span(self._origin, before.text, before.ids)]  # type: ignore[arg-type] # one of the two above
        if segment is not None:
            self._segment += 1
        seed = int(hashlib.sha256(f"{self._seed}/{len(self._past)}".encode()).hexdigest()[:8], 16) >> 1
        sampled = await self._sampler.sample(self._ids, before.text, self._tools, room, seed)
        self._ids += sampled.ids
        self._past.append(_PastTurn(before, sampled.ids))
        numbered = tuple(replace(each, segment=self._segment) for each in (*spans, *sampled.spans))
        return Turn(
            numbered, sampled.parsed, sampled.version, sampled.is_full, sampled.usage, segment, sampled.is_cut_off
        )

    def _rewrite_history(self) -> Segment | None:
        """Drop the reasoning of earlier turns from the history, and return the segment that this begins, if any."""
        history = self._list_history()
        if history is self._ids:
            return None
        shared = next((at for at, (one, other) in enumerate(zip(self._ids, history)) if one != other), len(history))  # noqa: B905
        if shared == len(self._ids) == len(history):
            return None
        self._ids = history
        return Segment(self._segment, shared, tuple(history[shared:]))

    def _list_history(self) -> list[int]:
        """Return the ids of the next turn's history, without the reasoning that is dropped."""
        if not self._past or not self._chat.drops_reasoning:
            return self._ids
        return [token for turn in self._past for token in self._chat.drop_reasoning(turn.before, turn.ids)]
