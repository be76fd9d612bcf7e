"""The MCP server of the gateway: the SDK's client over a real socket, and requests of hostile agents."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from gumshoe.environments.email import EmailEnvironment
from gumshoe.environments.tools import Call, Toolbox, ToolError
from gumshoe.gateway.agent_episode import AgentEpisode
from gumshoe.mail.index import MailIndex
from gumshoe.rollouts.chat_format.chat_format import ChatFormat
from gumshoe.rollouts.tool_threads import ToolFailedError
from tests.gateway.asgi_server import serve
from tests.gateway.tool_episodes import (
    ID_OF_ANN,
    ID_OF_BOB,
    SECRET_OF_ANN,
    SECRET_OF_BOB,
    make_two_inboxes,
    open_episode,
)
from tests.scenarios.questions import ANN, BOB, scenario

if TYPE_CHECKING:
    from mcp import Client

METHOD_NOT_FOUND, INTERNAL_ERROR, PARSE_ERROR = -32601, -32603, -32700
VERSIONS = pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
MODES = pytest.mark.parametrize("mode", ["auto", "legacy"])
LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
ACCEPT = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> MailIndex:
    return make_two_inboxes(tmp_path_factory.mktemp("inboxes"))


@asynccontextmanager
async def serve_episodes(*episodes: AgentEpisode) -> AsyncIterator[str]:
    """Serve the tools of episodes: each request gets the episode that its key names."""
    from gumshoe.gateway.episode_mcp import create_episode_mcp

    mcp = create_episode_mcp()
    by_key = {f"Bearer {each.key}".encode(): each for each in episodes}

    async def check_key(scope: Any, receive: Any, send: Any) -> None:
        key = dict(scope["headers"]).get(b"authorization", b"")
        scope.setdefault("state", {})["episode"] = by_key.get(key)
        await mcp(scope, receive, send)

    async with mcp.run(), serve(check_key) as url:
        yield f"{url}/mcp"


@asynccontextmanager
async def connect(url: str, key: str, mode: str = "auto", **headers: str) -> "AsyncIterator[Client]":
    import httpx2
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    given = {"Authorization": f"Bearer {key}", **headers}
    async with (
        httpx2.AsyncClient(headers=given, trust_env=False) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


@contextmanager
def refuses(code: int, text: str = "") -> Iterator[None]:
    """Expect an error of the protocol, which does not have the text SECRET."""
    from mcp import MCPError

    with pytest.raises(MCPError) as raised:
        yield
    assert raised.value.code == code
    assert text in raised.value.message
    assert "SECRET" not in json.dumps(raised.value.error.model_dump())


async def call(client: "Client", tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error
    (block,) = result.content
    return str(getattr(block, "text", ""))


@MODES
def test_each_episode_sees_its_own_inbox_alone(index: MailIndex, chat: ChatFormat, mode: str) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            ann, bob = [await stack.enter_async_context(open_episode(chat, index, each)) for each in (ANN, BOB)]
            url = await stack.enter_async_context(serve_episodes(ann, bob))
            of_ann, of_bob = [await stack.enter_async_context(connect(url, each.key, mode)) for each in (ann, bob)]
            found = await asyncio.gather(
                call(of_ann, "search_inbox", keywords=["price"]),
                call(of_bob, "search_inbox", keywords=["price"]),
                call(of_ann, "read_email", message_id=ID_OF_ANN),
                call(of_bob, "read_email", message_id=ID_OF_BOB),
            )
            foreign = await asyncio.gather(
                call(of_ann, "read_email", message_id=ID_OF_BOB), call(of_bob, "read_email", message_id=ID_OF_ANN)
            )
        assert [ID_OF_ANN in each for each in found[:2]] == [True, False]
        assert [ID_OF_BOB in each for each in found[:2]] == [False, True]
        assert SECRET_OF_ANN in found[2]
        assert SECRET_OF_BOB in found[3]
        assert all(each.startswith("Error: ") for each in foreign)
        assert not any(secret in "".join(foreign) for secret in (SECRET_OF_ANN, SECRET_OF_BOB))
        records = [each.trajectory.record for each in (ann, bob)]
        assert [(each.searches, each.tool_errors) for each in records] == [(1, 1), (1, 1)]
        assert records[0].read == [ID_OF_ANN]

    asyncio.run(main())


@MODES
def test_results_are_those_of_our_own_loop(index: MailIndex, chat: ChatFormat, mode: str) -> None:
    calls = [
        Call("search_inbox", {"keywords": ["gas", "price"]}),
        Call("read_email", {"message_id": ID_OF_ANN}),
        Call("read_email", {"message_id": "nothing"}),
        Call("return_final_answer", {"answer": "4711", "message_ids": [ID_OF_ANN]}),
    ]
    toolbox = EmailEnvironment(index, scenario(1), 10).toolbox

    def run(each: Call) -> str:
        try:
            return toolbox.run(each)
        except ToolError as error:
            return f"Error: {error}"

    async def main() -> list[str]:
        async with (
            open_episode(chat, index) as episode,
            serve_episodes(episode) as url,
            connect(url, episode.key, mode) as client,
        ):
            listed = (await client.list_tools()).tools
            assert [(each.name, each.description, each.input_schema) for each in listed] == [
                (each["name"], each["description"], each["parameters"])
                for each in (schema["function"] for schema in toolbox.schemas())
            ]
            texts = [await call(client, each.name, **each.arguments) for each in calls]
            assert (await episode.end()).record.answer == "4711"
            return texts

    assert asyncio.run(main()) == [run(each) for each in calls]


@MODES
def test_mistakes_are_text_and_recorded(index: MailIndex, chat: ChatFormat, mode: str) -> None:
    async def main() -> None:
        async with (
            open_episode(chat, index) as episode,
            serve_episodes(episode) as url,
            connect(url, episode.key, mode) as client,
        ):
            for tool, arguments in (("dance", {}), ("read_email", {"message_id": 7}), ("read_email", {})):
                assert (await call(client, tool, **arguments)).startswith("Error: ")
            kinds = [each.kind for each in episode.trajectory.mistakes]
            assert kinds == ["unknown tool", "bad arguments", "bad arguments"]

    asyncio.run(main())


@MODES
def test_a_session_id_names_nothing(index: MailIndex, chat: ChatFormat, mode: str) -> None:
    """The key alone decides whose tools a request reaches."""

    async def main() -> None:
        async with AsyncExitStack() as stack:
            ann, bob = [await stack.enter_async_context(open_episode(chat, index, each)) for each in (ANN, BOB)]
            url = await stack.enter_async_context(serve_episodes(ann, bob))
            key = {"Authorization": f"Bearer {ann.key}"}
            version = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}}
            http = await stack.enter_async_context(httpx.AsyncClient(trust_env=False))
            opened = await http.post(
                url,
                headers={**ACCEPT, **key},
                json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": version},
            )
            assert opened.status_code == 200
            session = opened.headers.get("mcp-session-id", ann.key)
            of_bob = await stack.enter_async_context(connect(url, bob.key, mode, **{"mcp-session-id": session}))
            assert SECRET_OF_BOB in await call(of_bob, "read_email", message_id=ID_OF_BOB)
            assert (await call(of_bob, "read_email", message_id=ID_OF_ANN)).startswith("Error: ")
            assert ann.trajectory.record.deeds == []

    asyncio.run(main())


def test_nothing_but_tools_is_offered(index: MailIndex, chat: ChatFormat) -> None:
    async def main() -> None:
        async with (
            open_episode(chat, index) as episode,
            serve_episodes(episode) as url,
            connect(url, episode.key) as client,
        ):
            offered = client.server_capabilities
            assert (offered.resources, offered.prompts, offered.completions) == (None, None, None)
            for listing in (client.list_resources, client.list_prompts):
                with refuses(METHOD_NOT_FOUND):
                    await listing()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("headers", "method", "status"),
    [
        ({}, "POST", 401),
        ({"Authorization": "Bearer other"}, "POST", 401),
        ({"Authorization": "Bearer {key}"}, "POST", 200),
        ({"Authorization": "Bearer {key}"}, "GET", 405),
        ({"Authorization": "Bearer {key}"}, "DELETE", 405),
        ({"Authorization": "Bearer {key}", "Origin": "http://localhost:3000"}, "POST", 200),
        ({"Authorization": "Bearer {key}", "Origin": "https://evil.example"}, "POST", 403),
        ({"Authorization": "Bearer {key}", "Origin": "http://localhost.evil.example"}, "POST", 403),
        ({"Authorization": "Bearer {key}", "Host": "evil.example"}, "POST", 421),
        ({"Authorization": "Bearer {key}", "Host": "localhost.evil.example:80"}, "POST", 421),
    ],
)
@VERSIONS
def test_requests_without_a_key_of_other_pages_or_to_other_names_are_refused(
    index: MailIndex,
    chat: ChatFormat,
    headers: dict[str, str],
    method: str,
    status: int,
    version: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with (
            open_episode(chat, index) as episode,
            serve_episodes(episode) as url,
            httpx.AsyncClient(trust_env=False) as http,
        ):
            sent = {name: value.format(key=episode.key) for name, value in headers.items()}
            meta = {
                "io.modelcontextprotocol/protocolVersion": version,
                "io.modelcontextprotocol/clientInfo": {"name": "a", "version": "1"},
                "io.modelcontextprotocol/clientCapabilities": {},
            }
            modern = {"mcp-protocol-version": version, "mcp-method": "tools/list"}
            answer = await http.request(
                method, url, headers={**ACCEPT, **modern, **sent}, json={**LIST, "params": {"_meta": meta}}
            )
            assert answer.status_code == status, answer.text
            assert not [each for each in caplog.records if "evil" in each.getMessage()]
            if status == 200:
                assert len(answer.json()["result"]["tools"]) == 3

    asyncio.run(main())


@VERSIONS
def test_requests_that_are_too_large_or_no_json_are_refused(index: MailIndex, chat: ChatFormat, version: str) -> None:
    async def main() -> None:
        from gumshoe.gateway.episode_mcp import MAX_BODY

        async with (
            open_episode(chat, index) as episode,
            serve_episodes(episode) as url,
            httpx.AsyncClient(trust_env=False) as http,
        ):
            headers = {**ACCEPT, "Authorization": f"Bearer {episode.key}", "mcp-protocol-version": version}
            large = await http.post(url, headers=headers, content=b" " * (MAX_BODY + 1))
            assert large.status_code == 413
            for body in (
                b"{",
                b"[" * 100_000,
                b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":' + b"[" * 99_999,
            ):
                broken = await http.post(url, headers=headers, content=body)
                assert (broken.status_code, broken.json()["error"]["code"]) == (400, PARSE_ERROR)
            assert episode.trajectory.record.deeds == []

    asyncio.run(main())


@MODES
def test_used_up_calls_are_an_error_and_the_end_and_failures_are_no_result(
    index: MailIndex, chat: ChatFormat, mode: str
) -> None:
    async def main() -> None:
        async with (
            open_episode(chat, index, max_tool_calls=1) as episode,
            serve_episodes(episode) as url,
            connect(url, episode.key, mode) as client,
        ):
            await client.list_tools()
            await call(client, "search_inbox", keywords=["price"])
            refused = await client.call_tool("search_inbox", {"keywords": ["price"]})
            assert refused.is_error
            await episode.end()
            with refuses(INTERNAL_ERROR, "gateway.unknown-key"):
                await client.call_tool("search_inbox", {"keywords": ["price"]})

    asyncio.run(main())


@MODES
@pytest.mark.parametrize("fault", [ToolFailedError("rollouts.tool-timeout", "SECRET"), KeyError("SECRET")])
def test_failures_and_defects_of_a_tool_reveal_nothing(
    index: MailIndex, chat: ChatFormat, mode: str, fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def dance() -> str:
        """Dance."""
        raise fault

    async def main() -> None:
        place = EmailEnvironment(index, scenario(1), 10)
        place.toolbox = Toolbox([dance])
        async with (
            open_episode(chat, index, environment=place) as episode,
            serve_episodes(episode) as url,
            connect(url, episode.key, mode) as client,
        ):
            await client.list_tools()
            with refuses(INTERNAL_ERROR):
                await client.call_tool("dance", {})

    asyncio.run(main())
    assert "SECRET" not in caplog.text
