"""OpenAI's Responses API: read requests, and write responses and their events."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson
from openai.types.responses import Response
from pydantic import Field

from gumshoe.environments.tools import Call
from gumshoe.gateway.admitted_episodes import StoredResponses
from gumshoe.gateway.api_fields import (
    ApiModel,
    Content,
    FunctionSchema,
    JsonSchema,
    check_arguments,
    check_tool_types,
    check_top_logprobs,
    read_arguments,
    read_text,
    read_tool_choice,
    refuse_parameters,
    write_arguments,
    write_logprobs,
)
from gumshoe.gateway.event_streams import write_event
from gumshoe.gateway.gateway_errors import InvalidRequestError
from gumshoe.gateway.gateway_limits import MAX_MESSAGES, MAX_TOOLS
from gumshoe.gateway.messages import AgentMessage, ModelRequest, ModelResponse, SampledMessage
from gumshoe.model_validation import validate_model

_REFUSED = ("background", "conversation", "prompt")
_IGNORED = ("reasoning",)  # items
_LOGPROBS = "message.output_text.logprobs"


class _InputItem(ApiModel):
    type: str | None = "message"
    role: str = ""
    content: Content = None
    call_id: str = ""
    name: str = ""
    arguments: str = "{}"
    output: Content = None


class _FlatTool(FunctionSchema):
    type: str


class _TextOptions(ApiModel):
    format: JsonSchema | None = None


class _ResponseBody(ApiModel):
    input: str | tuple[_InputItem, ...]
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: tuple[_FlatTool, ...] | None = Field(None, max_length=MAX_TOOLS)
    tool_choice: Any = None
    max_output_tokens: int | None = Field(None, ge=1)
    text: _TextOptions | None = None
    include: tuple[str, ...] | None = None
    top_logprobs: int | None = Field(None, ge=0)
    stream: bool | None = None


@dataclass(frozen=True, slots=True)
class ResponseRequest:
    """A request to the Responses API."""

    request: ModelRequest
    is_streamed: bool
    has_top_logprobs: bool
    previous: str | None
    history: tuple[AgentMessage, ...]
    """Messages without the instructions, which a later request with `previous_response_id` continues."""

    @classmethod
    def parse(cls, body: dict[str, Any], known: StoredResponses) -> "ResponseRequest":
        """Read a request. It may continue a known response of the episode. See also `ChatRequest.parse`.

        Raises:
            UsageError: if the body is not a request.
            GatewayError: if it asks for something that is not supported, or continues an unknown response.
        """
        refuse_parameters(body, _REFUSED)
        check_tool_types(body.get("tools"))
        given = validate_model(_ResponseBody, body, "gateway.invalid-request", "invalid request")
        check_top_logprobs(given.top_logprobs)
        history = (*_find_previous(given.previous_response_id, known), *_read_input(given.input))
        if not 1 <= len(history) <= MAX_MESSAGES:
            raise InvalidRequestError(
                "gateway.invalid-request",
                f"there must be 1 to {MAX_MESSAGES:,} messages, got {len(history):,}",
                "input",
            )
        instructions = (AgentMessage("system", given.instructions),) if given.instructions else ()
        tools = tuple(each.to_schema() for each in given.tools or ())
        request = ModelRequest(
            messages=(*instructions, *history),
            tools=tools,
            max_tokens=given.max_output_tokens,
            json_schema=given.text.format.read() if given.text and given.text.format else None,
            allows_calls=read_tool_choice(given.tool_choice, tools),
            logprobs=_LOGPROBS in (given.include or ()),
        )
        return cls(request, bool(given.stream), bool(given.top_logprobs), given.previous_response_id, history)

    def write_response(self, found: ModelResponse) -> Response:
        """Return the response."""
        return Response.model_validate(self._write(found, self._write_items(found), time.time()))

    def write_body(self, found: ModelResponse) -> bytes:
        """Return the body of a response."""
        return orjson.dumps(self._write(found, self._write_items(found), time.time()))

    def write_events(self, found: ModelResponse) -> Iterator[dict[str, Any]]:
        """Yield the events of a stream, in order."""
        items, now = self._write_items(found), time.time()
        begun, whole = self._write(found, [], now, "in_progress"), self._write(found, items, now)
        events: list[dict[str, Any]] = [
            {"type": "response.created", "response": begun},
            {"type": "response.in_progress", "response": begun},
        ]
        for at, item in enumerate(items):
            events += _write_item_events(at, item)
        events.append({"type": f"response.{whole['status']}", "response": whole})
        yield from ({**each, "sequence_number": number} for number, each in enumerate(events))

    def write_stream(self, found: ModelResponse) -> bytes:
        """Return all events of a streamed response."""
        return b"".join(write_event(orjson.dumps(each), each["type"]) for each in self.write_events(found))

    def write_failure(self, error: dict[str, Any]) -> bytes:
        """Return the last event of a stream that fails. Clients that know no such event find `error`."""
        event = {"type": "error", "sequence_number": 0, **error, "error": error}
        return write_event(orjson.dumps({**event, "type": "error"}), "error")

    def continue_history(self, found: ModelResponse) -> tuple[AgentMessage, ...]:
        """Return the messages up to the end of a response."""
        (said,) = found.messages
        return (*self.history, AgentMessage("assistant", said.text, said.calls))

    def _write(self, found: ModelResponse, items: list[dict[str, Any]], now: float, status: str = "") -> dict[str, Any]:
        status = status or ("incomplete" if found.messages[0].finish == "length" else "completed")
        usage = {
            "input_tokens": found.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": found.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": found.prompt_tokens + found.completion_tokens,
        }
        return {
            "id": response_id(found),
            "object": "response",
            "created_at": now,
            "model": found.policy,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": items,
            "parallel_tool_calls": True,
            "tool_choice": "auto" if self.request.allows_calls else "none",
            "tools": [{**each["function"], "type": "function", "strict": False} for each in self.request.tools],
            "previous_response_id": self.previous,
            "usage": None if status == "in_progress" else usage,
        }

    def _write_items(self, found: ModelResponse) -> list[dict[str, Any]]:
        (said,) = found.messages
        status = "incomplete" if said.finish == "length" else "completed"
        items = list[dict[str, Any]]()
        if said.text or not said.calls:
            logprobs = write_logprobs(said, has_top=self.has_top_logprobs) if self.request.logprobs else []
            part = {"type": "output_text", "text": said.text, "annotations": [], "logprobs": logprobs}
            message = {"type": "message", "role": "assistant", "status": status, "content": [part]}
            items.append({"id": f"msg_{found.id}", **message})
        return [*items, *_write_calls(said, found.id, status)]


def response_id(found: ModelResponse) -> str:
    """Return the id of a response in this API."""
    return f"resp_{found.id}"


def _find_previous(number: str | None, known: StoredResponses) -> tuple[AgentMessage, ...]:
    """Return the messages up to a response.

    Raises:
        InvalidRequestError: if it is not known.
    """
    found = () if number is None else known.find(number)
    if found is None:
        raise InvalidRequestError(
            "gateway.unknown-response",
            "previous_response_id names no response of this episode, or one that is too old; send the conversation",
            "previous_response_id",
        )
    return found


def _read_input(given: str | tuple[_InputItem, ...]) -> Iterator[AgentMessage]:
    """Yield the messages of an input. The items of a turn, its text and its calls, are one message."""
    if isinstance(given, str):
        yield AgentMessage("user", given)
        return
    check_arguments(item.arguments for item in given if item.type == "function_call")
    text, calls = list[str](), list[Call]()
    for at, item in enumerate(given):
        where = f"input.{at}"
        if item.type in _IGNORED:
            continue
        if item.type in ("message", None) and item.role == "assistant" and not calls:
            text.append(read_text(item.content, where))
            continue
        if item.type == "function_call":
            calls.append(Call(item.name, read_arguments(item.arguments, where), item.call_id))
            continue
        if text or calls:
            yield AgentMessage("assistant", "\n".join(text), tuple(calls))
            text, calls = [], []
        if item.role == "assistant" and item.type in ("message", None):
            text.append(read_text(item.content, where))
        else:
            yield _read_item(item, where)
    if text or calls:
        yield AgentMessage("assistant", "\n".join(text), tuple(calls))


def _read_item(item: _InputItem, where: str) -> AgentMessage:
    if item.type == "function_call_output":
        return AgentMessage("tool", read_text(item.output, where), call_id=item.call_id)
    if item.type not in ("message", None) or item.role not in ("system", "developer", "user"):
        what = f"items of type {item.type[:40]!r}" if item.type not in ("message", None) else "messages of this role"
        raise InvalidRequestError("gateway.unsupported-item", f"{where}: {what} are not supported", where)
    return AgentMessage("user" if item.role == "user" else "system", read_text(item.content, where))


def _write_calls(said: SampledMessage, number: str, status: str) -> list[dict[str, Any]]:
    return [
        {
            "type": "function_call",
            "id": f"fc_{number}_{at}",
            "call_id": each.id,
            "name": each.name,
            "arguments": write_arguments(each.arguments),
            "status": status,
        }
        for at, each in enumerate(said.calls)
    ]


def _write_item_events(at: int, item: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events of an item, from its beginning to its end."""
    place = {"output_index": at, "item_id": item["id"]}
    if item["type"] == "message":
        (part,) = item["content"]
        inside, logprobs = {**place, "content_index": 0}, part["logprobs"]
        empty = {**item, "status": "in_progress", "content": []}
        events: list[dict[str, Any]] = [
            {"type": "response.content_part.added", **inside, "part": {**part, "text": "", "logprobs": []}},
            {"type": "response.output_text.delta", **inside, "delta": part["text"], "logprobs": logprobs},
            {"type": "response.output_text.done", **inside, "text": part["text"], "logprobs": logprobs},
            {"type": "response.content_part.done", **inside, "part": part},
        ]
    else:
        written = {"arguments": item["arguments"], "name": item["name"]}
        empty = {**item, "status": "in_progress", "arguments": ""}
        events = [
            {"type": "response.function_call_arguments.delta", **place, "delta": item["arguments"]},
            {"type": "response.function_call_arguments.done", **place, **written},
        ]
    return [
        {"type": "response.output_item.added", "output_index": at, "item": empty},
        *events,
        {"type": "response.output_item.done", "output_index": at, "item": item},
    ]
