"""The HTTP client of vLLM servers, at the level of connections. `test_vllm_policy` has its failures."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from gumshoe.inference.server_client import ServerAnswer, ServerClient, ServerRequestError
from tests.waiting import async_wait_until

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """Return the head of a request, and skip its body."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if b"content-length: " in head:
        await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
    return head


@asynccontextmanager
async def open_client(serve: Serve) -> AsyncIterator[ServerClient]:
    """Yield a client of a server in this event loop."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = ServerClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", 60)
    try:
        yield client
    finally:
        await client.aclose()
        server.close()


@pytest.mark.parametrize("closes", [False, True], ids=["kept alive", "closed when idle"])
def test_a_connection_is_used_again_unless_the_server_closed_it(closes: bool) -> None:
    opened = list[asyncio.StreamWriter]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        while True:
            try:
                await read_request(reader)
            except asyncio.IncompleteReadError:
                break
            writer.write(OK)
            if closes:
                break
        writer.close()

    async def run() -> None:
        async with open_client(serve) as client:
            for _ in range(3):
                assert await client.post("/v1/completions", {}) == ServerAnswer(200, b"{}")
                if closes:
                    await opened[-1].wait_closed()
                    await asyncio.sleep(0.01)  # until the end has arrived

    asyncio.run(run())
    assert len(opened) == (3 if closes else 1)


def test_no_connection_is_used_again_after_an_abort() -> None:
    """The server behind it stops, and a new one may lead to another server of the same Service."""
    opened = list[asyncio.StreamWriter]()
    body = b'{"choices": [{"finish_reason": "abort"}]}'

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        number = len(opened)
        with suppress(asyncio.IncompleteReadError):
            while True:
                await read_request(reader)
                aborted = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
                writer.write(aborted if number < 3 else OK)
        writer.close()

    async def run() -> None:
        async with open_client(serve) as client:
            both = (client.post("/v1/completions", {}) for _ in range(2))
            found = await asyncio.gather(*both, return_exceptions=True)
            assert [each.kind for each in found if isinstance(each, ServerRequestError)] == ["aborted", "aborted"]
            for _ in range(2):
                assert (await client.post("/v1/completions", {})).status == 200

    asyncio.run(run())
    assert len(opened) == 3


def test_a_redirect_is_an_answer_that_is_not_followed() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 307 Elsewhere\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async def run() -> int:
        async with open_client(serve) as client:
            return int((await client.post("/v1/completions", {})).status)

    assert asyncio.run(run()) == 307


def test_a_cancelled_request_closes_its_connection() -> None:
    """So the server stops to sample."""
    events = list[str]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        events.append("asked")
        assert await reader.read() == b""
        events.append("left")
        writer.close()

    async def run() -> None:
        async with open_client(serve) as client:
            asking = asyncio.create_task(client.post("/v1/completions", {}))
            await async_wait_until(lambda: events == ["asked"])
            asking.cancel()
            await async_wait_until(lambda: events == ["asked", "left"])

    asyncio.run(run())


def test_a_client_that_sent_nothing_can_be_closed() -> None:
    asyncio.run(ServerClient("http://127.0.0.1:9", 60).aclose())
