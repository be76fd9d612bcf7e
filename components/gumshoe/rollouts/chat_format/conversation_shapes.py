"""Render openings and what stands between turns, after a check that the chat template can render messages there.

Templates drop messages, merge them or move them, without an error. So each shape of a conversation is first rendered
with marks as texts: all of them must be there, in order, and in messages of their own.
"""

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from gumshoe.environments.tools import Call
from gumshoe.errors import UsageError
from gumshoe.rollouts.chat_format.chat_template import QUESTION_MARK, SYSTEM_MARK, TURN_MARK, ChatTemplate
from gumshoe.rollouts.chat_format.rendering import TOOL

_SHOWN_ROLES = 6
_CACHE_SIZE = 512  # shapes; those with calls contain their names and ids
_MARK = re.compile(r"mark5part\d{6}x")
_NEXT_MARK, _TOOL_MARK = "mark5next", "mark5tool"
_TOOLS = [TOOL, {"type": "function", "function": {**TOOL["function"], "name": _TOOL_MARK, "description": _TOOL_MARK}}]
_CalledTool = tuple[str, str]  # name and id of a call


class ConversationShapes:
    """What a template can render before the first turn and between two turns.

    `control` matches the control tokens, which texts of messages must not contain.
    """

    def __init__(self, template: ChatTemplate, control: re.Pattern[str]) -> None:
        self._template, self._control = template, control
        self._following_cached = lru_cache(_CACHE_SIZE)(self._check_following)
        self._header_cached = lru_cache(2)(self._find_header)

    def render_opening(self, messages: Sequence[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
        """Return the messages before the first turn as text, with its header.

        Raises:
            UsageError: if the template cannot render the messages, or drops, merges or moves one.
        """
        roles, marks = [each["role"] for each in messages], _make_marks(len(messages))
        marked = self._start(_fill(roles, marks))
        shown = self._template.render(marked, tools, header=True)
        self._check_marks(shown, marks, roles, begins_with_system=roles[:2] == ["system", "user"])
        self._check_next_turn(marked, shown, has_tools=bool(tools))
        text = self._template.render(self._start(messages), tools, header=True)
        self._check_texts(text, [each["content"] for each in messages], self._control.findall(shown), roles)
        return text

    def render_following(
        self,
        calls: Sequence[Call],
        results: Sequence[str],
        others: Sequence[dict[str, Any]],
        earlier: int,
        *,
        has_tools: bool,
    ) -> tuple[str, str]:
        """Return the stop token of a turn, and the text after it: results, other messages, and the next turn's header.

        The turn has these calls, or only text if there are none. `earlier` is the number of calls in earlier turns.

        Raises:
            UsageError: if the template cannot render the messages after such a turn; or if it drops, merges or moves
                one, or something from before the turn.
        """
        named = tuple((each.name, each.id) for each in calls)
        control = self._following_cached(named, tuple(each["role"] for each in others), earlier, has_tools)
        stop, text = self._render_after_turn(calls, results, others, earlier, has_tools)
        roles = [*["tool"] * len(results), *(each["role"] for each in others)]
        self._check_texts(text, [*results, *(each["content"] for each in others)], control, roles)
        return stop, text

    def _check_following(
        self, named: tuple[_CalledTool, ...], roles: tuple[str, ...], earlier: int, has_tools: bool
    ) -> list[str]:
        """Check what the template writes after a turn, with marks as texts, and return the control tokens in it.

        Raises:
            UsageError: see `render_following`.
        """
        calls, marks = [Call(name, {}, own) for name, own in named], _make_marks(len(named) + len(roles))
        results, others = marks[: len(calls)], _fill(roles, marks[len(calls) :])
        _, shown = self._render_after_turn(calls, results, others, earlier, has_tools)
        if any(each in shown for each in (SYSTEM_MARK, QUESTION_MARK, _TOOL_MARK)):
            raise self._template.error(
                "rollouts.template-rewrites-history",
                "moves the tools or the system prompt to a later message; use another template, or ask one question "
                "in a conversation",
            )
        self._check_marks(shown, marks, [*["tool"] * len(results), *roles], results=len(results))
        if not results or others:
            messages = self._template.compose_following(calls, results, others, earlier)
            self._check_next_turn(messages, shown, has_tools=has_tools)
        return self._control.findall(shown)

    def _render_after_turn(
        self,
        calls: Sequence[Call],
        results: Sequence[str],
        others: Sequence[dict[str, Any]],
        earlier: int,
        has_tools: bool,
    ) -> tuple[str, str]:
        messages = self._template.compose_following(calls, results, others, earlier)
        text = self._template.render(messages, _TOOLS if has_tools else [], header=True)
        stop = self._template.stop if calls else next(iter(self._template.stops_after_text), "")
        after = text.partition(TURN_MARK)[2]
        if not stop or stop not in after:
            raise self._template.error(
                "rollouts.template-turn-end-varies", "ends a turn differently depending on the messages after it"
            )
        return stop, after.partition(stop)[2]

    def _start(self, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the messages of an opening, with the system prompt where the template takes it."""
        style, given = self._template.style, list(messages)
        if not style.has_system_role and [each["role"] for each in given[:2]] == ["system", "user"]:
            return [*style.start(given[0]["content"], given[1]["content"]), *given[2:]]
        return given

    def _check_marks(
        self,
        text: str,
        marks: list[str],
        roles: Sequence[str],
        *,
        results: int = 0,
        begins_with_system: bool = False,
    ) -> None:
        """Check that a text has each mark once, in order, and a control token between two of them.

        Results of calls, which come first, may be in one message. So may a system prompt and the first question.

        Raises:
            UsageError: if that is not so.
        """
        found = list(_MARK.finditer(text))
        if [each[0] for each in found] != marks:
            raise self._reject_messages(roles)
        for at in range(2 if begins_with_system else 1, len(marks)):
            between = text[found[at - 1].end() : found[at].start()]
            is_separate = between.strip() if at < results else self._control.search(between)
            if not is_separate:
                raise self._reject_messages(roles)

    def _check_texts(self, text: str, parts: Sequence[str], control: list[str], roles: Sequence[str]) -> None:
        """Check that a text has all parts, in order, and the control tokens that it has with marks instead of them.

        Templates may strip texts, or write them as JSON.

        Raises:
            UsageError: if that is not so.
        """
        at = 0
        for part in map(str.strip, parts):
            written = (part, json.dumps(part, ensure_ascii=False)[1:-1], json.dumps(part)[1:-1])
            found = next(((place, each) for each in written if (place := text.find(each, at)) >= 0), None)
            if found is None:
                raise self._reject_messages(roles)
            at = found[0] + len(found[1])
        if self._control.findall(text) != control:
            raise self._reject_messages(roles)

    def _check_next_turn(self, messages: Sequence[dict[str, Any]], shown: str, *, has_tools: bool) -> None:
        """Check that a turn can follow these messages, which are shown as this text, with the usual header.

        Raises:
            UsageError: if that is not so, e.g. because the roles must alternate.
        """
        if not shown.endswith(self._header_cached(has_tools)):
            raise self._template.error(
                "rollouts.no-turn-header", "begins no turn of the model after these messages; end with a question"
            )
        if self._template.stops_after_text:  # otherwise the template expects calls
            turn = self._template.style.turn((), _NEXT_MARK)
            if _NEXT_MARK not in self._template.render([*messages, turn], _TOOLS if has_tools else [], header=False):
                raise self._reject_messages([each["role"] for each in messages])

    def _find_header(self, has_tools: bool) -> str:
        """Return the last control token before a turn, and the text after it, e.g. `<|im_start|>assistant\\n`."""
        text = self._template.render(self._template.start, _TOOLS if has_tools else [], header=True)
        header = text.partition(QUESTION_MARK)[2]
        begins = [found.start() for found in self._control.finditer(header)]
        return header[begins[-1] :] if begins else header

    def _reject_messages(self, roles: Sequence[str]) -> UsageError:
        few = roles if len(roles) <= _SHOWN_ROLES else [*roles[:_SHOWN_ROLES], "..."]
        return self._template.error(
            "rollouts.message-left-out",
            f"drops, changes, merges or moves one of the messages {', '.join(few)}; use another template, or send one "
            "system message at the beginning and one question at a time",
        )


def _make_marks(count: int) -> list[str]:
    return [f"mark5part{at:06d}x" for at in range(count)]


def _fill(roles: Sequence[str], texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return messages with these roles and texts."""
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
