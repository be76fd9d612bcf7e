"""Test that requests to one server are spread over connection pools."""

import asyncio
import threading
from collections import Counter

import httpx
import pytest

from gumshoe.inference import spread_transport
from gumshoe.inference.http_options import http_options
from gumshoe.inference.spread_transport import SpreadTransport
from tests.inference.fake_vllm import FakeVLLM, held

BODY = {"model": "base", "prompt": [1, 2, 3], "max_tokens": 4}


def make_client(url: str) -> httpx.AsyncClient:
    options = http_options(url)
    return httpx.AsyncClient(base_url=url, transport=SpreadTransport(options["verify"]), timeout=None)


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Return the number of requests by pool."""
    found: Counter[int] = Counter()
    handle = httpx.AsyncHTTPTransport.handle_async_request

    async def count(pool: httpx.AsyncHTTPTransport, request: httpx.Request) -> httpx.Response:
        found[id(pool)] += 1
        return await handle(pool, request)

    monkeypatch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", count)
    return found


def test_many_requests_use_all_pools_equally(used: Counter[int]) -> None:
    async def run(model: FakeVLLM, release: threading.Event) -> list[int]:
        async with make_client(model.address) as client:
            tasks = [asyncio.create_task(client.post("/v1/completions", json=BODY)) for _ in range(96)]
            while sum(used.values()) < 96:
                await asyncio.sleep(0.01)
            release.set()
            return [each.status_code for each in await asyncio.gather(*tasks)]

    release = threading.Event()
    with FakeVLLM() as model:
        model.inject(held(release), times=None)
        assert len(asyncio.run(run(model, release))) == 96
    assert sorted(used.values()) == [3] * spread_transport._POOLS


def test_one_request_after_another_uses_one_pool(used: Counter[int]) -> None:
    async def run(model: FakeVLLM) -> None:
        async with make_client(model.address) as client:
            for _ in range(5):
                assert (await client.get("/v1/models")).is_success

    with FakeVLLM() as model:
        asyncio.run(run(model))
    assert list(used.values()) == [5]


def test_a_failed_request_frees_its_place(used: Counter[int]) -> None:
    async def run() -> None:
        async with make_client("http://127.0.0.1:9") as client:
            for _ in range(3):
                with pytest.raises(httpx.ConnectError):
                    await client.get("/v1/models")

    asyncio.run(run())
    assert list(used.values()) == [3]
