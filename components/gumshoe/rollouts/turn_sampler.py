"""Sample one turn with a token policy, and end reasoning that exceeds its budget."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from gumshoe.inference.policy import Policy, Sampling
from gumshoe.rollouts.chat_format.chat_format import ChatFormat, ParsedTurn
from gumshoe.rollouts.trajectory import Span, TokenUsage

MIN_TURN_TOKENS = 8
"""Tokens of the shortest useful turn."""
MAX_TOKEN_CHARACTERS = 16
"""Characters per token of the context: several times those of any real text. Longer texts never fit, and to tokenize
them would delay all episodes."""


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
        if len(self.spans) == 1:
            return self.spans[0].ids
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
    max_thinking: int | None = None
    """Maximum of the thinking budget; None for that of the settings."""

    @property
    def thinking_budget(self) -> int | None:
        """Maximum number of tokens of the first part of a turn, or None without one."""
        budget = self.chat.settings.thinking_budget
        return budget if budget is None or self.max_thinking is None else min(budget, self.max_thinking) or None

    @property
    def max_turn_tokens(self) -> int:
        """Maximum number of sampled tokens of a turn, those of its first part included."""
        return self.sampling.max_tokens + (self.thinking_budget or 0)

    def limit(self, most: int | None) -> "TurnSampler":
        """Return a sampler whose turns have at most some number of sampled tokens, from 1; None for no more limits.

        If these are fewer than with the thinking budget, the budget is reduced first, down to half of them.
        """
        if most is None or most >= self.max_turn_tokens:
            return self
        budget = min(self.thinking_budget or 0, max(most - self.sampling.max_tokens, most // 2))
        sampling = replace(self.sampling, max_tokens=min(self.sampling.max_tokens, most - budget))
        return replace(self, sampling=sampling, max_thinking=budget)

    async def sample(
        self, history: Sequence[int], before: str, tools: Sequence[dict[str, Any]], room: int, seed: int
    ) -> SampledTurn:
        """Sample the turn after a history [tokens], whose last part has the text `before`.

        `room` is the number of tokens that the context has left, at least `MIN_TURN_TOKENS`.

        Raises:
            PolicyError: if there is no usable answer.
        """
        parts, usage, is_full = await self._sample_parts(history, before, tools, room, seed)
        spans = [each.span for each in parts]
        if len(parts) == 1:
            text = parts[0].text
        else:
            text = self.chat.decode_turn([token for span in spans for token in span.ids])[0]
        parsed = self.chat.parse_turn(text, tools, before=before)
        last = replace(spans[-1], calls=parsed.calls, has_reasoning=parsed.begins_with_reasoning)
        is_cut_off = parts[-1].finish == "length" and not is_full
        return SampledTurn((*spans[:-1], last), parsed, parts[-1].version, usage, is_full, is_cut_off)

    async def _sample_parts(
        self, history: Sequence[int], before: str, tools: Sequence[dict[str, Any]], room: int, seed: int
    ) -> "tuple[list[_SampledPart], TokenUsage, bool]":
        """Return the parts of a turn, the tokens used, and True if the context is full."""
        budget, most = self.thinking_budget, self.sampling.max_tokens
        first = await self._sample_part(history, min(budget or most, room), seed)
        usage = TokenUsage(len(history), len(first.ids))
        is_full = first.finish == "length" and (budget or most) >= room
        if budget is None or first.finish == "stop" or is_full:
            return [first], usage, is_full
        parts = [replace(first, span=replace(first.span, is_continued=True))]
        if self.chat.parse_turn(first.text, tools, before=before).is_in_reasoning:
            ending = self.chat.encode_end_of_reasoning()
            parts.append(replace(first, span=Span("injected", ending.text, ending.ids), text=ending.text))
        room -= sum(len(each.ids) for each in parts)
        if room < MIN_TURN_TOKENS:
            return [first], usage, True
        ids = [*history, *(token for each in parts for token in each.ids)]
        second = await self._sample_part(ids, min(most, room), seed + 1)
        usage += TokenUsage(len(ids), len(second.ids))
        is_full = second.finish == "length" and most >= room
        return [*parts, second], usage, is_full

    async def _sample_part(self, ids: Sequence[int], max_tokens: int, seed: int) -> "_SampledPart":
        sampling = self.sampling
        if max_tokens != sampling.max_tokens:
            sampling = replace(sampling, max_tokens=max_tokens)
        found = await self.policy.sample(ids, sampling, stop_ids=self.chat.stop_ids, seed=seed)
        text, closed = self.chat.decode_turn(found.ids)
        span = Span("sampled", text + closed, found.ids, found.logprobs)
        return _SampledPart(span, text, found.version, found.finish)


@dataclass(frozen=True, slots=True)
class _SampledPart:
    """A span of a turn, and how it was sampled."""

    span: Span
    text: str
    """Text without the stop token."""
    version: str
    finish: str

    @property
    def ids(self) -> tuple[int, ...]:
        return self.span.ids
