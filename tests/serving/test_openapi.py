"""Test the OpenAPI description: it is complete, and the server answers every request that it allows as described."""

import importlib.metadata
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.serving.agent_server import AgentProcess, ServerFiles

PROTECTED = {"/invoke", "/invoke/stream", "/source", "/feedback", "/principal"}
PUBLIC = {"/healthz", "/readyz", "/metrics"}


def describe_api(place: ServerFiles, access: dict[str, Any]) -> dict[str, Any]:
    """Return the OpenAPI description of a server. It depends on the settings alone."""
    from gumshoe.serving.app import create_app
    from tests.serving.in_process import make_settings

    return create_app(make_settings(place, access=access), cast(Any, None), cast(Any, None)).openapi()


@pytest.fixture
def api(place: ServerFiles) -> dict[str, Any]:
    """Return the OpenAPI description of a server that requires keys."""
    return describe_api(place, {"keys": "keys.yaml"})


def operations_of(api: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in api["paths"].items():
        for method, operation in methods.items():
            yield f"{method} {path}", operation


def find_schemas(node: Any, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each field of an object, and each schema of a body or a response, with its place."""
    if isinstance(node, list):
        for number, each in enumerate(node):
            yield from find_schemas(each, f"{where}/{number}")
    elif isinstance(node, dict):
        if node.get("type") == "object":
            for name, field in node.get("properties", {}).items():
                yield f"{where}/{name}", field
        for name, each in node.items():
            if name not in ("examples", "example", "value"):
                yield from find_schemas(each, f"{where}/{name}")


def test_every_field_has_a_title_a_description_and_an_example(api: dict[str, Any]) -> None:
    fields = dict(find_schemas(api, ""))
    assert len(fields) > 50
    lacking = {
        place: missing
        for place, field in fields.items()
        if (missing := [key for key in ("title", "description", "examples") if not field.get(key)])
    }
    assert lacking == {}
    schemas = api["components"]["schemas"]
    assert {name for name, each in schemas.items() if not each.get("title") or not each.get("description")} == set()


def test_every_operation_and_response_is_described(api: dict[str, Any]) -> None:
    operations = dict(operations_of(api))
    assert {place.split()[1] for place in operations} == PROTECTED | PUBLIC
    for place, operation in operations.items():
        for key in ("operationId", "summary", "description", "tags"):
            assert operation[key], (place, key)
        if "requestBody" in operation:
            assert operation["requestBody"]["content"]["application/json"]["schema"], place
        for status, response in operation["responses"].items():
            assert response["description"] not in ("", "Successful Response"), (place, status)
            assert response["content"], (place, status)
    names = [each["operationId"] for each in operations.values()]
    assert len(set(names)) == len(names)
    assert all(each.isidentifier() for each in names)
    assert {tag for each in operations.values() for tag in each["tags"]} == {each["name"] for each in api["tags"]}
    assert all(each["description"] for each in api["tags"])
    assert api["info"]["version"] == importlib.metadata.version("gumshoe-agents")


def test_every_problem_is_described_with_an_example(api: dict[str, Any]) -> None:
    from gumshoe.serving.errors import PROBLEM_KINDS

    described: dict[str, set[int]] = {}
    for place, operation in operations_of(api):
        for status, response in operation["responses"].items():
            if int(status) < 400:
                continue
            (kind, content), *others = response["content"].items()
            assert (kind, others) == ("application/problem+json", []), (place, status)
            assert content["schema"] == {"$ref": "#/components/schemas/Problem"}
            assert ("Retry-After" in response.get("headers", {})) == (status in ("429", "503")), (place, status)
            for code, example in content["examples"].items():
                problem = example["value"]
                assert set(problem) == {"type", "title", "status", "detail", "code", "request_id"}
                assert (problem["code"], problem["status"]) == (code, int(status))
                described.setdefault(code, set()).add(int(status))
    assert set(described) == set(PROBLEM_KINDS)
    assert {401, 403, 404, 405, 408, 413, 421, 422, 429, 503, 504} <= set().union(*described.values())


def test_only_protected_operations_need_credentials(api: dict[str, Any], place: ServerFiles) -> None:
    (scheme,) = api["components"]["securitySchemes"].items()
    assert (scheme[1]["type"], scheme[1]["scheme"]) == ("http", "bearer")
    secured = {place.split()[1] for place, each in operations_of(api) if each.get("security") == [{scheme[0]: []}]}
    assert secured == PROTECTED
    opened = describe_api(place, {"open": True})
    assert "securitySchemes" not in opened["components"]
    assert not any("security" in each for _, each in operations_of(opened))


def test_the_documentation_is_served_by_the_server_itself(server: AgentProcess) -> None:
    page = server.client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert "//" not in page.text.replace("<!doctype html>", "")
    for path in ("/docs/docs.js", "/docs/swagger-ui.js", "/docs/swagger-ui.css", "/openapi.json"):
        assert server.client.get(path).status_code == 200, path


@pytest.mark.parametrize(
    "examples", [pytest.param(10, marks=pytest.mark.ci), pytest.param(100, marks=pytest.mark.nightly)]
)
def test_responses_conform_to_the_openapi_description(examples: int, server: AgentProcess, tmp_path: Path) -> None:
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    ran = subprocess.run(
        [
            sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json", "--checks", checks,
            "--phases", "examples,coverage,fuzzing", "--max-examples", str(examples), "--seed", "1", "--workers", "2",
            "--generation-database", "none", "--suppress-health-check", "all", "--no-color",
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,  # it writes files there
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
