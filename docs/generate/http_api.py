"""Pages of the agent server's HTTP API and of its MCP tools."""

import asyncio
import json
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from docs.generate.json_schema import Json, describe_properties, describe_type
from docs.generate.markdown import code, page, prose, sentence, table

from gumshoe.environments.documents import DocumentsEnvironment
from gumshoe.environments.email import EmailEnvironment
from gumshoe.environments.registry import EnvFactory
from gumshoe.serving.access_settings import AccessSettings
from gumshoe.serving.app import create_app
from gumshoe.serving.mcp_server import create_mcp_server
from gumshoe.serving.service import AnswerService
from gumshoe.serving.settings import ServeSettings

_SETTINGS = ServeSettings(index="index", access=AccessSettings(keys=Path("keys.yaml")))


def render_http_api() -> str:
    """Return the page of the HTTP API."""
    nothing = cast(Any, None)  # routes use service and recorder only when they are called
    found = create_app(_SETTINGS, nothing, nothing).openapi()
    operations = [(path, method, each) for path, methods in found["paths"].items() for method, each in methods.items()]
    shared = set.intersection(*({*_codes_of(each)} for _, _, each in operations))
    problems = {each["status"]: each["title"] for code, each in _codes_of(operations[0][2]).items() if code in shared}
    schemas = found["components"]["schemas"]
    return page(
        "HTTP API",
        "The agent server describes its API at `/openapi.json`, in the form of OpenAPI 3.1. Requests and answers are "
        "JSON in UTF-8 (`Content-Type: application/json`). With access control, send `Authorization: Bearer KEY`. "
        "`/healthz`, `/readyz` and `/metrics` need no key.",
        "Besides these routes, the server has [MCP tools](mcp.md) at `/mcp`, this description with forms to try it at "
        "`/docs`, and a web page to ask questions at `/`. `/docs` and the page need no key to be opened.",
        "## Errors",
        "An error is a [Problem](#problem) (RFC 9457, `application/problem+json`). Any route may answer with one of "
        "these; the codes are in [Error codes](errors.md).",
        table(("status", "title"), ((str(status), prose(title)) for status, title in problems.items())),
        _fence(_build_example(schemas["Problem"])),
        (line for path, method, each in operations for line in _render_operation(path, method, each, shared, schemas)),
        "## Objects",
        (line for name, schema in sorted(schemas.items()) for line in _render_object(name, schema, schemas)),
    )


def _codes_of(operation: Json) -> Json:
    """Return an example of each problem of an operation by its code."""
    responses = (each for status, each in operation["responses"].items() if status >= "400")
    contents = (content for each in responses for content in each["content"].values())
    return {code: example["value"] for each in contents for code, example in each["examples"].items()}


def _build_example(schema: Json) -> Json:
    """Return an example of an object, from the examples of its fields."""
    return {name: field["examples"][0] for name, field in schema["properties"].items()}


def _fence(example: object, language: str = "json") -> str:
    text = example if isinstance(example, str) else json.dumps(example, ensure_ascii=False)
    return f"```{language}\n{text.strip()}\n```"


def _render_operation(path: str, method: str, operation: Json, shared: Container[str], schemas: Json) -> Iterator[str]:
    yield from [f"## {method.upper()} {path}", "", *_paragraphs(operation.get("description", ""))]
    if body := operation.get("requestBody"):
        (content,) = body["content"].values()
        yield from [f"Body: {_describe_content(body)}.", ""]
        for example in list(content.get("examples", {}).values())[:1]:
            yield from [_fence(example["value"]), ""]
    yield from _render_answer(operation, schemas)
    succeeded = [
        (status, sentence(each["description"]), _describe_content(each))
        for status, each in operation["responses"].items()
        if status < "400"
    ]
    failed: dict[int, list[tuple[str, str]]] = {}
    for name, problem in _codes_of(operation).items():
        if name not in shared:
            failed.setdefault(problem["status"], []).append((name, problem["title"]))
    yield from table(
        ("status", "meaning", "content or error codes"),
        [*succeeded, *(_describe_failure(status, own) for status, own in sorted(failed.items()))],
    )


def _render_answer(operation: Json, schemas: Json) -> Iterator[str]:
    """Yield an example of a successful answer, if it is JSON or a stream of events."""
    content = next(each["content"] for status, each in operation["responses"].items() if status < "400")
    if "text/event-stream" in content:
        yield from ["An event:", "", _fence(content["text/event-stream"]["example"], "text"), ""]
    elif "application/json" in content:
        name = content["application/json"]["schema"]["$ref"].rpartition("/")[2]
        yield from ["Answer:", "", _fence(_build_example(schemas[name])), ""]


def _describe_failure(status: int, problems: Sequence[tuple[str, str]]) -> tuple[str, str, str]:
    """Return a line of the table of responses for problems, each with code and title."""
    titles = dict.fromkeys(title for _, title in problems)
    links = [f"[{code(name)}](errors.md#{name.replace('.', '').lower()})" for name, _ in problems]
    return str(status), sentence(" / ".join(titles)), ", ".join(links)


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
    index = SimpleNamespace(has_vectors=True)
    service = SimpleNamespace(
        env_factory=EnvFactory(name, kind, index, {}), settings=_SETTINGS
    )  # enough for a description
    tools = asyncio.run(create_mcp_server(cast(AnswerService, service)).list_tools())
    yield from [f"## With an index of {name}", ""]
    for tool in tools:
        yield from [f"### {tool.name} ({name})", "", sentence(tool.description or ""), ""]
        yield from describe_properties(tool.input_schema)
        if tool.output_schema:  # other than text alone
            yield from ["Result:", *describe_properties(tool.output_schema, are_inputs=False, with_links=False)]
