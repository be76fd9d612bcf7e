"""Chat session in token ids: the history is the prompt, the sampled ids, and the glue between turns."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from gumshoe.environments.tools import Call
from gumshoe.inference.policy import Completion, Policy, Sampling
from gumshoe.rollouts.chat_format.chat_format import ChatFormat, Encoded, ParsedTurn
from gumshoe.rollouts.episode import Turn
from gumshoe.rollouts.trajectory import Segment, Span, TokenUsage

_MIN_TURN_TOKENS = 8  # tokens; the shortest useful turn


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
        self._policy, self._chat, self._tools, self._sampling = policy, chat, tools, sampling
        self._max_context, self._seed = max_context, seed
        self.settings = chat.settings
        self._next_input, self._origin = prompt, "prompt"
        self._past: list[_PastTurn] = []
        self._ids: list[int] = []
        self._segment = 0
        self._calls = 0

    def add_results(self, calls: Sequence[Call], results: Sequence[str]) -> None:
        """Add the results of the last turn's calls. If the turn was truncated after its call, end the turn first."""
        self._next_input = self._chat.encode_results(calls, results, self._ids[-1], self._calls)
        self._origin = "injected"
        self._calls += len(calls)

    async def next_turn(self) -> Turn | None:
        """Sample the next turn. See `ChatSession.next_turn`."""
        segment = self._rewrite_history()
        room = self._max_context - len(self._ids) - len(self._next_input.ids)
        if room < _MIN_TURN_TOKENS:
            return None
        before = self._next_input
        self._ids += before.ids
        given = len(self._ids)
        spans = [Span(self._origin, before.text, before.ids)]  # type: ignore[arg-type] # one of the two above
        if segment is not None:
            self._segment += 1
        sampled, completion, usage, is_full = await self._sample_turn(room, before.text)
        ids = tuple(self._ids[given:])
        self._past.append(_PastTurn(before, ids))
        text, _ = self._chat.decode_turn(ids)
        parsed = self._chat.parse_turn(text, self._tools, before=before.text)
        last = replace(sampled[-1], calls=parsed.calls, has_reasoning=parsed.begins_with_reasoning)
        numbered = [replace(each, segment=self._segment) for each in (*spans, *sampled[:-1], last)]
        is_cut_off = completion.finish == "length" and not is_full
        return Turn(tuple(numbered), parsed, completion.version, is_full, usage, segment, is_cut_off)

    async def _sample_turn(self, room: int, before: str) -> tuple[list[Span], Completion, TokenUsage, bool]:
        """Return the spans of a turn, its last completion, the tokens used, and True if the context is full.

        With a thinking budget, the first part of the turn has as many tokens. If it ends inside reasoning, the end of
        the reasoning is injected, and the turn goes on.
        """
        budget, most = self._chat.settings.thinking_budget, self._sampling.max_tokens
        seed = int(hashlib.sha256(f"{self._seed}/{len(self._past)}".encode()).hexdigest()[:8], 16) >> 1
        first = await self._sample(min(budget or most, room), seed)
        usage = TokenUsage(len(self._ids), len(first.ids))
        self._ids += first.ids
        text, closed = self._chat.decode_turn(first.ids)
        span = Span("sampled", text + closed, first.ids, first.logprobs)
        is_full = first.finish == "length" and (budget or most) >= room
        if budget is None or first.finish == "stop" or is_full:
            return [span], first, usage, is_full
        spans = [replace(span, is_continued=True)]
        if self._parse(text, before).is_in_reasoning:
            ending = self._chat.encode_end_of_reasoning()
            spans.append(Span("injected", ending.text, ending.ids))
            self._ids += ending.ids
        room -= sum(len(each.ids) for each in spans)
        if room < _MIN_TURN_TOKENS:
            return [span], first, usage, True
        second = await self._sample(min(most, room), seed + 1)
        usage += TokenUsage(len(self._ids), len(second.ids))
        self._ids += second.ids
        text, closed = self._chat.decode_turn(second.ids)
        spans.append(Span("sampled", text + closed, second.ids, second.logprobs))
        return spans, second, usage, second.finish == "length" and most >= room

    async def _sample(self, max_tokens: int, seed: int) -> Completion:
        sampling = replace(self._sampling, max_tokens=max_tokens)
        return await self._policy.sample(self._ids, sampling, stop_ids=self._chat.stop_ids, seed=seed)

    def _parse(self, text: str, before: str) -> ParsedTurn:
        return self._chat.parse_turn(text, self._tools, before=before)

    def _rewrite_history(self) -> Segment | None:
        """Drop the reasoning of earlier turns from the history, and return the segment that this begins, if any."""
        if not self._past or not self._chat.drops_reasoning:
            return None
        history = [token for turn in self._past for token in self._chat.drop_reasoning(turn.before, turn.ids)]
        shared = next((at for at, (one, other) in enumerate(zip(self._ids, history)) if one != other), len(history))  # noqa: B905
        if shared == len(self._ids) == len(history):
            return None
        self._ids = history
        return Segment(self._segment, shared, tuple(history[shared:]))
