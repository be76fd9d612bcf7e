"""The token ids of an episode whose conversation an agent writes: what the policy saw and sampled, as a tree.

Invariant: a turn that was sampled keeps the ids that were sampled, wherever the agent repeats it. Nothing else that an
agent sends counts as sampled: it is context.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from gumshoe.environments.tools import Call
from gumshoe.gateway.gateway_errors import InvalidRequestError
from gumshoe.gateway.messages import AgentMessage, SampledMessage
from gumshoe.rollouts.chat_format.chat_format import ChatFormat, Encoded
from gumshoe.rollouts.chat_format.conversation_format import ChatMessage
from gumshoe.rollouts.trajectory import Segment, Span, SplitReason
from gumshoe.rollouts.turn_sampler import SampledTurn

_write_sorted = json.JSONEncoder(sort_keys=True).encode
_KnownMessage = tuple[str, tuple[tuple[str, str], ...]]  # text, and names and arguments of calls


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation in token ids, up to the header of the next turn."""

    ids: tuple[int, ...]
    """[tokens]"""
    opening: int
    """Number of tokens before the first turn."""
    before: str
    """Text before the next turn: the prompt, or what follows the turn before."""
    before_ids: tuple[int, ...]
    """[tokens] of that text, the last ones of `ids`."""
    drops_reasoning: bool
    """True if the reasoning of an earlier turn was left out."""


@dataclass(frozen=True, slots=True)
class _KnownTurn:
    """A turn that was sampled in this episode, or that an agent wrote itself."""

    history: tuple[int, ...]
    """[tokens] before it. Empty if an agent wrote it: copies for thousands of turns would take minutes."""
    ids: tuple[int, ...]
    """[tokens]"""
    calls: tuple[Call, ...]
    """Calls with the ids that the model wrote."""


class ConversationTree:
    """Match conversations with what was sampled, and keep the segments of the episode."""

    def __init__(self, chat: ChatFormat) -> None:
        self.chat = chat
        self._paths: list[list[int]] = []  # [segments][tokens]: what the policy saw and sampled in each segment
        self._known: dict[_KnownMessage, list[_KnownTurn]] = {}

    def compose(self, messages: Sequence[AgentMessage], tools: Sequence[dict[str, Any]]) -> Conversation:
        """Return a conversation in token ids.

        Raises:
            InvalidRequestError: if a call has no result, or a result no call.
            UsageError: if the chat template cannot render it.
        """
        turns = [at for at, each in enumerate(messages) if each.role == "assistant"]
        ends = [*turns[1:], len(messages)] if turns else []
        before = self.chat.conversations.encode_opening(
            _to_plain(messages[: turns[0] if turns else len(messages)]), tools
        )
        parts, ids, calls = list[tuple[Encoded, tuple[int, ...]]](), list(before.ids), 0
        opening = len(ids)
        for at, end in zip(turns, ends, strict=True):
            turn = self._find_turn(messages[at], ids)
            parts.append((before, turn.ids))
            results, others = _split_following(messages[at], messages[at + 1 : end])
            ended_with = turn.ids[-1] if turn.ids else None
            before = self.chat.conversations.encode_following(
                turn.calls, results, _to_plain(others), ended_with, calls, has_tools=bool(tools)
            )
            ids += [*turn.ids, *before.ids]
            calls += len(turn.calls)
        shown = ids
        if self.chat.drops_reasoning and parts:
            kept = [token for part in parts for token in self.chat.drop_reasoning(*part)]
            shown = [*kept, *before.ids]
        return Conversation(tuple(shown), opening, before.text, before.ids, len(shown) != len(ids))

    def add(
        self, conversation: Conversation, turn: SampledTurn, given: SampledMessage
    ) -> tuple[tuple[Span, ...], Segment | None]:
        """Add a turn that was sampled after a conversation, and that the agent receives as `given`.

        Return its spans, with what was injected before it, and the segment that begins with it, if one does.
        """
        ids, sampled = list(conversation.ids), list(turn.ids)
        known = _KnownTurn(conversation.ids, turn.ids, turn.parsed.calls if given.calls else ())
        self._known.setdefault(_key(given.text, given.calls), []).append(known)
        if not self._paths:
            self._paths.append(ids + sampled)
            return (self._make_span("prompt", conversation, 0), *turn.spans), None
        continued = [at for at, path in enumerate(self._paths) if ids[: len(path)] == path]
        if continued:
            number = max(continued, key=lambda at: len(self._paths[at]))
            path = self._paths[number]
            start = len(path)
            spans = turn.spans
            if start < len(ids):
                spans = (self._make_span("injected", conversation, start), *spans)
            path += ids[start:] + sampled
            return tuple(replace(each, segment=number) for each in spans) if number else spans, None
        shared = [_count_shared(path, ids) for path in self._paths]
        parent = shared.index(max(shared))
        segment = Segment(
            parent, shared[parent], tuple(ids[shared[parent] :]), self._find_reason(conversation, shared[parent])
        )
        self._paths.append(ids + sampled)
        return tuple(replace(each, segment=len(self._paths) - 1) for each in turn.spans), segment

    def _make_span(self, origin: Literal["prompt", "injected"], conversation: Conversation, start: int) -> Span:
        """Return the span of the tokens from `start` on, which an agent has sent."""
        ids = conversation.ids[start:]
        is_known = len(ids) == len(conversation.before_ids)
        return Span(origin, conversation.before if is_known else self.chat.decode(ids), ids)

    def _find_turn(self, message: AgentMessage, history: Sequence[int]) -> _KnownTurn:
        """Return a turn of a conversation: as it was sampled, or else as the template would write it."""
        known = self._known.get(_key(message.text, message.calls), [])
        if known:
            same = (each for each in known if len(each.history) == len(history) and each.history == tuple(history))
            return next(same, known[0])
        return _KnownTurn((), self.chat.conversations.encode_turn(message.calls, message.text).ids, message.calls)

    def _find_reason(self, conversation: Conversation, shared: int) -> SplitReason:
        if shared == len(conversation.ids):
            return "sampled again"
        if shared < conversation.opening:
            return "other opening"
        return "reasoning dropped" if conversation.drops_reasoning else "history edited"


def _key(text: str, calls: Sequence[Call]) -> _KnownMessage:
    """Return what identifies a turn: agents change spaces, the order of arguments, and the ids of calls."""
    return text.strip(), tuple((each.name, _write_sorted(each.arguments)) for each in calls)


def _split_following(turn: AgentMessage, following: Sequence[AgentMessage]) -> tuple[list[str], list[AgentMessage]]:
    """Return the results of a turn's calls, in the order of the calls, and the other messages after it.

    Raises:
        InvalidRequestError: if a call has no result, or a result no call.
    """
    results = {each.call_id: each for each in following if each.role == "tool"}
    others = [each for each in following if each.role != "tool"]
    wanted = [each.id for each in turn.calls]
    if len(results) + len(others) < len(following) or sorted(results) != sorted(wanted):
        raise InvalidRequestError(
            "gateway.results-mismatch",
            f"each tool call needs one result: the calls are {', '.join(wanted) or 'none'}, and the results are of "
            f"{', '.join(sorted(results)) or 'none'}",
        )
    return [results[each].text for each in wanted], others


def _to_plain(messages: Sequence[AgentMessage]) -> list[ChatMessage]:
    """Return messages that no model wrote.

    Raises:
        InvalidRequestError: if one is the result of a call, without the call before it.
    """
    if any(each.role == "tool" for each in messages):
        raise InvalidRequestError(
            "gateway.results-mismatch", "the result of a tool call must follow the message with the call"
        )
    return [ChatMessage("system" if each.role == "system" else "user", each.text) for each in messages]


def _count_shared(path: Sequence[int], ids: Sequence[int]) -> int:
    """Return the number of tokens with which both begin. Slices compare faster than a loop."""
    low, high = 0, min(len(path), len(ids))
    while low < high:
        middle = (low + high + 1) // 2
        if path[low:middle] == ids[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
