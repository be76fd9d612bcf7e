"""Convert conversations of any shape to token ids: openings, and what stands between two turns.

Agents send other conversations than Gumshoe's own loop: several instructions or questions, turns without calls,
questions after results. A template that cannot render a message, or leaves it out, is refused.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal

import orjson

from gumshoe.environments.tools import Call
from gumshoe.errors import UsageError
from gumshoe.rollouts.chat_format.chat_template import make_call_id
from gumshoe.rollouts.chat_format.conversation_shapes import ConversationShapes
from gumshoe.rollouts.chat_format.escaping import escape_strings

if TYPE_CHECKING:
    from gumshoe.rollouts.chat_format.chat_format import ChatFormat, Encoded

CACHE_SIZE = 512
"""Number of cached texts; more than the texts of the groups that run at once."""
MAX_CACHED = 65_536
"""Maximum number of characters of a cached text: agents may send texts of any length."""


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A message that no model wrote."""

    role: Literal["system", "user"]
    text: str


class ConversationFormat:
    """Encode conversations of any shape with a chat format, which has one: `ChatFormat.conversations`."""

    def __init__(self, chat: "ChatFormat") -> None:
        self._chat = chat
        # The episodes of a group have the same opening, and an agent sends earlier messages again with each request.
        self._opening_cached = lru_cache(CACHE_SIZE)(self._encode_opening)
        self._following_cached = lru_cache(CACHE_SIZE)(self._encode_following)
        self._turn_cached = lru_cache(CACHE_SIZE)(self._encode_turn)

    def encode_opening(self, messages: Sequence[ChatMessage], tools: Sequence[dict[str, Any]]) -> "Encoded":
        """Encode the messages before the first turn, and its header.

        A system prompt and a question have the same ids as in Gumshoe's own loop.

        Raises:
            UsageError: if the template cannot render the messages; or drops, merges or moves one.
        """
        schemas = orjson.dumps(tools)
        is_short = len(schemas) + sum(len(each.text) for each in messages) <= MAX_CACHED
        return (self._opening_cached if is_short else self._encode_opening)(tuple(messages), schemas)

    def encode_following(
        self,
        calls: Sequence[Call],
        results: Sequence[str],
        others: Sequence[ChatMessage],
        ended_with: int | None = None,
        earlier: int = 0,
        *,
        has_tools: bool = True,
    ) -> "Encoded":
        """Encode the text between a turn and the next one: results of its calls, other messages, and the header.

        The turn has these calls, or only text if there are none; `results` has one text for each call. Results alone
        have the same ids as in Gumshoe's own loop. `ended_with` is the last id of the turn; if it is not a stop token
        that the template writes there, that token comes first. `earlier` is the number of calls in earlier turns.
        `has_tools` is False if the conversation has no tools.

        Raises:
            UsageError: if the template cannot render the messages there; or drops, merges or moves one.
        """
        self._check_parallel(calls)
        if calls and not others:
            return self._chat.encode_results(calls, results, ended_with, earlier)
        texts = (*results, *(each.text for each in others), *(text for each in calls for text in (each.name, each.id)))
        is_short = sum(map(len, texts)) <= MAX_CACHED
        return (self._following_cached if is_short else self._encode_following)(
            tuple((each.name, each.id) for each in calls),
            tuple(results),
            tuple(others),
            ended_with if ended_with in self._find_stops(has_calls=bool(calls)) else None,
            earlier if self._chat.template.numbers_calls else 0,
            has_tools,
        )

    def encode_turn(self, calls: Sequence[Call], text: str = "") -> "Encoded":
        """Encode a turn that the policy did not sample, with its stop token. Control tokens in it are broken up.

        Raises:
            UsageError: if the template cannot render the turn, or leaves out its text or a call.
        """
        self._check_parallel(calls)
        named = tuple((each.name, json.dumps(each.arguments), each.id) for each in calls)
        is_short = len(text) + sum(len(part) for each in named for part in each) <= MAX_CACHED
        return (self._turn_cached if is_short else self._encode_turn)(named, text)

    def _check_parallel(self, calls: Sequence[Call]) -> None:
        if len(calls) > 1 and not self._chat.template.allows_parallel:
            raise self._chat.template.error(
                "rollouts.several-calls", f"writes one call in a turn, and a turn has {len(calls)}"
            )

    def _encode_turn(self, named: tuple[tuple[str, str, str], ...], text: str) -> "Encoded":
        escape, template = self._chat.escape_control_tokens, self._chat.template
        said = escape(text)
        calls = [
            Call(escape(name), escape_strings(json.loads(arguments), escape), escape(own))
            for name, arguments, own in named
        ]
        try:
            turn = self._chat.write_turn(calls, said)
        except UsageError:  # Mistral's templates accept only ids of nine characters, whatever the agent wrote
            if not calls:
                raise
            turn = self._chat.write_turn([replace(each, id="") for each in calls], said)
        if said.strip() not in turn:
            raise template.error(
                "rollouts.message-left-out", "leaves out the text of a turn with calls; send the calls alone"
            )
        stop = template.stops_after_text[0] if not calls and template.stops_after_text else self._chat.end
        return self._chat.encode(turn.partition(stop)[0] + stop)

    def _find_stops(self, *, has_calls: bool) -> dict[int, str]:
        """Return the stop tokens that the template writes at the end of a turn, with their texts."""
        return {self._chat.stop_ids[0]: self._chat.end} if has_calls else self._stops_after_text

    @cached_property
    def _stops_after_text(self) -> dict[int, str]:
        encoded = [self._chat.encode(stop) for stop in self._chat.template.stops_after_text]
        return {each.ids[0]: each.text for each in encoded if len(each.ids) == 1}

    @cached_property
    def _shapes(self) -> ConversationShapes:
        return ConversationShapes(self._chat.template, self._chat.control_tokens)

    def _encode_opening(self, messages: tuple[ChatMessage, ...], tools: bytes) -> "Encoded":
        schemas = orjson.loads(tools)
        match messages:
            case [ChatMessage("system", system), ChatMessage("user", question)]:
                return self._chat.encode_prompt(system, question, schemas)
        schemas = escape_strings(schemas, self._chat.escape_system)
        return self._chat.encode(self._shapes.render_opening(self._to_messages(messages), schemas))

    def _encode_following(
        self,
        named: tuple[tuple[str, str], ...],
        results: tuple[str, ...],
        others: tuple[ChatMessage, ...],
        ended_with: int | None,
        earlier: int,
        has_tools: bool,
    ) -> "Encoded":
        escape, render = self._chat.escape_control_tokens, self._shapes.render_following
        calls = [
            Call(escape(name) or "look", {}, escape(own) or make_call_id(at))
            for at, (name, own) in enumerate(named, earlier)
        ]
        texts, given = list(map(escape, results)), self._to_messages(others)
        try:
            stop, text = render(calls, texts, given, earlier, has_tools=has_tools)
        except UsageError:  # Mistral's templates accept only ids of nine characters, whatever the model wrote
            if not calls:
                raise
            numbered = [replace(each, id=make_call_id(at)) for at, each in enumerate(calls, earlier)]
            stop, text = render(numbered, texts, given, earlier, has_tools=has_tools)
        if ended_with is None:
            return self._chat.encode(stop + text)
        return self._chat.encode_after_stop(text, self._find_stops(has_calls=bool(calls))[ended_with])

    def _to_messages(self, messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
        escape = {"system": self._chat.escape_system, "user": self._chat.escape_control_tokens}
        return [{"role": each.role, "content": escape[each.role](each.text)} for each in messages]
