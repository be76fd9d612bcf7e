"""Parts of requests that OpenAI's APIs have in common: the body, content, tools, and the schema of the answer."""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

import orjson
from pydantic import BaseModel, ConfigDict, Field

from gumshoe.gateway.gateway_errors import InvalidRequestError, UnsupportedParameterError
from gumshoe.gateway.gateway_limits import MAX_CONTAINERS, MAX_DEPTH
from gumshoe.gateway.messages import ModelRequest, ModelResponse, SampledMessage
from gumshoe.json_text import load_json
from gumshoe.text_checks import find_bad_texts

ToolName = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
_TEXT_PARTS = ("text", "input_text", "output_text", "refusal")
_HARMLESS: Mapping[str, Sequence[Any]] = {"logit_bias": ({},), "functions": ([],), "modalities": (["text"],)}

MAX_SCHEMA_BYTES, MAX_SCHEMA_COUNT = 64 * 1024, 1_000
"""Limits of schemas of answers, which the server of the policy compiles for all episodes."""
_COUNTS = {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}
_REPETITION = re.compile(r"\{(\d*),?(\d*)\}")


class ApiRequest(Protocol):
    """A request to one of the APIs."""

    @property
    def request(self) -> ModelRequest: ...

    @property
    def is_streamed(self) -> bool: ...

    def write_body(self, found: ModelResponse) -> bytes:
        """Return the body of a response."""
        ...

    def write_stream(self, found: ModelResponse) -> bytes:
        """Return all events of a streamed response."""
        ...

    def write_failure(self, error: dict[str, Any]) -> bytes:
        """Return the last event of a stream that fails."""
        ...


class ApiModel(BaseModel):
    """Part of a request. Fields that change nothing here are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class ContentPart(ApiModel):
    """A part of a message."""

    type: str
    text: str | None = None
    refusal: str | None = None


Content = str | tuple[ContentPart, ...] | None
"""Content of a message: text, or parts."""


class FunctionSchema(ApiModel):
    """A tool."""

    name: str = ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None

    def to_schema(self) -> dict[str, Any]:
        """Return the schema in the form of chat templates."""
        parameters = self.parameters or {"type": "object", "properties": {}}
        function = {"name": self.name, "description": self.description or "", "parameters": parameters}
        return {"type": "function", "function": function}


class NamedSchema(ApiModel):
    """The field `json_schema` of a response format."""

    schema_: dict[str, Any] | None = Field(None, alias="schema")


class JsonSchema(ApiModel):
    """Schema of the answer, as `response_format` or `text.format`."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: NamedSchema | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")

    def read(self) -> dict[str, Any] | None:
        """Return the schema, or None if any text is allowed.

        Raises:
            InvalidRequestError: if the schema is too large.
        """
        if self.type == "text":
            return None
        schema = self.schema_ or (self.json_schema and self.json_schema.schema_) or {"type": "object"}
        _check_schema(schema)
        return schema


def read_body(data: bytes) -> dict[str, Any]:
    """Return the body of a request, a JSON object.

    Raises:
        InvalidRequestError: if it is something else, is nested too deeply, has too many values, or contains NUL or
            half of a surrogate pair.
    """
    try:
        body = orjson.loads(data.removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError("gateway.invalid-request", f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise InvalidRequestError("gateway.invalid-request", "the body must be a JSON object")
    _check_shape(body)
    if b"\\u0000" in data:
        for path, fault in find_bad_texts(body):
            raise InvalidRequestError("gateway.invalid-request", f"{path or 'the body'}: {fault}", path or None)
    return body


def _check_shape(body: dict[str, Any]) -> None:
    level: list[Any] = [body]
    count = depth = 0
    while level:
        count, depth = count + len(level), depth + 1
        if depth > MAX_DEPTH or count > MAX_CONTAINERS:
            what = (
                f"nested more than {MAX_DEPTH} levels deep" if depth > MAX_DEPTH else "too large: it has too many parts"
            )
            raise InvalidRequestError("gateway.invalid-request", f"the body is {what}")
        level = [
            inner
            for each in level
            for inner in (each.values() if type(each) is dict else each)
            if type(inner) is dict or type(inner) is list
        ]


def refuse_parameters(body: Mapping[str, Any], names: Collection[str]) -> None:
    """Refuse parameters that would change the meaning of a request.

    Raises:
        UnsupportedParameterError: if one is set, unless its value is the default.
    """
    for name in names:
        value = body.get(name)
        if value is not None and value is not False and value not in _HARMLESS.get(name, ()):
            raise _unsupported(name, f"the parameter {name} is not supported")


def check_tool_types(tools: Any) -> None:
    """Check that all tools are functions.

    Raises:
        InvalidRequestError: if one is not.
    """
    for at, each in enumerate(tools if isinstance(tools, list) else ()):
        kind = each.get("type") if isinstance(each, dict) else None
        if isinstance(kind, str) and kind != "function":
            raise InvalidRequestError(
                "gateway.unsupported-tool",
                f"tools.{at}: tools of type {kind[:40]!r} are not supported; use functions",
                f"tools.{at}",
            )


def read_tool_choice(choice: Any, tools: Sequence[Mapping[str, Any]]) -> bool:
    """Return False if calls are not wanted.

    A certain call, or any call, can be asked for, but nothing makes the policy do it.

    Raises:
        InvalidRequestError: if it names an unknown tool.
        UnsupportedParameterError: if it has another form.
    """
    if choice in (None, "auto", "required", "none"):
        return bool(choice != "none")
    if not isinstance(choice, dict) or choice.get("type") != "function":
        raise _unsupported("tool_choice", "tool_choice must be auto, none, required, or name a function")
    named = choice.get("function", choice)
    name = named.get("name") if isinstance(named, dict) else None
    if name not in [each["function"]["name"] for each in tools]:
        raise InvalidRequestError(
            "gateway.invalid-request", "tool_choice names a function that is not in tools", "tool_choice"
        )
    return True


def check_top_logprobs(number: int | None) -> None:
    """Check that no log-probabilities of other tokens are asked for.

    Raises:
        UnsupportedParameterError: if they are.
    """
    if number is not None and number > 1:
        raise _unsupported("top_logprobs", "only the log-probabilities of sampled tokens are known: use 0 or 1")


def read_text(content: Content, where: str) -> str:
    """Return the text of a message's content.

    Raises:
        InvalidRequestError: if it has parts that are not text.
    """
    if content is None or isinstance(content, str):
        return content or ""
    for at, part in enumerate(content):
        if part.type not in _TEXT_PARTS:
            place = f"{where}.content.{at}"
            raise InvalidRequestError(
                "gateway.unsupported-content", f"{place}: parts of type {part.type[:40]!r} are not text", place
            )
    return "\n".join(part.text or part.refusal or "" for part in content)


def check_arguments(texts: Iterable[str]) -> None:
    """Check that the arguments of all calls, which are JSON in JSON, have few enough lists and objects.

    Raises:
        InvalidRequestError: if they have more than the body may have.
    """
    if sum(text.count("{") + text.count("[") for text in texts) > MAX_CONTAINERS:
        raise InvalidRequestError("gateway.invalid-request", "the arguments of calls are too large: too many parts")


def read_arguments(text: str, where: str) -> dict[str, Any]:
    """Return the arguments of a call.

    Raises:
        InvalidRequestError: if they are not a JSON object.
    """
    try:
        found = load_json(text or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidRequestError(
            "gateway.invalid-request", f"{where}: the arguments of a call must be a JSON object", where
        )
    return found


def write_arguments(arguments: Mapping[str, Any]) -> str:
    """Return the arguments of a call as JSON."""
    return json.dumps(arguments, ensure_ascii=False)


def write_logprobs(message: SampledMessage, *, has_top: bool) -> list[dict[str, Any]]:
    """Return the sampled tokens with their log-probabilities. With `has_top`, each is also its only alternative."""
    found = list[dict[str, Any]]()
    for text, value in zip(message.tokens, message.logprobs, strict=True):
        token = {"token": text, "logprob": value, "bytes": list(text.encode())}
        found.append({**token, "top_logprobs": [token] if has_top else []})
    return found


def _check_schema(schema: dict[str, Any]) -> None:
    if len(orjson.dumps(schema)) > MAX_SCHEMA_BYTES:
        raise _bad_schema(f"it has more than {MAX_SCHEMA_BYTES:,} bytes")
    stack: list[Any] = [schema]
    while stack:
        each = stack.pop()
        if isinstance(each, list):
            stack += each
        elif isinstance(each, dict):
            stack += each.values()
            for name in each.keys() & _COUNTS:
                if isinstance(each[name], int | float) and each[name] > MAX_SCHEMA_COUNT:
                    raise _bad_schema(f"{name} is more than {MAX_SCHEMA_COUNT:,}")
            pattern = each.get("pattern")
            counts = _REPETITION.findall(pattern) if isinstance(pattern, str) else []
            if any(int(number) > MAX_SCHEMA_COUNT for pair in counts for number in pair if number):
                raise _bad_schema(f"a pattern repeats something more than {MAX_SCHEMA_COUNT:,} times")


def _bad_schema(why: str) -> InvalidRequestError:
    return InvalidRequestError("gateway.schema-too-large", f"the JSON schema of the answer is too large: {why}")


def _unsupported(name: str, message: str) -> UnsupportedParameterError:
    return UnsupportedParameterError("gateway.unsupported-parameter", message, name)
