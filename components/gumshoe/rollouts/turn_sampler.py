"""Sample one turn with a token policy, and end reasoning that exceeds its budget."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from gumshoe.inference.policy import Policy, Sampling
from gumshoe.rollouts.chat_format.chat_format import ChatFormat, ParsedTurn
from gumshoe.rollouts.trajectory import Span, TokenUsage

MIN_TURN_TOKENS = 8
"""Tokens of the shortest useful turn."""


@dataclass(frozen=True, slots=True)
class SampledTurn:
    """A turn that was sampled."""

    spans: tuple[Span, ...]
    """Sampled spans, and the end of the reasoning if it was injected. The last span has the calls of the turn."""
    parsed: ParsedTurn
    version: str
    """Policy that sampled it."""
    usage: TokenUsage
    is_full: bool
    """True if the turn was truncated because the context is full."""
    is_cut_off: bool
    """True if it was truncated because it reached the maximum number of tokens of a turn."""

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids of all spans [tokens]."""
        return tuple(token for span in self.spans for token in span.ids)


@dataclass(frozen=True, slots=True)
class TurnSampler:
    """Sample turns of conversations with a policy.

    With a thinking budget, the first part of a turn has that many tokens at most. If it ends inside reasoning, the end
    of the reasoning is injected, and the turn goes on.
    """

    policy: Policy
    chat: ChatFormat
    sampling: Sampling

    async def sample(
        self, history: Sequence[int], before: str, tools: Sequence[dict[str, Any]], room: int, seed: int
    ) -> SampledTurn:
        """Sample the turn after a history [tokens], whose last part has the text `before`.

        `room` is the number of tokens that the context has left, at least `MIN_TURN_TOKENS`.

        Raises:
            PolicyError: if there is no usable answer.
        """
        spans, version, usage, finish, is_full = await self._sample_spans(history, before, tools, room, seed)
        ids = [token for span in spans for token in span.ids]
        parsed = self.chat.parse_turn(self.chat.decode_turn(ids)[0], tools, before=before)
        last = replace(spans[-1], calls=parsed.calls, has_reasoning=parsed.begins_with_reasoning)
        is_cut_off = finish == "length" and not is_full
        return SampledTurn((*spans[:-1], last), parsed, version, usage, is_full, is_cut_off)

    async def _sample_spans(
        self, history: Sequence[int], before: str, tools: Sequence[dict[str, Any]], room: int, seed: int
    ) -> tuple[list[Span], str, TokenUsage, str, bool]:
        """Return the spans of a turn, its policy, the tokens used, how it ended, and True if the context is full."""
        budget, most = self.chat.settings.thinking_budget, self.sampling.max_tokens
        ids = list(history)
        first = await self._sample_span(ids, min(budget or most, room), seed)
        usage = TokenUsage(len(history), len(first.ids))
        is_full = first.finish == "length" and (budget or most) >= room
        if budget is None or first.finish == "stop" or is_full:
            return [first.span], first.version, usage, first.finish, is_full
        spans = [replace(first.span, is_continued=True)]
        if self.chat.parse_turn(self.chat.decode_turn(first.ids)[0], tools, before=before).is_in_reasoning:
            ending = self.chat.encode_end_of_reasoning()
            spans.append(Span("injected", ending.text, ending.ids))
        room -= sum(len(each.ids) for each in spans)
        if room < MIN_TURN_TOKENS:
            return [first.span], first.version, usage, first.finish, True
        ids += [token for each in spans for token in each.ids]
        second = await self._sample_span(ids, min(most, room), seed + 1)
        usage += TokenUsage(len(ids), len(second.ids))
        is_full = second.finish == "length" and most >= room
        return [*spans, second.span], second.version, usage, second.finish, is_full

    async def _sample_span(self, ids: Sequence[int], max_tokens: int, seed: int) -> "_SampledPart":
        sampling = replace(self.sampling, max_tokens=max_tokens)
        found = await self.policy.sample(ids, sampling, stop_ids=self.chat.stop_ids, seed=seed)
        text, closed = self.chat.decode_turn(found.ids)
        return _SampledPart(Span("sampled", text + closed, found.ids, found.logprobs), found.version, found.finish)


@dataclass(frozen=True, slots=True)
class _SampledPart:
    span: Span
    version: str
    finish: str

    @property
    def ids(self) -> tuple[int, ...]:
        return self.span.ids
