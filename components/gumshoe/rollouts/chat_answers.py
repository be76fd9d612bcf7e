"""Read the answers of chat models on OpenAI-compatible servers."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gumshoe.endpoint import FILTERED, error_fields, error_text, is_filtered
from gumshoe.environments.base import Unusable
from gumshoe.environments.tools import Call
from gumshoe.inference.policy import PolicyError
from gumshoe.redaction import redact
from gumshoe.rollouts.call_forms import NoCallError, UnusableCallError, find_form
from gumshoe.rollouts.call_forms.call_form import check_call
from gumshoe.rollouts.chat_format.chat_format import ParsedTurn
from gumshoe.rollouts.chat_format.chat_settings import ChatSettings
from gumshoe.rollouts.chat_format.reasoning import THINK
from gumshoe.rollouts.trajectory import TokenUsage

if TYPE_CHECKING:
    from openai import APIStatusError

REASONING_FIELDS = ("reasoning_content", "reasoning")  # DeepSeek and others; vLLM, Groq and others
REASONING_DETAILS = "reasoning_details"  # field of OpenRouter's messages with reasoning that it can check
EXTRA_CONTENT = "extra_content"  # field of Gemini's calls with their signatures
_HERMES = find_form("hermes")
_TEXT_PARTS, _REASONING_PARTS = {"text", "output_text"}, {"thinking", "reasoning"}
_TEXT_KEYS = ("text", "thinking", "reasoning", "summary")
NO_CALL = "there is no tool call in it"
_MAX_FAILURE_LENGTH = 1000  # characters of a server's error to report
_REQUEST_ERRORS = range(400, 500)  # statuses
_BROKEN_OFF = {"abort", "error", "insufficient_system_resource", "network_error"}
"""Reasons of vLLM and SGLang, OpenRouter, DeepSeek, and Z.AI for an end of an answer that is not the model's."""
_OUT_OF_TOKENS = re.compile("could not finish the message because max_tokens", re.I)  # of OpenAI, if it only reasoned
_REJECTED = {400, 403, 422}
_MALFORMED_CALL = re.compile("malformed_function_call|malformed_tool_call", re.I)  # of Gemini, and OpenRouter for it


@dataclass(frozen=True, slots=True)
class ApiCall:
    """A tool call as the API has it."""

    id: str
    name: str
    arguments: str
    """JSON, if the model made no mistake."""
    extra_content: Any = None
    """Data of the server that it must get back with the call, e.g. the thought signature of Gemini."""

    def parse(self) -> Call:
        """Return the call with its arguments.

        Raises:
            UnusableCallError: if they are not a JSON object.
        """
        try:
            arguments = json.loads(self.arguments)
        except (ValueError, RecursionError) as error:
            raise UnusableCallError(f"the arguments of {self.name} are not JSON ({error})") from None
        if not isinstance(arguments, dict):
            raise UnusableCallError(f"the arguments of {self.name} are not a JSON object")
        call = Call(self.name, arguments, self.id)
        check_call(call)
        return call


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """A model's answer to a conversation."""

    content: Any
    """Text, possibly with reasoning in `<think>` tags, or the list of parts that Mistral and others return."""
    text: str
    """The same without reasoning. Servers without a parser of calls leave calls in it."""
    calls: tuple[ApiCall, ...]
    parsed: ParsedTurn
    usage: TokenUsage | None
    """None if the server does not report it."""
    is_cut_off: bool
    """True if it reached the maximum number of tokens."""
    has_reasoning: bool
    """True if there was reasoning before it, visible or not."""
    reasoning_field: str = ""
    """Field of the message in which the server returned the reasoning; empty if it did not."""
    prompt_tokens: int = 0
    """Tokens of the conversation before it; 0 if the server does not report them."""
    reasoning_details: Any = None
    """Reasoning in the form that the server can check, signed or encrypted. It goes with the visible reasoning."""


def check_not_broken_off(name: str, answer: Any) -> None:
    """Check that a server has not broken an answer off, whose part says nothing about the model.

    Raises:
        APIStatusError: if it refused the request with status 200, as OpenRouter does once it has begun to answer.
        PolicyError: if it has broken it off in another way.
    """
    _raise_sent_error(answer)
    choices = getattr(answer, "choices", None)
    choice = choices[0] if isinstance(choices, list) and choices else None
    failure = getattr(answer if choice is None else choice, "error", None)
    finish, _ = reasons = _read_finish(choice)
    if failure or (finish in _BROKEN_OFF and not any(map(_MALFORMED_CALL.search, reasons))):
        server_message = json.dumps(failure, default=str)[:_MAX_FAILURE_LENGTH] if failure else ""
        reason = f" ({finish})" if finish in _BROKEN_OFF else ""
        raise PolicyError("models.answer-broken-off", f"{name} broke its answer off{reason}", server_message)


def _raise_sent_error(answer: Any) -> None:
    from httpx2 import Request, Response
    from openai import APIStatusError  # takes half a second to import

    failure = getattr(answer, "error", None)
    code = failure.get("code") if isinstance(failure, dict) else None
    if isinstance(code, int) and code in _REQUEST_ERRORS:
        response = Response(code, request=Request("POST", "http://localhost"))
        raise APIStatusError(f"Error code: {code} - {failure}", response=response, body=failure)


def read_answer(name: str, answer: Any, tools: Sequence[Any], place: int, settings: ChatSettings) -> ApiAnswer:
    """Return the parts of a chat completion of a model. `place` is the number of messages before it.

    Raises:
        PolicyError: if it is not a chat completion.
    """
    try:
        choice = answer.choices[0]
        content = _clean_json(choice.message.content or "")
        whole, thought = _read_content(content)
        calls = tuple(
            _read_call(call, f"{place:04}{number:05}") for number, call in enumerate(choice.message.tool_calls or [])
        )
        field = next((each for each in REASONING_FIELDS if getattr(choice.message, each, None)), "")
        reasoning = _clean(getattr(choice.message, field)) if field else ""
        details = _clean_json(getattr(choice.message, REASONING_DETAILS, None))
        reasons = _read_finish(choice)
    except (AttributeError, IndexError, TypeError, ValueError):
        raise PolicyError("models.invalid-answer", f"{name}: the answer is not a chat completion") from None
    tagged, text, is_closed = _split_reasoning(whole)
    reasoning = "\n".join(filter(None, (reasoning, thought, tagged)))
    parsed = _parse(text, calls, reasoning, tools, settings)
    if not parsed.calls:
        parsed = _explain(parsed, reasons)
    usage, reasoning_tokens = _read_usage(answer)
    return ApiAnswer(
        content,
        text,
        calls,
        replace(parsed, is_in_reasoning=not is_closed),
        usage,
        is_cut_off=reasons[0] == "length",
        has_reasoning=bool(reasoning or details) or not is_closed or reasoning_tokens > 0,
        reasoning_field=field,
        prompt_tokens=usage.prompt_tokens if usage else 0,
        reasoning_details=details,
    )


def read_rejected_turn(error: "APIStatusError") -> ApiAnswer | None:
    """Return the turn that an error stands for, or None if the error says nothing about the model.

    The model wrote a call that the server cannot parse, its reasoning used up all tokens, or a content filter rejected
    the conversation that it has led.
    """
    if error.status_code not in _REJECTED:
        return None
    fields, text = error_fields(error), error_text(error)
    message = fields.get("message")
    message = redact(_clean(message if isinstance(message, str) else text)[:_MAX_FAILURE_LENGTH])
    if fields.get("code") == "tool_use_failed":
        written = fields.get("failed_generation")
        written = _clean(written) if isinstance(written, str) else ""
        return _failed_turn(written, "unparseable call", f"the server could not parse the call: {message}")
    if _OUT_OF_TOKENS.search(text):
        return replace(_failed_turn("", "no call", NO_CALL), is_cut_off=True, has_reasoning=True)
    if is_filtered(error):
        return _failed_turn("", "no call", f"a content filter of the server rejected the conversation: {message}")
    return None


def _failed_turn(text: str, problem: Unusable, detail: str) -> ApiAnswer:
    return ApiAnswer(text, text, (), ParsedTurn((), text, "", problem, detail), None, False, False)


def _read_finish(choice: Any) -> tuple[str, str]:
    """Return the reason for the end of an answer, and the one that OpenRouter has from the server behind it."""
    finish, native = (getattr(choice, name, None) or "" for name in ("finish_reason", "native_finish_reason"))
    return str(finish), str(native)


def _explain(parsed: ParsedTurn, reasons: tuple[str, str]) -> ParsedTurn:
    """Return a turn without a usable call, with the server's reason for that if it has one."""
    if any(map(_MALFORMED_CALL.search, reasons)):
        return replace(parsed, problem="unparseable call", detail="the server could not parse the call")
    if any(map(FILTERED.search, reasons)):
        return replace(parsed, problem="no call", detail="a content filter of the server withheld the answer")
    return parsed


def _read_content(content: Any) -> tuple[str, str]:
    """Return the text of a message, and the reasoning in parts of it.

    Raises:
        AttributeError, TypeError: if it is neither a text nor a list of parts.
    """
    if isinstance(content, str):
        return content, ""
    texts = [(each.get("type"), _join_texts(each)) for each in content]
    text = "".join(part for kind, part in texts if kind in _TEXT_PARTS)
    return text, "\n".join(part for kind, part in texts if kind in _REASONING_PARTS and part)


def _join_texts(part: Any) -> str:
    """Return the text of a part of a message, e.g. `{"type": "thinking", "thinking": [{"type": "text", ...}]}`."""
    if isinstance(part, list):
        return "".join(map(_join_texts, part))
    if isinstance(part, dict):
        return next((_join_texts(part[key]) for key in _TEXT_KEYS if part.get(key)), "")
    return part if isinstance(part, str) else ""


def _split_reasoning(content: str) -> tuple[str, str, bool]:
    """Return the reasoning in `<think>` tags, the rest of a text, and True if all reasoning is closed."""
    before, closing, _ = content.partition(THINK.closing)
    is_open = bool(closing) and THINK.opening not in before  # the opening tag is in the prompt
    reasoning, rest, is_closed = THINK.split(content, is_open=is_open)
    return reasoning, rest.strip(), is_closed


def _parse(
    text: str, calls: Sequence[ApiCall], reasoning: str, tools: Sequence[Any], settings: ChatSettings
) -> ParsedTurn:
    """Return the parts of a turn. If there are no calls of the API, those in its text count."""
    outside = text if calls else _HERMES.outside(text)
    try:
        found = tuple(call.parse() for call in calls) or tuple(_HERMES.parse(text, tools))
    except NoCallError:
        return ParsedTurn((), outside, reasoning, "no call", NO_CALL)
    except UnusableCallError as error:
        return ParsedTurn((), outside, reasoning, "unparseable call", str(error))
    if len(found) > 1 and settings.parallel_calls == "refuse":
        detail = f"there are {len(found)} calls in one turn"
        return ParsedTurn((), outside, reasoning, "unparseable call", detail)
    return ParsedTurn(found, outside, reasoning)


def _read_call(call: Any, missing_id: str) -> ApiCall:
    """Return a call of the API.

    Raises:
        AttributeError, TypeError, ValueError: if it is not one.
    """
    name, arguments = call.function.name, call.function.arguments
    if not isinstance(arguments, str):  # some servers send the object itself, or nothing
        arguments = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    extra = _clean_json(getattr(call, EXTRA_CONTENT, None))
    return ApiCall(_clean(call.id or "") or missing_id, _clean(name), _clean(arguments) or "{}", extra)


def _clean(text: str) -> str:
    """Return text without lone surrogates, which cannot be sent back.

    Raises:
        AttributeError, TypeError: if it is not text.
    """
    return text.encode(errors="replace").decode()


def _clean_json(value: Any) -> Any:
    """Return a JSON value without lone surrogates.

    Raises:
        TypeError, ValueError: if it is not JSON.
    """
    return json.loads(_clean(json.dumps(value, ensure_ascii=False)))


def _read_usage(answer: Any) -> tuple[TokenUsage | None, int]:
    """Return the tokens of a request, or None if they are unknown, and the number of those of reasoning."""
    read, written = (getattr(answer.usage, name, None) for name in ("prompt_tokens", "completion_tokens"))
    details = getattr(answer.usage, "completion_tokens_details", None)
    reasoning = getattr(details, "reasoning_tokens", None)
    usage = TokenUsage(read, written) if isinstance(read, int) and isinstance(written, int) else None
    return usage, reasoning if isinstance(reasoning, int) else 0
