"""Convert conversations of any shape to token ids: openings, and what stands between two turns.

Agents send other conversations than Gumshoe's own loop: several instructions or questions, turns without calls,
questions after results. A template that leaves a message out, or cannot render it, is refused.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

from gumshoe.environments.tools import Call
from gumshoe.errors import UsageError
from gumshoe.rollouts.chat_format.chat_format import ChatFormat, Encoded, make_call_id

_CACHE_SIZE = 512  # the episodes of a group have the same opening


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A message that no model wrote."""

    role: Literal["system", "user"]
    text: str


class ConversationFormat:
    """Encode conversations of any shape with a chat format."""

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat
        self._opening_cached = lru_cache(_CACHE_SIZE)(self._encode_opening)

    def encode_opening(self, messages: Sequence[ChatMessage], tools: Sequence[dict[str, Any]]) -> Encoded:
        """Encode the messages before the first turn, and its header.

        A system prompt and a question have the same ids as in Gumshoe's own loop.

        Raises:
            UsageError: if the template cannot render the messages, or leaves one out.
        """
        match messages:
            case [ChatMessage("system", system), ChatMessage("user", question)]:
                return self._chat.encode_prompt(system, question, list(tools))
        return self._opening_cached(tuple(messages), json.dumps(tools))

    def encode_following(
        self,
        calls: Sequence[Call],
        results: Sequence[str],
        others: Sequence[ChatMessage],
        ended_with: int | None = None,
        earlier: int = 0,
    ) -> Encoded:
        """Encode the text between a turn and the next one: results of its calls, other messages, and the header.

        `ended_with` is the last id of the turn; if it is not the stop token that the template writes there, that token
        comes first. `earlier` is the number of calls in earlier turns.

        Raises:
            UsageError: if the template cannot render the messages there, or leaves one out.
        """
        chat = self._chat
        if calls and not others:
            return chat.encode_results(calls, results, ended_with, earlier)
        given, texts = self._to_messages(others), [chat.escape_control_tokens(each) for each in results]
        stop, text = self._render_following(calls, texts, given, earlier)
        _check_complete(text, [*texts, *(each["content"] for each in given)])
        if ended_with is not None and chat.decode([ended_with]) == stop:
            return Encoded(text, chat.encode_after_stop(text))
        return chat.encode(stop + text)

    def encode_turn(self, calls: Sequence[Call], text: str = "") -> Encoded:
        """Encode a turn that the policy did not sample, with its stop token. Control tokens in it are broken up."""
        escape = self._chat.escape_control_tokens
        given = [Call(escape(each.name), _escape_strings(each.arguments, escape), escape(each.id)) for each in calls]
        stop = self._chat.end if calls else self._stop_after_text
        return self._chat.encode(self._chat.write_turn(given, escape(text)).partition(stop)[0] + stop)

    @cached_property
    def _stop_after_text(self) -> str:
        """Stop token of turns without calls."""
        try:
            return self._chat.template.render_following((), (), [{"role": "user", "content": "x"}])[0]
        except UsageError:  # the template expects calls
            return self._chat.end

    def _render_following(
        self, calls: Sequence[Call], results: Sequence[str], others: list[dict[str, Any]], earlier: int
    ) -> tuple[str, str]:
        escape, render = self._chat.escape_control_tokens, self._chat.template.render_following
        ids = [escape(each.id) or make_call_id(at) for at, each in enumerate(calls, earlier)]
        named = [Call(escape(each.name), {}, own) for each, own in zip(calls, ids, strict=True)]
        try:
            return render(named, results, others, earlier)
        except UsageError:  # Mistral's templates accept only ids of nine characters, whatever the model wrote
            numbered = [Call(each.name, {}, make_call_id(at)) for at, each in enumerate(named, earlier)]
            return render(numbered, results, others, earlier)

    def _encode_opening(self, messages: tuple[ChatMessage, ...], tools: str) -> Encoded:
        template, given = self._chat.template, self._to_messages(messages)
        texts = [each["content"] for each in given]
        if not template.style.has_system_role and [each.role for each in messages[:2]] == ["system", "user"]:
            given = [*template.style.start(*texts[:2]), *given[2:]]
        text = template.render(given, json.loads(tools), header=True)
        _check_complete(text, texts)
        return self._chat.encode(text)

    def _to_messages(self, messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
        escape = {"system": self._chat.escape_system, "user": self._chat.escape_control_tokens}
        return [{"role": each.role, "content": escape[each.role](each.text)} for each in messages]


def _escape_strings(value: Any, escape: Callable[[str], str]) -> Any:
    """Return a JSON value with all strings and names in it escaped."""
    match value:
        case str():
            return escape(value)
        case dict():
            return {escape(name): _escape_strings(each, escape) for name, each in value.items()}
        case list():
            return [_escape_strings(each, escape) for each in value]
    return value


def _check_complete(text: str, parts: Sequence[str]) -> None:
    """Check that a rendering has all parts, in order. Templates strip them.

    Raises:
        UsageError: if one is missing.
    """
    at = 0
    for part in parts:
        found = text.find(part.strip(), at)
        if found < 0:
            raise UsageError(
                "rollouts.message-left-out",
                "the chat template leaves out or changes a message in this place; use another template, or send all "
                "instructions in one system message at the beginning",
            )
        at = found + len(part.strip())
