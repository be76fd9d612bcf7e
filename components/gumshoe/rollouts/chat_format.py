"""Convert conversations to token ids: the prompt, the glue between turns, and the tool calls in a turn.

Invariant: the history is never rendered again. A turn consists of the ids that were sampled. Between two turns there
is only glue: the tool's result in the format of the chat template, and the header of the next turn.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from gumshoe.environments.tools import Call
from gumshoe.errors import UsageError

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.S)
_REASONING = re.compile(r"\s*<think>(?!\s*</think>).*?</think>", re.S)
_CACHE_SIZE = 512  # cached texts; more than the texts of the groups that run at once
_MARK = "3f9c1e"  # placeholder of the result, to derive the glue
_PROBES = ("plain", 'two\nlines, "quoted" & <b>', " spaces ", "{}")
_TURNS = ('<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>', "<think>\nwell\n</think>\n\nYes.", "Yes.")


class UnusableCallError(Exception):
    """Report that a turn has no call that can be used."""


class NoCallError(UnusableCallError):
    """Report that a turn has no call at all."""


class Tokenizer(Protocol):
    """A tokenizer of `transformers`, with the members that are used here."""

    name_or_path: str
    chat_template: Any
    added_tokens_decoder: dict[int, Any]

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any: ...
    @property
    def backend_tokenizer(self) -> Any: ...  # of the library `tokenizers`
    def decode(self, token_ids: Any, **options: Any) -> Any: ...
    def convert_tokens_to_ids(self, tokens: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Encoded:
    """A text and its token ids."""

    text: str
    ids: tuple[int, ...]
    """[tokens]"""


@dataclass(frozen=True, slots=True)
class _Glue:
    """Text between a sampled turn and the next one."""

    end: str
    """Text of the stop token, which ends a turn, e.g. `<|im_end|>`."""
    before: str
    after: str

    def text(self, result: str) -> str:
        return self.before + result + self.after


class ChatFormat:
    """Encode conversations with a tokenizer's chat template, after checks that it allows token-exact episodes.

    Raises:
        UsageError: if the template rewrites earlier turns, changes results, or does not use `<tool_call>` with JSON;
            or if the ids of a turn depend on the text after it. The message names the tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        tokenizer.backend_tokenizer.no_truncation()  # its file may enable both
        tokenizer.backend_tokenizer.no_padding()
        self._glue = _derive_glue(tokenizer)
        self._control = _control(tokenizer, self._glue)
        # The episodes of a group have the same prompt, and often the same results.
        self._encode_cached = lru_cache(_CACHE_SIZE)(self._encode)
        self._render_cached = lru_cache(_CACHE_SIZE)(self._render)
        self.end = self._glue.end
        """Text that ends a turn."""
        stop = tokenizer.convert_tokens_to_ids(self._glue.end)
        if not isinstance(stop, int) or tokenizer.decode([stop]) != self._glue.end:
            raise UsageError(
                "rollouts.no-stop-token",
                f"{_name(tokenizer)} ends turns with {self._glue.end!r}, which is not a single token of the tokenizer",
            )
        self.stop_ids: tuple[int, ...] = (stop,)
        """Token ids that end a turn."""
        self._check_token_boundaries()

    def encode_prompt(self, system: str, user: str, tools: list[dict[str, Any]]) -> Encoded:
        """Encode the start of an episode: system prompt, tools, user message, and the header of the first turn."""
        return self._render_cached(system, user, json.dumps(tools))

    def encode_tool_result(self, result: str) -> Encoded:
        """Encode the text between two turns: a tool's result and the header of the next turn."""
        return self._encode_cached(self._glue.text(self.escape_control_tokens(result)))

    def encode_turn(self, text: str) -> Encoded:
        """Encode a turn that is given as text, with its stop token. Text after a stop token in it is dropped."""
        return self._encode(text.partition(self.end)[0] + self.end)

    def decode_turn(self, ids: Sequence[int]) -> tuple[str, str]:
        """Return the text of sampled ids [tokens], and the text of the stop token, or "" if they do not end with it."""
        if ids and ids[-1] in self.stop_ids:
            return self.decode(ids[:-1]), self.end
        return self.decode(ids), ""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, control tokens included."""
        return str(self._tokenizer.backend_tokenizer.decode(list(ids), skip_special_tokens=False))

    def escape_control_tokens(self, text: str) -> str:
        """Return text without control tokens, so that data cannot end a turn or start another."""
        while (broken := self._control.sub(_split_token, text)) != text:
            text = broken
        return text

    def _render(self, system: str, user: str, tools: str) -> Encoded:
        messages = [
            {"role": "system", "content": self.escape_control_tokens(system)},
            {"role": "user", "content": self.escape_control_tokens(user)},
        ]
        text = self._tokenizer.apply_chat_template(
            messages, tools=json.loads(tools), tokenize=False, add_generation_prompt=True
        )
        first, end, rest = text.partition(self.end)  # system prompt and tools are most of it, and often the same
        return Encoded(text, (*self._encode_cached(first + end).ids, *self._encode(rest).ids))

    def _encode(self, text: str) -> Encoded:
        # The batch call releases the GIL; without offsets it takes half the time.
        found = self._tokenizer.backend_tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return Encoded(text, tuple(found[0].ids))

    def _check_token_boundaries(self) -> None:
        """Check that texts encoded separately, with a stop token between them, have the same ids as the whole text."""
        prompt, turn = self.encode_prompt("S", "U", [_TOOL]), self._encode(_TURNS[0])
        for probe in _PROBES:
            glue = self.encode_tool_result(probe)
            whole = self._encode(prompt.text + turn.text + self.end + glue.text)
            if whole.ids != (*prompt.ids, *turn.ids, *self.stop_ids, *glue.ids):
                raise UsageError(
                    "rollouts.stop-token-absorbs-spaces",
                    f"{_name(self._tokenizer)} ends turns with {self.end!r}, a token that absorbs adjacent spaces, so "
                    "turns cannot be tokenized separately; use a tokenizer whose stop token does not",
                )


def parse_call(text: str) -> Call:
    """Return the call in a turn: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, with any text around it.

    Raises:
        NoCallError: if there is no call.
        UnusableCallError: if there are several calls, or the call is cut off or not such an object in strict JSON.
    """
    found = _CALL.findall(text)
    opened = text.count("<tool_call>")
    if not opened:
        raise NoCallError("there is no <tool_call> in it")
    if opened > 1:
        raise UnusableCallError(f"there are {opened} calls in one turn")
    if not found:
        raise UnusableCallError("the call is cut off")
    try:
        found[0].encode()  # reject lone surrogates,
        call = _STRICT.decode(found[0])
        if "\\u" in found[0]:  # and escaped ones too
            json.dumps(call, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise UnusableCallError(f"the call is not JSON ({error})") from None
    match call:
        case {"name": str(name), "arguments": dict(arguments)}:
            return Call(name, arguments)
    raise UnusableCallError('the call is not {"name": ..., "arguments": {...}}')


def text_outside_call(text: str) -> str:
    """Return the text of a turn without its call."""
    return _CALL.sub("", text).strip()


def starts_with_reasoning(text: str) -> bool:
    """Return True if a turn begins with reasoning in `<think>` and `</think>` that is not empty."""
    return _REASONING.match(text) is not None


def _control(tokenizer: Tokenizer, glue: _Glue) -> re.Pattern[str]:
    """Return a pattern of what external text must not contain: control tokens, and the tags of calls and results.

    Some tokenizers add ordinary words and runs of spaces as tokens; these are not control tokens.
    """
    added = [str(token) for token in tokenizer.added_tokens_decoder.values()]
    control = {token for token in added if len(token) > 2 and not re.search(r"\s", token) and not token.isalnum()}
    control |= {"<tool_call>", "</tool_call>", *re.findall(r"</?\w+>", glue.before + glue.after)}
    return re.compile("|".join(map(re.escape, sorted(control, key=len, reverse=True))))


def _reject_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


_STRICT = json.JSONDecoder(parse_constant=_reject_constant)


def _split_token(found: re.Match[str]) -> str:
    return f"{found[0][:1]} {found[0][1:]}"


def _name(tokenizer: Tokenizer) -> str:
    return f"the chat template of {tokenizer.name_or_path or 'this tokenizer'}"


def _rewrites_error(tokenizer: Tokenizer) -> UsageError:
    return UsageError(
        "rollouts.template-rewrites-history",
        f"{_name(tokenizer)} rewrites earlier turns or tool results (as Qwen3's does with thinking); use a template "
        "that only appends, such as Qwen2.5's",
    )


def _derive_glue(tokenizer: Tokenizer) -> _Glue:
    """Derive the glue from rendered conversations, and check it on several others."""
    if not tokenizer.chat_template:
        raise UsageError("rollouts.no-chat-template", f"{_name(tokenizer)} does not exist; add one to the tokenizer")
    system, user = {"role": "system", "content": "S"}, {"role": "user", "content": "U"}

    def render(*messages: dict[str, str], header: bool) -> str:
        try:
            rendered = tokenizer.apply_chat_template(
                [system, user, *messages], tools=[_TOOL], tokenize=False, add_generation_prompt=header
            )
        except Exception as error:  # noqa: BLE001 - a template is a program and may raise anything
            raise UsageError(
                "rollouts.template-render-failed",
                f"{_name(tokenizer)} cannot render a conversation with tools: {error}",
            ) from None
        return str(rendered)

    start = render(header=True)
    if "<tool_call>" not in start:
        raise UsageError(
            "rollouts.template-no-tool-calls",
            f"{_name(tokenizer)} does not ask for calls in <tool_call> tags; use a template that does",
        )
    first = _turn(_TURNS[0])
    head, mark, after = render(first, _result(_MARK), header=True).partition(_MARK)
    before_result = head.removeprefix(start + _TURNS[0])
    if not mark or before_result == head or _MARK in after:
        raise _rewrites_error(tokenizer)
    without_result = render(first, header=False)
    if not without_result.startswith(start + _TURNS[0]):
        raise _rewrites_error(tokenizer)
    turn_end = without_result.removeprefix(start + _TURNS[0])
    end = turn_end.strip()
    if not end or not before_result.startswith(turn_end):
        raise UsageError(
            "rollouts.template-turn-end-varies",
            f"{_name(tokenizer)} ends a turn differently if a tool result follows; use a template that only appends",
        )
    glue = _Glue(end, before_result[before_result.index(end) + len(end) :], after)
    for turns in ((turn, again) for turn in _TURNS for again in _TURNS):
        messages, expected = [], start
        for turn, probe in zip(turns, _PROBES, strict=False):
            messages += [_turn(turn), _result(probe)]
            expected += turn + glue.end + glue.text(probe)
            if render(*messages, header=True) != expected:
                raise _rewrites_error(tokenizer)
    for probe in _PROBES:
        if render(first, _result(probe), header=True) != start + _TURNS[0] + glue.end + glue.text(probe):
            raise UsageError(
                "rollouts.template-changes-results",
                f"{_name(tokenizer)} changes the text of tool results; use a template that inserts them unchanged",
            )
    return glue


_TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}},
}


def _turn(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


def _result(content: str) -> dict[str, str]:
    return {"role": "tool", "content": content}
