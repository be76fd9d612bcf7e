"""Render conversations with a tokenizer's chat template."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from itertools import product
from typing import Any, Protocol

from gumshoe.environments.tools import Call
from gumshoe.errors import UsageError
from gumshoe.rollouts.call_forms import CallForm
from gumshoe.rollouts.chat_format.chat_settings import ChatSettings

_DAY = date(2026, 1, 1)  # current day for templates, fixed so that prompts do not depend on the clock
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look.",
        "parameters": {
            "type": "object",
            "properties": {
                "word": {"type": "string", "description": "A word."},
                "count": {"type": "integer", "description": "A number."},
                "exact": {"type": "boolean", "description": "Exactly."},
                "tags": {"type": "array", "items": {"type": "string"}, "description": "Tags."},
            },
            "required": ["word"],
        },
    },
}
"""Schema of the tool in the conversations from which a template's format is derived."""


class Tokenizer(Protocol):
    """A tokenizer of `transformers`, with the members that are used here."""

    name_or_path: str
    chat_template: Any
    eos_token: Any
    added_tokens_decoder: dict[int, Any]

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any: ...
    @property
    def backend_tokenizer(self) -> Any: ...  # of the library `tokenizers`
    def decode(self, token_ids: Any, **options: Any) -> Any: ...
    def convert_tokens_to_ids(self, tokens: Any) -> Any: ...


class RenderingError(Exception):
    """Report that a template cannot render a conversation."""


@dataclass(frozen=True, slots=True)
class MessageStyle:
    """How messages are given to a template; templates differ in what they accept."""

    has_system_role: bool = True
    """False if the system prompt has to stand at the beginning of the question."""
    arguments_as_text: bool = False
    """Arguments of calls are JSON text, not objects."""
    content: str | None = ""
    """Content of a turn with calls and without text."""
    calls_in_content: CallForm | None = None
    """Form in which calls are written into the content, if the template ignores the field for calls."""

    def start(self, system: str, question: str) -> list[dict[str, Any]]:
        """Return the messages of a prompt."""
        if self.has_system_role:
            return [{"role": "system", "content": system}, {"role": "user", "content": question}]
        return [{"role": "user", "content": f"{system}\n\n{question}"}]

    def turn(self, calls: Sequence[Call], text: str = "", thought: str = "") -> dict[str, Any]:
        """Return the message of a turn. The templates read reasoning from several names."""
        reasoning = {name: thought for name in ("reasoning_content", "reasoning", "thinking") if thought}
        if self.calls_in_content is not None:
            written = self.calls_in_content.write(calls) if calls else ""
            gap = "\n" if text and written and not text.endswith("\n") else ""
            return {"role": "assistant", "content": text + gap + written, **reasoning}
        made = [
            {
                "type": "function",
                "id": call.id,
                "function": {
                    "name": call.name,
                    "arguments": json.dumps(call.arguments) if self.arguments_as_text else call.arguments,
                },
            }
            for call in calls
        ]
        content = text or (self.content if calls else "")
        return {"role": "assistant", "content": content, **({"tool_calls": made} if calls else {}), **reasoning}

    def results(self, calls: Sequence[Call], results: Sequence[str]) -> list[dict[str, Any]]:
        """Return the messages of the results of a turn's calls."""
        return [
            {"role": "tool", "name": call.name, "tool_call_id": call.id, "content": result}
            for call, result in zip(calls, results, strict=True)
        ]


STYLES = tuple(
    MessageStyle(has_system_role, as_text, content)
    for has_system_role, as_text, content in product((True, False), (False, True), ("", None))
)
"""Ways to give messages to a template whose turns have a field for calls, in the order in which they are tried."""


class Renderer:
    """A tokenizer's chat template with its settings.

    Raises:
        UsageError: if the tokenizer has no template.
    """

    def __init__(self, tokenizer: Tokenizer, settings: ChatSettings) -> None:
        self._tokenizer, self._settings = tokenizer, settings
        self.name = f"the chat template of {tokenizer.name_or_path or 'this tokenizer'}"
        """Name for error messages."""
        if not (settings.template or tokenizer.chat_template):
            raise self.error(
                "rollouts.no-chat-template", "does not exist; add one to the tokenizer, or set chat.template"
            )
        self.end_of_text = str(tokenizer.eos_token or "")
        """Text of the token with which the tokenizer ends a text; empty if it has none."""
        added = [str(token) for token in tokenizer.added_tokens_decoder.values()]
        self.tokens = {token for token in added if len(token) > 2 and not re.search(r"\s", token)}
        """Texts of the tokens that were added to the vocabulary, e.g. control tokens."""

    @cached_property
    def source(self) -> str:
        """The Jinja code of all templates of the tokenizer."""
        own = self._settings.template or self._tokenizer.chat_template
        return "\n".join(own.values()) if isinstance(own, dict) else str(own)

    def render(self, messages: Sequence[dict[str, Any]], tools: list[dict[str, Any]], *, header: bool) -> str:
        """Return a conversation as text, with the header of the next turn if `header` is set.

        Without tools the template gets none, or an empty list if it needs one.

        Raises:
            RenderingError: if the template raises an error.
        """
        try:
            return self._apply(messages, tools or None, header)
        except RenderingError:
            if tools:
                raise
            return self._apply(messages, tools, header)

    def _apply(self, messages: Sequence[dict[str, Any]], tools: list[dict[str, Any]] | None, header: bool) -> str:
        options: dict[str, Any] = {"strftime_now": _DAY.strftime, **self._settings.template_kwargs}
        if "xml_tools" in self.source:  # SmolLM3's name for tools
            options["xml_tools"] = tools
        try:
            rendered = self._tokenizer.apply_chat_template(
                list(messages),
                tools=tools,
                chat_template=self._settings.template,
                tokenize=False,
                add_generation_prompt=header,
                **options,
            )
        except Exception as error:  # noqa: BLE001 - a template is a program and may raise anything
            raise RenderingError(f"{type(error).__name__}: {error}") from None
        return str(rendered)

    def error(self, code: str, problem: str) -> UsageError:
        """Return an error whose message names the template."""
        return UsageError(code, f"{self.name} {problem}")
