"""Fields that OpenAI's APIs have in common: content, tools, and the schema of the answer."""

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gumshoe.gateway.gateway_errors import InvalidRequestError, UnsupportedParameterError
from gumshoe.json_text import load_json

MAX_BODY = 16 * 1024 * 1024
"""Maximum number of bytes of a request."""
MAX_AT_ONCE = 16
"""Maximum number of requests of one episode at once."""
MAX_MESSAGES, MAX_TOOLS, MAX_SAMPLES = 2_000, 128, 16
ToolName = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
_TEXT_PARTS = ("text", "input_text", "output_text", "refusal")


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


class JsonSchema(ApiModel):
    """Schema of the answer, as `response_format` or `text.format`."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: dict[str, Any] | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")

    def read(self) -> dict[str, Any] | None:
        """Return the schema, or None if any text is allowed."""
        if self.type == "text":
            return None
        nested = (self.json_schema or {}).get("schema")
        return self.schema_ or (nested if isinstance(nested, dict) else None) or {"type": "object"}


def read_text(content: Content, where: str) -> str:
    """Return the text of a message's content.

    Raises:
        InvalidRequestError: if it has parts that are not text.
    """
    if content is None or isinstance(content, str):
        return content or ""
    for at, part in enumerate(content):
        if part.type not in _TEXT_PARTS:
            raise InvalidRequestError(
                "gateway.unsupported-content", f"{where}.content.{at}: parts of type {part.type[:40]!r} are not text"
            )
    return "\n".join(part.text or part.refusal or "" for part in content)


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
        raise InvalidRequestError("gateway.invalid-request", f"{where}: the arguments of a call must be a JSON object")
    return found


def write_arguments(arguments: dict[str, Any]) -> str:
    """Return the arguments of a call as JSON."""
    return json.dumps(arguments, ensure_ascii=False)


def refuse_parameters(body: dict[str, Any], names: tuple[str, ...]) -> None:
    """Refuse parameters that would change the meaning of a request.

    Raises:
        UnsupportedParameterError: if one is set.
    """
    for name in names:
        if body.get(name):
            raise UnsupportedParameterError("gateway.unsupported-parameter", f"the parameter {name} is not supported")
