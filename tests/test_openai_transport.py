"""OpenAI's client over aiohttp: its errors and answers are those that it has with httpx."""

import asyncio
import gzip
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from openai import APIConnectionError, APIError, APITimeoutError, AsyncOpenAI, RateLimitError

from gumshoe.endpoint import openai_client
from tests.conftest import find_free_port

_ANSWER = json.dumps({"object": "list", "data": [{"id": "model-1", "object": "model", "created": 1, "owned_by": "me"}]})
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter, bytes], Awaitable[None]]


def reply(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", "Content-Type: application/json", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


@asynccontextmanager
async def serve(handle: Handler) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Serve requests without a body, and yield the address and what each connection began with."""
    heads: list[bytes] = []

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                heads.append(await reader.readuntil(b"\r\n\r\n"))
                await handle(reader, writer, heads[-1])
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(run, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", heads


async def list_models(client: AsyncOpenAI) -> list[str]:
    return [each.id for each in (await client.models.list()).data]


def check(handle: Handler, use: Callable[[str, list[bytes]], Awaitable[None]]) -> None:
    async def run() -> None:
        async with serve(handle) as (url, heads):
            await use(url, heads)

    asyncio.run(run())


def test_credentials_in_an_address_are_sent_as_httpx_sends_them() -> None:
    async def handle(_: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:  # noqa: ARG001
        writer.write(reply(_ANSWER.encode()))

    async def use(url: str, heads: list[bytes]) -> None:
        named = url.replace("http://", "http://ann:p%40ss@")
        for client in (openai_client(named), AsyncOpenAI(base_url=named, api_key="none")):
            async with client:
                assert await list_models(client) == ["model-1"]
        ours, theirs = (
            [line for line in head.lower().split(b"\r\n") if line.startswith((b"authorization", b"get", b"host"))]
            for head in heads
        )
        assert ours == theirs
        assert any(line.startswith(b"authorization: basic") for line in ours)

    check(handle, use)


def test_answers_arrive_on_one_connection_and_are_decompressed() -> None:
    writers = set[asyncio.StreamWriter]()

    async def handle(_: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        writers.add(writer)
        assert b"authorization: bearer none" in head.lower()
        assert head.lower().count(b"user-agent: ") == head.lower().count(b"accept-encoding: ") == 1
        writer.write(reply(gzip.compress(_ANSWER.encode()), "Content-Encoding: gzip"))

    async def use(url: str, _: list[bytes]) -> None:
        async with openai_client(url, retries=0) as client:
            assert [await list_models(client) for _ in range(3)] == [["model-1"]] * 3
        assert len(writers) == 1

    check(handle, use)


def test_a_redirect_is_followed() -> None:
    async def handle(_: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        moved = reply(b"", "Location: /v2/models", status="307 Temporary Redirect")
        writer.write(moved if b" /v1/" in head else reply(_ANSWER.encode()))

    async def use(url: str, heads: list[bytes]) -> None:
        async with openai_client(url, retries=0) as client:
            assert await list_models(client) == ["model-1"]
        assert len(heads) == 2

    check(handle, use)


async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter, __: bytes) -> None:
    writer.write(reply(b'{"error": {"message": "too busy", "code": "busy"}}', status="429 Too Many Requests"))


async def stay_silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter, __: bytes) -> None:
    await reader.read()


async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter, __: bytes) -> None:
    writer.close()


async def break_off(_: asyncio.StreamReader, writer: asyncio.StreamWriter, __: bytes) -> None:
    writer.write(reply(_ANSWER.encode())[:-5])
    await writer.drain()
    writer.close()


async def reset(_: asyncio.StreamReader, writer: asyncio.StreamWriter, __: bytes) -> None:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    writer.transport.abort()


async def speak_another_protocol(_: asyncio.StreamReader, writer: asyncio.StreamWriter, __: bytes) -> None:
    writer.write(b"220 mail.example.com ready\r\n\r\n")
    writer.close()


@pytest.mark.parametrize(
    ("handle", "kind"),
    [
        (refuse, RateLimitError),
        (stay_silent, APITimeoutError),
        (hang_up, APIConnectionError),
        (break_off, APIConnectionError),
        (reset, APIConnectionError),
        (speak_another_protocol, APIConnectionError),
    ],
)
def test_failures_are_told_apart(handle: Handler, kind: type[Exception]) -> None:
    async def use(url: str, _: list[bytes]) -> None:
        async with openai_client(url, timeout=0.2 if handle is stay_silent else None, retries=0) as client:
            with pytest.raises(APIError) as raised:
                await list_models(client)
        assert type(raised.value) is kind

    check(handle, use)


def test_a_server_that_is_gone_is_not_a_timeout() -> None:
    async def use() -> None:
        async with openai_client(f"http://127.0.0.1:{find_free_port()}/v1", retries=0) as client:
            with pytest.raises(APIConnectionError) as raised:
                await list_models(client)
        assert type(raised.value) is APIConnectionError

    asyncio.run(use())


def test_an_abandoned_request_closes_its_connection() -> None:
    closed = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, _: asyncio.StreamWriter, __: bytes) -> None:
        await reader.read()
        closed.set()

    async def use(url: str, heads: list[bytes]) -> None:
        async with openai_client(url, timeout=None, retries=0) as client:
            asked = asyncio.create_task(list_models(client))
            while not heads:
                await asyncio.sleep(0.01)
            asked.cancel()
            await closed.wait()

    check(handle, use)
