"""Pages of the agent server's HTTP API and of its MCP tools."""

import asyncio
import json
from collections.abc import Container, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from docs.generate.json_schema import Json, describe_properties, describe_type
from docs.generate.markdown import code, page, prose, sentence, table

from gumshoe.environments.documents import DocumentsEnvironment
from gumshoe.environments.email import EmailEnvironment
from gumshoe.environments.registry import EnvFactory
from gumshoe.serving.app import create_app
from gumshoe.serving.mcp_server import create_mcp_server
from gumshoe.serving.service import AnswerService
from gumshoe.serving.settings import AccessSettings, ServeSettings

_SETTINGS = ServeSettings(index="index", access=AccessSettings(keys=Path("keys.yaml")))


def render_http_api() -> str:
    """Return the page of the HTTP API."""
    nothing = cast(Any, None)  # routes use service and recorder only when they are called
    found = create_app(_SETTINGS, nothing, nothing).openapi()
    operations = [(path, method, each) for path, methods in found["paths"].items() for method, each in methods.items()]
    shared = set.intersection(*({*each["responses"]} for _, _, each in operations))
    problems = {status: each for status, each in operations[0][2]["responses"].items() if status in shared}
    return page(
        "HTTP API",
        "The agent server describes its API at `/openapi.json`, in the form of OpenAPI 3.1. Requests and answers are "
        "JSON in UTF-8. With access control, send `Authorization: Bearer KEY`. `/healthz`, `/readyz` and `/metrics` "
        "need no key.",
        "## Errors",
        "An error is a [Problem](#problem) (RFC 9457, `application/problem+json`). Any route may answer with one of "
        "these; the codes are in [Error codes](errors.md).",
        table(("status", "title"), ((status, prose(each["description"])) for status, each in problems.items())),
        (line for path, method, each in operations for line in _render_operation(path, method, each, shared)),
        "## Objects",
        (
            line
            for name, schema in sorted(found["components"]["schemas"].items())
            for line in _render_object(name, schema, found["components"]["schemas"])
        ),
    )


def _render_operation(path: str, method: str, operation: Json, shared: Container[str]) -> Iterator[str]:
    yield from [f"## {method.upper()} {path}", "", *_paragraphs(operation.get("description", ""))]
    if body := operation.get("requestBody"):
        (content,) = body["content"].values()
        yield from [f"Body: {_describe_content(body)}.", ""]
        for example in list(content.get("examples", {}).values())[:1]:
            yield from ["```json", json.dumps(example["value"]), "```", ""]
    own = sorted((status, each) for status, each in operation["responses"].items() if status not in shared)
    yield from table(("status", "meaning", "content or error codes"), (_describe_response(*each) for each in own))


def _describe_response(status: str, response: Json) -> tuple[str, str, str]:
    content: Json = next(iter(response.get("content", {}).values()), {})
    codes = content.get("examples", {}) if status >= "400" else {}
    links = [f"[{code(each)}](errors.md#{each.replace('.', '').lower()})" for each in codes]
    return status, sentence(response["description"]), ", ".join(links) or _describe_content(response)


def _describe_content(found: Json) -> str:
    for kind, content in found.get("content", {}).items():
        if "$ref" in content.get("schema", {}):
            return _link(content["schema"]["$ref"])
        return code(kind)
    return ""


def _link(reference: str) -> str:
    name = reference.rpartition("/")[2]
    return f"[{name}](#{name.lower()})"


def _render_object(name: str, schema: Json, definitions: Json) -> Iterator[str]:
    yield from [f"### {name}", "", *_paragraphs(schema.get("description", ""))]
    if "properties" in schema:
        yield from describe_properties({**schema, "$defs": definitions})
    else:
        yield from [f"Either {describe_type(schema, definitions, with_links=True)}.", ""]


def _paragraphs(text: str) -> Iterator[str]:
    for each in text.split("\n\n") if text else ():
        yield from [prose(each), ""]


def render_mcp() -> str:
    """Return the page of the MCP tools."""
    kinds = {"mail": EmailEnvironment, "documents": DocumentsEnvironment}
    return page(
        "MCP tools",
        "The agent server offers these tools to MCP clients at `/mcp` (streamable HTTP, stateless). With access "
        "control, the client sends the header `Authorization: Bearer KEY`; a tool reads only the inboxes of that key.",
        "Configuration of a client that reads a file of servers:",
        '```json\n{"mcpServers": {"gumshoe": {"url": "http://127.0.0.1:8000/mcp", "headers": {"Authorization": '
        '"Bearer KEY"}}}}\n```',
        (line for name, kind in kinds.items() for line in _render_tools(name, kind)),
    )


def _render_tools(name: str, kind: Any) -> Iterator[str]:
    service = SimpleNamespace(
        env_factory=EnvFactory(name, kind, None, {}), settings=_SETTINGS
    )  # enough for a description
    tools = asyncio.run(create_mcp_server(cast(AnswerService, service)).list_tools())
    yield from [f"## With an index of {name}", ""]
    for tool in tools:
        yield from [f"### {tool.name} ({name})", "", sentence(tool.description or ""), ""]
        yield from describe_properties(tool.input_schema)
        result = tool.output_schema or {}
        if {*result.get("properties", {})} - {"result"}:  # other than text alone
            yield from ["Result:", *describe_properties(result, are_inputs=False, with_links=False)]
