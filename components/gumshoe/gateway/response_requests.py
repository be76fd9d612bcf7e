"""OpenAI's Responses API: read requests, and write responses and their events."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openai.types.responses import Response
from pydantic import Field

from gumshoe.environments.tools import Call
from gumshoe.gateway.api_fields import (
    MAX_MESSAGES,
    MAX_TOOLS,
    ApiModel,
    Content,
    FunctionSchema,
    JsonSchema,
    read_arguments,
    read_text,
    refuse_parameters,
    write_arguments,
)
from gumshoe.gateway.gateway_errors import InvalidRequestError
from gumshoe.gateway.messages import AgentMessage, ModelRequest, ModelResponse, SampledMessage
from gumshoe.model_validation import validate_model

_REFUSED = ("background", "conversation", "prompt")
_IGNORED = ("reasoning",)  # items


class _InputItem(ApiModel):
    type: str = "message"
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
    input: str | tuple[_InputItem, ...] = Field(max_length=10_000_000)
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: tuple[_FlatTool, ...] | None = Field(None, max_length=MAX_TOOLS)
    max_output_tokens: int | None = Field(None, ge=1)
    text: _TextOptions | None = None
    stream: bool | None = None


@dataclass(frozen=True, slots=True)
class ResponseRequest:
    """A request to the Responses API."""

    request: ModelRequest
    is_streamed: bool
    previous: str | None
    history: tuple[AgentMessage, ...]
    """Messages without the instructions, which a later request with `previous_response_id` continues."""

    @classmethod
    def parse(cls, body: dict[str, Any], known: Mapping[str, tuple[AgentMessage, ...]]) -> "ResponseRequest":
        """Read a request. `known` are the messages up to each earlier response of the episode, by its id.

        Raises:
            UsageError: if the body is not a request.
            GatewayError: if it asks for something that is not supported, or continues an unknown response.
        """
        refuse_parameters(body, _REFUSED)
        given = validate_model(_ResponseBody, body, "gateway.invalid-request", "invalid request")
        for tool in given.tools or ():
            if tool.type != "function":
                raise InvalidRequestError(
                    "gateway.unsupported-tool", f"tools of type {tool.type[:40]!r} are not supported; use functions"
                )
        previous = given.previous_response_id
        if previous is not None and previous not in known:
            raise InvalidRequestError(
                "gateway.unknown-response", "previous_response_id names no response of this episode"
            )
        history = (*(known[previous] if previous else ()), *_read_input(given.input))
        if not 1 <= len(history) <= MAX_MESSAGES:
            raise InvalidRequestError(
                "gateway.invalid-request", f"there must be 1 to {MAX_MESSAGES:,} messages, got {len(history):,}"
            )
        instructions = (AgentMessage("system", given.instructions),) if given.instructions else ()
        output = given.text.format if given.text else None
        request = ModelRequest(
            messages=(*instructions, *history),
            tools=tuple(each.to_schema() for each in given.tools or ()),
            max_tokens=given.max_output_tokens,
            json_schema=output.read() if output else None,
        )
        return cls(request, bool(given.stream), previous, history)

    def write_response(self, found: ModelResponse) -> Response:
        """Return the response."""
        return Response.model_validate(self._write(found, _write_items(found)))

    def _write(self, found: ModelResponse, items: Sequence[dict[str, Any]], status: str = "") -> dict[str, Any]:
        is_cut_off = found.messages[0].finish == "length"
        status = status or ("incomplete" if is_cut_off else "completed")
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
            "created_at": time.time(),
            "model": found.policy,
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": list(items),
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [{**each["function"], "type": "function", "strict": False} for each in self.request.tools],
            "previous_response_id": self.previous,
            "usage": None if status == "in_progress" else usage,
        }

    def write_events(self, found: ModelResponse) -> Iterator[dict[str, Any]]:
        """Yield the events of a stream, in order."""
        items, begun = _write_items(found), self._write(found, [], "in_progress")
        events: list[dict[str, Any]] = [
            {"type": "response.created", "response": begun},
            {"type": "response.in_progress", "response": begun},
        ]
        for at, item in enumerate(items):
            place = {"output_index": at, "item_id": item["id"]}
            rest: dict[str, Any] = {"content": []} if item["type"] == "message" else {"arguments": ""}
            empty = {**item, "status": "in_progress", **rest}
            events.append({"type": "response.output_item.added", "output_index": at, "item": empty})
            if item["type"] == "message":
                (part,) = item["content"]
                inside = {**place, "content_index": 0}
                events += [
                    {"type": "response.content_part.added", **inside, "part": {**part, "text": ""}},
                    {"type": "response.output_text.delta", **inside, "delta": part["text"], "logprobs": []},
                    {"type": "response.output_text.done", **inside, "text": part["text"], "logprobs": []},
                    {"type": "response.content_part.done", **inside, "part": part},
                ]
            else:
                written = {"arguments": item["arguments"], "name": item["name"]}
                events += [
                    {"type": "response.function_call_arguments.delta", **place, "delta": item["arguments"]},
                    {"type": "response.function_call_arguments.done", **place, **written},
                ]
            events.append({"type": "response.output_item.done", "output_index": at, "item": item})
        whole = self._write(found, items)
        events.append({"type": f"response.{whole['status']}", "response": whole})
        yield from ({**each, "sequence_number": number} for number, each in enumerate(events))

    def continue_history(self, found: ModelResponse) -> tuple[AgentMessage, ...]:
        """Return the messages up to the end of a response."""
        (said,) = found.messages
        return (*self.history, AgentMessage("assistant", said.text, said.calls))


def response_id(found: ModelResponse) -> str:
    """Return the id of a response in this API."""
    return f"resp_{found.id}"


def _read_input(given: str | Sequence[_InputItem]) -> Iterator[AgentMessage]:
    """Yield the messages of an input. The items of a turn, its text and its calls, are one message."""
    if isinstance(given, str):
        yield AgentMessage("user", given)
        return
    text, calls = list[str](), list[Call]()
    for at, item in enumerate(given):
        where = f"input.{at}"
        if item.type in _IGNORED:
            continue
        if item.type == "message" and item.role == "assistant" and not calls:
            text.append(read_text(item.content, where))
            continue
        if item.type == "function_call":
            calls.append(Call(item.name, read_arguments(item.arguments, where), item.call_id))
            continue
        if text or calls:
            yield AgentMessage("assistant", "\n".join(text), tuple(calls))
            text, calls = [], []
        yield _read_item(item, where)
    if text or calls:
        yield AgentMessage("assistant", "\n".join(text), tuple(calls))


def _read_item(item: _InputItem, where: str) -> AgentMessage:
    if item.type == "function_call_output":
        return AgentMessage("tool", read_text(item.output, where), call_id=item.call_id)
    if item.type != "message" or item.role not in ("system", "developer", "user", "assistant"):
        raise InvalidRequestError(
            "gateway.unsupported-item", f"{where}: items of type {item.type[:40]!r} are not supported here"
        )
    text = read_text(item.content, where)
    if item.role == "assistant":
        return AgentMessage("assistant", text)
    return AgentMessage("user" if item.role == "user" else "system", text)


def _write_items(found: ModelResponse) -> list[dict[str, Any]]:
    said: SampledMessage = found.messages[0]
    status = "incomplete" if said.finish == "length" else "completed"
    items = list[dict[str, Any]]()
    if said.text or not said.calls:
        part = {"type": "output_text", "text": said.text, "annotations": [], "logprobs": []}
        message = {"type": "message", "role": "assistant", "status": status, "content": [part]}
        items.append({"id": f"msg_{found.id}", **message})
    items += [
        {
            "type": "function_call",
            "id": f"fc_{found.id}_{at}",
            "call_id": each.id,
            "name": each.name,
            "arguments": write_arguments(each.arguments),
            "status": status,
        }
        for at, each in enumerate(said.calls)
    ]
    return items
