"""Keys, limits and the ends of requests, with agents that are clumsy or hostile."""

import asyncio
import gc
import json
import logging
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import httpx
import openai
import pytest
import uvloop

from gumshoe.gateway.gateway_errors import ContextFullError, EpisodeFailedError
from tests.gateway.served_episodes import QUESTION, TEXT, Served, StandIn, serve
from tests.waiting import async_wait_until

CHAT: dict[str, Any] = {"model": "any", "messages": QUESTION}
LOOPS = pytest.mark.parametrize("loop", [None, uvloop.new_event_loop], ids=["asyncio", "uvloop"])


def find_code(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def test_only_the_key_of_a_running_episode_opens_it() -> None:
    async def test(served: Served) -> None:
        one, other = StandIn(), StandIn()
        url = f"{served.gateway.base_url}/chat/completions"
        with served.gateway.admit(one), served.gateway.admit(other):
            wrong: list[Any] = [
                {},
                {"authorization": "Bearer x"},
                {"authorization": one.key},
                {"authorization": f"Basic {one.key}"},
                {"x-api-key": one.key},
                [("authorization", f"Bearer {one.key}"), ("authorization", f"Bearer {other.key}")],
            ]
            for head in wrong:
                for path in (url, f"{served.gateway.base_url}/models", served.gateway.mcp_url):
                    refused = await served.http.post(path, json=CHAT, headers=head)
                    assert find_code(refused) == (401, "invalid_api_key")
                    assert (refused.headers["x-should-retry"], refused.headers["www-authenticate"]) == (
                        "false",
                        "Bearer",
                    )
            for query in (f"?api_key={one.key}", "?token=x", f"?x={one.key}"):
                in_url = await served.http.post(url + query, json=CHAT, headers=one.head)
                assert find_code(in_url) == (400, "gateway.key-in-url")
            assert (await served.http.post(f"{url}?api_key={one.key}", json=CHAT)).status_code == 400
            assert (one.begun, other.begun) == (0, 0)
            assert (await served.post(one, CHAT)).status_code == 200
            assert (await served.post(other, CHAT)).status_code == 200
        assert find_code(await served.post(one, CHAT)) == (401, "invalid_api_key")
        assert (one.begun, other.begun) == (1, 1)

    serve(test)


def test_models_are_listed_under_any_name() -> None:
    async def test(served: Served) -> None:
        episode = StandIn()
        with served.gateway.admit(episode):
            async with served.client(episode) as client:
                assert [each.id async for each in client.models.list()] == ["policy"]
                assert (await client.models.retrieve("acme/model-1")).id == "acme/model-1"
            base = served.gateway.base_url
            unknown = await served.http.get(f"{base}/files", headers=episode.head)
            assert find_code(unknown) == (404, "gateway.unknown-route")
            assert find_code(await served.http.get(served.gateway.mcp_url, headers=episode.head))[0] == 404
            wrong = await served.http.get(f"{base}/chat/completions", headers=episode.head)
            assert find_code(wrong) == (405, "gateway.wrong-method")
            assert wrong.headers["allow"] == "POST"

    serve(test)


@LOOPS
def test_requests_end_with_their_episode(loop: Any) -> None:
    async def test(served: Served) -> None:
        episode = StandIn()
        episode.released.clear()
        async with served.client(episode) as client:
            create: Any = client.chat.completions.create
            with served.gateway.admit(episode):
                whole = asyncio.create_task(create(**CHAT))
                quick = asyncio.create_task(create(**CHAT, stream=True))
                await async_wait_until(lambda: episode.begun == 2)
            for task in (whole, quick):
                with pytest.raises(openai.AuthenticationError):
                    await task
        assert (episode.cancelled, episode.done) == (2, 0)

    serve(test, loop=loop)


@pytest.mark.parametrize("path", ["/chat/completions", "/responses"])
def test_a_slow_stream_has_comments_and_says_how_it_fails(path: str) -> None:
    async def test(served: Served) -> None:
        episode = StandIn()
        episode.released.clear()
        body = {"messages": QUESTION, "input": "Hello", "stream": True}
        async with served.client(episode) as client:
            with served.gateway.admit(episode):
                url = f"{served.gateway.base_url}{path}"
                async with served.http.stream("POST", url, json=body, headers=episode.head) as stream:
                    lines = stream.aiter_lines()
                    assert [await anext(lines) for _ in range(4)] == [": waiting", "", ": waiting", ""]
                    sdk: Any = (
                        await client.responses.create(model="any", input="Hello", stream=True)
                        if path == "/responses"
                        else await client.chat.completions.create(**CHAT, stream=True)
                    )
                    await async_wait_until(lambda: episode.begun == 2)
                    with served.gateway.admit(other := StandIn()):
                        assert (await served.post(other, CHAT)).status_code == 200
                    episode.released.set()
                    text = "\n".join([line async for line in lines])
                    assert TEXT.text in text
                    async for _ in sdk:
                        pass
                episode.released.clear()
                failing: Any = (
                    await client.responses.create(model="any", input="Hello", stream=True)
                    if path == "/responses"
                    else await client.chat.completions.create(**CHAT, stream=True)
                )
            with pytest.raises(openai.APIError) as raised:  # the episode is over
                async for _ in failing:
                    pass
            assert raised.value.code == "invalid_api_key"

    serve(test, keep_alive=0.01)


@LOOPS
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a_client_that_leaves_cancels_its_request(streamed: bool, loop: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def test(served: Served) -> None:
        episode = StandIn()
        episode.released.clear()
        with served.gateway.admit(episode):
            async with served.client(episode) as client:
                create: Any = client.chat.completions.create
                asked = asyncio.create_task(create(**CHAT, stream=streamed))
                await async_wait_until(lambda: episode.begun == 1)
                if streamed:
                    await (await asked).close()
                else:
                    asked.cancel()
                await async_wait_until(lambda: episode.cancelled == 1)
            episode.released.set()
            assert (await served.post(episode, CHAT)).status_code == 200
        assert (episode.begun, episode.done) == (2, 1)

    with caplog.at_level(logging.INFO):
        serve(test, loop=loop, keep_alive=0.01)
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


def test_a_flood_of_one_episode_leaves_room_for_others() -> None:
    async def test(served: Served) -> None:
        flood, other = StandIn(), StandIn()
        flood.released.clear()
        with served.gateway.admit(flood), served.gateway.admit(other):
            asked = [asyncio.create_task(served.post(flood, CHAT)) for _ in range(12)]
            await async_wait_until(lambda: sum(each.done() for each in asked) == 9)
            refused = [each.result() for each in asked if each.done()]
            assert {find_code(each) for each in refused} == {(429, "rate_limit_exceeded")}
            assert {(each.headers["retry-after"], each.headers["x-should-retry"]) for each in refused} == {
                ("1", "true")
            }
            assert (await served.post(other, CHAT)).status_code == 200
            flood.released.set()
            assert {each.status_code for each in await asyncio.gather(*asked)} == {200, 429}
            assert (await served.post(flood, CHAT)).status_code == 200
        assert flood.done == 4

    serve(test, episode_requests=3)


def test_all_episodes_share_a_limit_that_clients_wait_for() -> None:
    async def test(served: Served) -> None:
        episodes = [StandIn() for _ in range(3)]
        late = StandIn()
        with ExitStack() as stack:
            for each in (*episodes, late):
                each.released.clear()
                stack.enter_context(served.gateway.admit(each))
            asked = [asyncio.create_task(served.post(each, CHAT)) for each in episodes]
            await async_wait_until(lambda: sum(each.begun for each in episodes) == 3)
            assert find_code(await served.post(late, CHAT)) == (429, "rate_limit_exceeded")
            late.released.set()
            async with served.client(late) as client:
                waiting = asyncio.create_task(client.chat.completions.create(**CHAT))
                for each in episodes:
                    each.released.set()
                await asyncio.gather(*asked)
                assert (await waiting).choices[0].message.content == TEXT.text

    serve(test, requests=3)


@pytest.mark.parametrize(
    ("error", "status", "code", "kind"),
    [
        (EpisodeFailedError("gateway.episode-failed", "x"), 503, "gateway.episode-failed", openai.InternalServerError),
        (ContextFullError("gateway.context-full", "x"), 400, "context_length_exceeded", openai.BadRequestError),
        (RuntimeError("secret of the agent"), 500, "gateway.internal-error", openai.InternalServerError),
    ],
)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_errors_of_the_episode_are_told_once(
    error: Exception, status: int, code: str, kind: Any, streamed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(served: Served) -> None:
        episode = StandIn(error)
        with served.gateway.admit(episode):
            async with served.client(episode) as client:
                with pytest.raises(kind) as raised:
                    await client.chat.completions.create(**CHAT, stream=streamed)
        assert (raised.value.status_code, raised.value.code) == (status, code)
        assert "secret" not in str(raised.value)
        assert episode.begun == 1  # the client did not try again

    with caplog.at_level(logging.INFO):
        serve(test)
    assert "secret" not in caplog.text
    assert ("RuntimeError" in caplog.text) == (status == 500)


def test_a_body_has_limits_of_size_and_time() -> None:
    async def test(served: Served) -> None:
        episode = StandIn()
        large = b" " * 10_001
        with served.gateway.admit(episode):
            assert find_code(await served.post(episode, large)) == (413, "gateway.body-too-large")

            async def chunks() -> Any:
                for _ in range(20):
                    yield b" " * 1_000

            url = f"{served.gateway.base_url}/chat/completions"
            found = await served.http.post(url, headers=episode.head, content=chunks())
            assert find_code(found) == (413, "gateway.body-too-large")

            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {episode.key}\r\n"
            writer.write(f"{head}content-length: 100\r\n\r\n{{".encode())
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert b"gateway.request-too-slow" in answer
            writer.close()
            assert (await served.post(episode, CHAT)).status_code == 200
        assert episode.begun == 1

    serve(test, body_bytes=10_000, body_seconds=0.2)


def test_a_body_that_is_not_complete_ends_with_the_episode() -> None:
    async def test(served: Served) -> None:
        episode = StandIn()
        with served.gateway.admit(episode):
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {episode.key}\r\n"
            writer.write(f"{head}content-length: 100\r\n\r\n{{".encode())
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(1), 0.05)
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 401 ")
        writer.close()

    serve(test)


def test_mcp_requests_have_their_episode_and_a_limit_of_their_own() -> None:
    class Tools:
        """An MCP server that waits."""

        def __init__(self) -> None:
            self.episodes = list[Any]()
            self.released = asyncio.Event()

        @asynccontextmanager
        async def run(self) -> AsyncIterator[None]:
            yield

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG002
            self.episodes.append(scope["state"]["episode"])
            await self.released.wait()
            await send({"type": "http.response.start", "status": 202, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})

    tools = Tools()

    async def test(served: Served) -> None:
        episode = StandIn()
        with served.gateway.admit(episode):
            url = served.gateway.mcp_url
            asked = [asyncio.create_task(served.http.post(url, headers=episode.head)) for _ in range(3)]
            await async_wait_until(lambda: len(tools.episodes) == 2)
            assert find_code(await asked[2]) == (429, "rate_limit_exceeded")
            assert (await served.post(episode, CHAT)).status_code == 200
            tools.released.set()
            assert (await asked[0]).status_code == 202
            tools.released.clear()
            last = asyncio.create_task(served.http.post(f"{url}/", headers=episode.head))
            await async_wait_until(lambda: len(tools.episodes) == 3)
        assert find_code(await last) == (401, "invalid_api_key")
        assert tools.episodes == [episode] * 3

    serve(test, tools, episode_tool_requests=2, episode_requests=1)


def test_no_text_of_an_agent_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def test(served: Served) -> None:
        episode = StandIn()
        with served.gateway.admit(episode):
            for body in ({"messages": [{"role": "secret", "content": "secret"}]}, {**CHAT, "n": "secret"}):
                assert (await served.post(episode, body)).status_code == 400
            await served.http.get(f"{served.gateway.base_url}/secret", headers=episode.head)

    with caplog.at_level(logging.DEBUG, "gumshoe"), caplog.at_level(logging.DEBUG, "uvicorn"):
        serve(test)
    shown = [json.dumps(each.getMessage()) for each in caplog.records if not each.name.startswith("http")]
    assert "secret" not in "\n".join(shown)


def test_objects_that_exist_before_are_left_out_of_collections() -> None:
    """A full collection of a model's objects would delay all episodes."""

    async def test(_: Served) -> int:
        return gc.get_freeze_count()

    assert serve(test) > 1_000
    assert gc.get_freeze_count() == 0
