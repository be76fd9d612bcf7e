"""OpenAI's Chat Completions API: read requests, and write completions and their chunks."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import orjson
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import Field

from gumshoe.environments.tools import Call
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
from gumshoe.gateway.event_streams import END_OF_CHAT, write_event, write_events
from gumshoe.gateway.gateway_limits import MAX_MESSAGES, MAX_SAMPLES, MAX_STOPS, MAX_TOOLS
from gumshoe.gateway.messages import AgentMessage, ModelRequest, ModelResponse, SampledMessage
from gumshoe.model_validation import validate_model

_REFUSED = ("logit_bias", "audio", "modalities", "prediction", "web_search_options", "functions", "function_call")
_REFUSED_IN_MESSAGES = ("function_call", "audio")


class _Function(ApiModel):
    name: str  # whatever the model has written
    arguments: str = "{}"


class _ToolCall(ApiModel):
    id: str = Field(min_length=1)
    type: Literal["function"] = "function"
    function: _Function


class _ChatMessage(ApiModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content = None
    tool_calls: tuple[_ToolCall, ...] | None = None
    tool_call_id: str = ""


class _ChatTool(ApiModel):
    type: Literal["function"]
    function: FunctionSchema


class _StreamOptions(ApiModel):
    include_usage: bool | None = None


class _ChatBody(ApiModel):
    messages: tuple[_ChatMessage, ...] = Field(min_length=1, max_length=MAX_MESSAGES)
    tools: tuple[_ChatTool, ...] | None = Field(None, max_length=MAX_TOOLS)
    tool_choice: Any = None
    n: int | None = Field(None, ge=1, le=MAX_SAMPLES)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    stop: str | Annotated[tuple[str, ...], Field(max_length=MAX_STOPS)] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    response_format: JsonSchema | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request to the Chat Completions API."""

    request: ModelRequest
    is_streamed: bool
    has_usage: bool
    """True if a stream ends with the number of tokens."""
    has_top_logprobs: bool

    @classmethod
    def parse(cls, body: dict[str, Any]) -> "ChatRequest":
        """Read a request.

        The run decides the sampling, so temperature, seed, penalties and the like are ignored, and so is
        `parallel_tool_calls`. With `tool_choice: none`, the model sees the tools, and a call is returned as text.

        Raises:
            UsageError: if the body is not a request.
            GatewayError: if it asks for something that is not supported.
        """
        refuse_parameters(body, _REFUSED)
        check_tool_types(body.get("tools"))
        _check_messages(body.get("messages"))
        given = validate_model(_ChatBody, body, "gateway.invalid-request", "invalid request")
        check_top_logprobs(given.top_logprobs)
        check_arguments(call.function.arguments for each in given.messages for call in each.tool_calls or ())
        tools = tuple(each.function.to_schema() for each in given.tools or ())
        request = ModelRequest(
            messages=tuple(_read_message(each, f"messages.{at}") for at, each in enumerate(given.messages)),
            tools=tools,
            samples=given.n or 1,
            max_tokens=given.max_completion_tokens or given.max_tokens,
            stops=_read_stops(given.stop),
            json_schema=given.response_format.read() if given.response_format else None,
            allows_calls=read_tool_choice(given.tool_choice, tools),
            logprobs=bool(given.logprobs),
        )
        has_usage = bool(given.stream_options and given.stream_options.include_usage)
        return cls(request, bool(given.stream), has_usage, bool(given.top_logprobs))

    def write_completion(self, found: ModelResponse) -> ChatCompletion:
        """Return the completion of a response."""
        choices = [
            {
                "index": at,
                "finish_reason": each.finish,
                "message": {"role": "assistant", "content": each.text or (None if each.calls else ""), **_calls(each)},
                "logprobs": self._logprobs(each),
            }
            for at, each in enumerate(found.messages)
        ]
        return ChatCompletion.model_validate(
            {**_head(found), "object": "chat.completion", "choices": choices, "usage": _usage(found)}
        )

    def write_chunks(self, found: ModelResponse) -> Iterator[ChatCompletionChunk]:
        """Yield the chunks of a response: of each message its role, text and calls, and at the end the usage."""
        head = {**_head(found), "object": "chat.completion.chunk"}

        def chunk(at: int, delta: dict[str, Any], finish: str | None = None, **more: Any) -> ChatCompletionChunk:
            choice = {"index": at, "delta": delta, "finish_reason": finish, **more}
            return ChatCompletionChunk.model_validate({**head, "choices": [choice]})

        for at, each in enumerate(found.messages):
            yield chunk(at, {"role": "assistant", "content": ""})
            logprobs = self._logprobs(each)
            if each.text or logprobs:
                yield chunk(at, {"content": each.text}, logprobs=logprobs)
            for number, call in enumerate(_calls(each).get("tool_calls", [])):
                yield chunk(at, {"tool_calls": [{"index": number, **call}]})
            yield chunk(at, {}, each.finish)
        if self.has_usage:
            yield ChatCompletionChunk.model_validate({**head, "choices": [], "usage": _usage(found)})

    def write_body(self, found: ModelResponse) -> bytes:
        """Return the body of a response."""
        return self.write_completion(found).model_dump_json(exclude_unset=True).encode()

    def write_stream(self, found: ModelResponse) -> bytes:
        """Return all events of a streamed response."""
        chunks = (each.model_dump_json(exclude_unset=True).encode() for each in self.write_chunks(found))
        return write_events(chunks) + END_OF_CHAT

    def write_failure(self, error: dict[str, Any]) -> bytes:
        """Return the last event of a stream that fails."""
        return write_event(orjson.dumps({"error": error}))

    def _logprobs(self, message: SampledMessage) -> dict[str, Any] | None:
        if not self.request.logprobs:
            return None
        return {"content": write_logprobs(message, has_top=self.has_top_logprobs), "refusal": None}


def _check_messages(messages: Any) -> None:
    for each in messages if isinstance(messages, list) else ():
        if isinstance(each, dict):
            refuse_parameters(each, _REFUSED_IN_MESSAGES)


def _read_stops(given: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return tuple(filter(None, (given,) if isinstance(given, str) else given or ()))


def _read_message(given: _ChatMessage, where: str) -> AgentMessage:
    text = read_text(given.content, where)
    if given.role == "assistant":
        calls = tuple(
            Call(each.function.name, read_arguments(each.function.arguments, f"{where}.tool_calls.{at}"), each.id)
            for at, each in enumerate(given.tool_calls or ())
        )
        return AgentMessage("assistant", text, calls)
    if given.role == "tool":
        return AgentMessage("tool", text, call_id=given.tool_call_id)
    return AgentMessage("user" if given.role == "user" else "system", text)


def _head(found: ModelResponse) -> dict[str, Any]:
    version = found.policy
    return {"id": f"chatcmpl-{found.id}", "created": int(time.time()), "model": version, "system_fingerprint": version}


def _calls(message: SampledMessage) -> dict[str, Any]:
    calls = [
        {
            "id": each.id,
            "type": "function",
            "function": {"name": each.name, "arguments": write_arguments(each.arguments)},
        }
        for each in message.calls
    ]
    return {"tool_calls": calls} if calls else {}


def _usage(found: ModelResponse) -> CompletionUsage:
    return CompletionUsage(
        prompt_tokens=found.prompt_tokens,
        completion_tokens=found.completion_tokens,
        total_tokens=found.prompt_tokens + found.completion_tokens,
    )
