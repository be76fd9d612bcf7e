"""How a conversation becomes token ids, once and for all: the prompt, the glue between turns, and the calls in a turn.

What always holds: history is never rendered again. A turn is the ids that were sampled, and between two of them
stands glue alone: the tool's result in the words of the chat template, and the header of the next turn.
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
_REMEMBERED = 512  # texts and their ids: more than those of the groups that run at once
_MARK = "3f9c1e"  # stands for the result where the glue is derived
_PROBES = ("plain", 'two\nlines, "quoted" & <b>', " spaces ", "{}")
_TURNS = ('<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>', "<think>\nwell\n</think>\n\nYes.", "Yes.")


class UnusableCallError(Exception):
    """A turn holds no call that can be carried out."""


class NoCallError(UnusableCallError):
    """A turn holds no call at all."""


class Tokenizer(Protocol):
    """What is used of a tokenizer of `transformers`."""

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
    """A text and its ids."""

    text: str
    ids: tuple[int, ...]
    """[tokens]"""


@dataclass(frozen=True, slots=True)
class _Glue:
    """The text between what a model samples and its next turn."""

    end: str
    """What closes a turn, such as `<|im_end|>`: the stop token."""
    before: str
    after: str

    def text(self, result: str) -> str:
        return self.before + result + self.after


class ChatFormat:
    """A tokenizer's chat template, checked to be fit for token-exact episodes.

    Raises:
        UsageError: the template rewrites earlier turns, changes results, or has calls of another form than
            `<tool_call>` with JSON; or a turn's ids depend on what comes after it. Its message names the tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        tokenizer.backend_tokenizer.no_truncation()  # its file may say to cut texts, or to fill them up
        tokenizer.backend_tokenizer.no_padding()
        self._glue = _derive(tokenizer)
        self._control = _control(tokenizer, self._glue)
        # The episodes of a group begin with the same prompt, and often come by the same results.
        self._encoded = lru_cache(_REMEMBERED)(self._encode)
        self._rendered = lru_cache(_REMEMBERED)(self._render)
        self.end = self._glue.end
        """The text that ends a turn."""
        stop = tokenizer.convert_tokens_to_ids(self._glue.end)
        if not isinstance(stop, int) or tokenizer.decode([stop]) != self._glue.end:
            raise UsageError(
                "rollouts.no-stop-token",
                f"{_name(tokenizer)} ends turns with {self._glue.end!r}, which is not a single token of the tokenizer",
            )
        self.stop_ids: tuple[int, ...] = (stop,)
        """Sampling one of these ends a turn."""
        self._check_token_boundaries()

    def prompt(self, system: str, user: str, tools: list[dict[str, Any]]) -> Encoded:
        """What an episode begins with: system prompt, tools, what the user says, and the first turn's header."""
        return self._rendered(system, user, json.dumps(tools))

    def glue(self, result: str) -> Encoded:
        """What stands between a turn that ended and the next: a tool's result, and the next turn's header."""
        return self._encoded(self._glue.text(self.escape_control_tokens(result)))

    def turn(self, text: str) -> Encoded:
        """A turn that somebody wrote as text, with the token that ends it; what follows an end in it was never said."""
        return self._encode(text.partition(self.end)[0] + self.end)

    def decode_turn(self, ids: Sequence[int]) -> tuple[str, str]:
        """What sampled ids [tokens] say, and the text of the stop token, empty where there is none."""
        if ids and ids[-1] in self.stop_ids:
            return self.decode(ids[:-1]), self.end
        return self.decode(ids), ""

    def decode(self, ids: Sequence[int]) -> str:
        """All that ids say, control tokens included."""
        return str(self._tokenizer.backend_tokenizer.decode(list(ids), skip_special_tokens=False))

    def escape_control_tokens(self, text: str) -> str:
        """Text in which nothing is a control token: data must not be able to end a turn or begin another."""
        while (broken := self._control.sub(_broken, text)) != text:
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
        told, end, rest = text.partition(self.end)  # system prompt and tools are most of it, and often the same
        return Encoded(text, (*self._encoded(told + end).ids, *self._encode(rest).ids))

    def _encode(self, text: str) -> Encoded:
        # The batch call works outside the interpreter's lock; the one without offsets takes half as long.
        found = self._tokenizer.backend_tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return Encoded(text, tuple(found[0].ids))

    def _check_token_boundaries(self) -> None:
        """Texts that are encoded each on its own, with a turn's end between them, have the ids of the whole."""
        prompt, turn = self.prompt("S", "U", [_TOOL]), self._encode(_TURNS[0])
        for probe in _PROBES:
            glue = self.glue(probe)
            whole = self._encode(prompt.text + turn.text + self.end + glue.text)
            if whole.ids != (*prompt.ids, *turn.ids, *self.stop_ids, *glue.ids):
                raise UsageError(
                    "rollouts.stop-token-absorbs-spaces",
                    f"{_name(self._tokenizer)} ends turns with {self.end!r}, a token that absorbs adjacent spaces, so "
                    "turns cannot be tokenized separately; use a tokenizer whose stop token does not",
                )


def parse_call(text: str) -> Call:
    """The one call in a turn: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`. Text round it is no matter.

    Raises:
        NoCallError: there is none.
        UnusableCallError: there are several, it is cut off, or it is not such an object in strict JSON.
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
        found[0].encode()  # halves of code points are no text,
        call = _STRICT.decode(found[0])
        if "\\u" in found[0]:  # and JSON can name them
            json.dumps(call, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise UnusableCallError(f"the call is not JSON ({error})") from None
    match call:
        case {"name": str(name), "arguments": dict(arguments)}:
            return Call(name, arguments)
    raise UnusableCallError('the call is not {"name": ..., "arguments": {...}}')


def text_beside_call(text: str) -> str:
    """What a turn says beside its call."""
    return _CALL.sub("", text).strip()


def reasons_first(text: str) -> bool:
    """Whether a turn begins with reasoning, in `<think>` and `</think>`, that is not empty."""
    return _REASONING.match(text) is not None


def _control(tokenizer: Tokenizer, glue: _Glue) -> re.Pattern[str]:
    """What text from outside must not say as it stands: control tokens, and the tags that calls and results stand in.

    Some tokenizers add plain words and runs of spaces as tokens; those control nothing.
    """
    added = [str(token) for token in tokenizer.added_tokens_decoder.values()]
    control = {token for token in added if len(token) > 2 and not re.search(r"\s", token) and not token.isalnum()}
    control |= {"<tool_call>", "</tool_call>", *re.findall(r"</?\w+>", glue.before + glue.after)}
    return re.compile("|".join(map(re.escape, sorted(control, key=len, reverse=True))))


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


_STRICT = json.JSONDecoder(parse_constant=_refused)


def _broken(found: re.Match[str]) -> str:
    return f"{found[0][:1]} {found[0][1:]}"


def _name(tokenizer: Tokenizer) -> str:
    return f"the chat template of {tokenizer.name_or_path or 'this tokenizer'}"


def _rewrites(tokenizer: Tokenizer) -> UsageError:
    return UsageError(
        "rollouts.template-rewrites-history",
        f"{_name(tokenizer)} rewrites earlier turns or tool results (as Qwen3's does with thinking); use a template "
        "that only appends, such as Qwen2.5's",
    )


def _derive(tokenizer: Tokenizer) -> _Glue:
    """The glue, found by rendering conversations and checked on several."""
    if not tokenizer.chat_template:
        raise UsageError("rollouts.no-chat-template", f"{_name(tokenizer)} does not exist; add one to the tokenizer")
    system, user = {"role": "system", "content": "S"}, {"role": "user", "content": "U"}

    def render(*messages: dict[str, str], header: bool) -> str:
        try:
            rendered = tokenizer.apply_chat_template(
                [system, user, *messages], tools=[_TOOL], tokenize=False, add_generation_prompt=header
            )
        except Exception as error:  # noqa: BLE001 - a template is somebody's program, and may raise anything
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
    opened = head.removeprefix(start + _TURNS[0])
    if not mark or opened == head or _MARK in after:
        raise _rewrites(tokenizer)
    ended = render(first, header=False)
    if not ended.startswith(start + _TURNS[0]):
        raise _rewrites(tokenizer)
    closed = ended.removeprefix(start + _TURNS[0])
    end = closed.strip()
    if not end or not opened.startswith(closed):
        raise UsageError(
            "rollouts.template-turn-end-varies",
            f"{_name(tokenizer)} ends a turn differently if a tool result follows; use a template that only appends",
        )
    glue = _Glue(end, opened[opened.index(end) + len(end) :], after)
    for turns in ((turn, again) for turn in _TURNS for again in _TURNS):
        said, expected = [], start
        for turn, probe in zip(turns, _PROBES, strict=False):
            said += [_turn(turn), _result(probe)]
            expected += turn + glue.end + glue.text(probe)
            if render(*said, header=True) != expected:
                raise _rewrites(tokenizer)
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
