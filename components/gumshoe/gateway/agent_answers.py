"""Read the answer from what an agent returns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from pydantic import BaseModel

from gumshoe.gateway.agent_errors import AgentFailedError
from gumshoe.json_text import InvalidJsonError, load_json
from gumshoe.text_checks import replace_bad_characters

MAX_ANSWER = 100_000
"""Maximum number of characters of an answer."""
MAX_SOURCES = 100
"""Maximum number of its sources."""
MAX_SOURCE = 1_000
"""Maximum number of characters of a source."""
_MOST_NAMES = 10  # names of fields in a message


@dataclass(frozen=True, slots=True)
class ReturnedAnswer:
    """The answer that an agent returned."""

    answer: str | None
    """None if the agent returned nothing, because it has called the tool `return_final_answer` itself."""
    sources: tuple[str, ...] = ()
    """Ids of messages or documents."""


def read_answer(value: Any) -> ReturnedAnswer:
    """Read the answer from the value that an agent returned. Call it where agents run: that may run their code.

    It may be: None; a text, which may be JSON with `answer` and `sources`; a mapping, a dataclass or a pydantic model
    with `answer` and `sources`; a message of a model; the state of a graph, whose answer is its `structured_response`,
    its `answer`, or its last message of a model; a result of the OpenAI Agents SDK (`final_output`).

    Raises:
        AgentFailedError: if it is anything else, or too large.
    """
    try:
        output = value.final_output if hasattr(value, "final_output") else value
        found = _read_fields(output)
        if found.get("structured_response") is not None:
            output = found["structured_response"]
            found = _read_fields(output)
        if output is None:
            return ReturnedAnswer(None)
        if isinstance(output, str):
            return read_answer_text(output)
        if _is_from_model(output):
            return _read_message(output)
        messages = found.get("messages")
        if found.get("answer") is not None or ("answer" in found and messages is None):
            return _check(found["answer"], found.get("sources"))
    except AgentFailedError:
        raise
    except Exception as error:  # noqa: BLE001 - attributes of custom classes may raise anything
        raise _reject(f"its attributes cannot be read ({type(error).__name__})") from None
    if isinstance(messages, Sequence) and not isinstance(messages, str):
        last = next((each for each in reversed(messages) if _is_from_model(each)), None)
        return ReturnedAnswer(None) if last is None else _read_message(last)
    names = f" with {', '.join(sorted(map(str, found))[:_MOST_NAMES])}" if found else ""
    raise _reject(f"got {type(output).__name__}{names}"[:300])


def read_answer_text(text: str) -> ReturnedAnswer:
    """Read the answer from a text, which may be JSON such as `{"answer": "Friday", "sources": ["<7@example.com>"]}`.

    Text that is not JSON of that form is itself the answer, and there is no answer in a blank text.

    Raises:
        AgentFailedError: if it is too large.
    """
    whole = text.strip()
    if whole.startswith("{") and len(whole) <= MAX_ANSWER:
        try:
            found = load_json(whole)
            if "answer" in found:
                return _check(found["answer"], found.get("sources"))
        except (InvalidJsonError, AgentFailedError):
            pass  # a model may write anything
    return _check(whole, ())


def _read_fields(value: Any) -> Mapping[str, Any]:
    """Return the fields of a mapping, a dataclass or a pydantic model by name, and nothing for other values."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, BaseModel):
        return {name: getattr(value, name) for name in type(value).model_fields}
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    return {}


def _get(message: Any, name: str) -> Any:
    return message.get(name) if isinstance(message, Mapping) else getattr(message, name, None)


def _is_from_model(message: Any) -> bool:
    """Return True for a message of a model, as LangChain and OpenAI's API represent it."""
    is_from_model = _get(message, "type") in ("ai", "AIMessageChunk") or _get(message, "role") == "assistant"
    return is_from_model and _has_content(message)


def _has_content(message: Any) -> bool:
    return "content" in message if isinstance(message, Mapping) else hasattr(message, "content")


def _read_message(message: Any) -> ReturnedAnswer:
    """Read the answer from a message of a model. One that calls tools is no answer."""
    if _get(message, "tool_calls"):
        return ReturnedAnswer(None)
    content = _get(message, "content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        content = "".join(_read_block(each) for each in content)
    return read_answer_text(content) if isinstance(content, str) else ReturnedAnswer(None)


def _read_block(block: Any) -> str:
    """Return the text of a part of a message, and nothing for its reasoning, images and so on."""
    text = block if isinstance(block, str) else _get(block, "text")
    return text if isinstance(text, str) else ""


def _check(answer: Any, sources: Any) -> ReturnedAnswer:
    """Return an answer with its sources.

    Raises:
        AgentFailedError: if they have wrong types, or are too large.
    """
    if isinstance(answer, int | float) and not isinstance(answer, bool):
        answer = str(answer)
    if answer is not None and not isinstance(answer, str):
        raise _reject(f"its answer is {type(answer).__name__}, not text")
    if not isinstance(sources, list | tuple | None) or not all(isinstance(each, str) for each in sources or ()):
        raise _reject("its sources are not a list of texts")
    if len(answer or "") > MAX_ANSWER:
        raise _reject(f"its answer has {len(answer or ''):,} characters, and the maximum is {MAX_ANSWER:,}")
    if len(sources or ()) > MAX_SOURCES or any(len(each) > MAX_SOURCE for each in sources or ()):
        raise _reject(f"there may be {MAX_SOURCES} sources of {MAX_SOURCE:,} characters each")
    text = replace_bad_characters(answer or "").strip()
    return ReturnedAnswer(text or None, tuple(map(replace_bad_characters, sources or ())))


def _reject(fault: str) -> AgentFailedError:
    return AgentFailedError(
        "gateway.agent-answer-invalid",
        f"the agent returned no usable answer: {fault}; return a text, or answer and sources",
    )
