"""A gateway with stand-ins of episodes: they record requests and return given turns."""

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
import openai
from anyio.from_thread import start_blocking_portal
from openai import AsyncOpenAI

from gumshoe.environments.tools import Call
from gumshoe.gateway.gateway_limits import GatewayLimits
from gumshoe.gateway.gateway_server import Gateway, McpApp, open_gateway
from gumshoe.gateway.messages import ModelRequest, ModelResponse, SampledMessage

POLICY = "policy-7"
TEXT = SampledMessage("It costs 42.", (), "", "stop", ("It", " costs", " 42", "."), (-0.5, -0.25, -0.125, 0.0))
CALL = SampledMessage("", (Call("search_inbox", {"keywords": ["gas", "Öl"]}, "call_1_ab"),), "", "tool_calls")
BOTH = SampledMessage("I look.", (*CALL.calls, Call("read_email", {}, "call_2_cd")), "", "tool_calls")
QUESTION: list[Any] = [
    {"role": "system", "content": "You search."},
    {"role": "user", "content": "What is the price of gas?"},
]
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "search_inbox",
        "description": "Search.",
        "parameters": {"type": "object", "properties": {"keywords": {"type": "array", "items": {"type": "string"}}}},
    },
}


class Held:
    """Count calls, which wait until `released` is set. It is set at first."""

    def __init__(self) -> None:
        self.begun = self.cancelled = 0
        self.released = asyncio.Event()
        self.released.set()

    async def wait(self) -> None:
        self.begun += 1
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


class StandIn(Held):
    """An episode whose model returns `turns`, one after the other, and then the last one again."""

    def __init__(self, *turns: SampledMessage | BaseException) -> None:
        super().__init__()
        self.key = secrets.token_urlsafe(32)
        self.requests: list[ModelRequest] = []
        self.done = 0
        self._turns = list(turns or (TEXT,))
        self._numbers = itertools.count(1)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        self.requests.append(request)
        await self.wait()
        turn = self._turns.pop(0) if len(self._turns) > 1 else self._turns[0]
        self.done += 1
        if isinstance(turn, BaseException):
            raise turn
        return ModelResponse(POLICY, (turn,) * request.samples, 20, 4, f"{next(self._numbers)}-{secrets.token_hex(4)}")

    @property
    def head(self) -> dict[str, str]:
        """Headers with the key."""
        return {"authorization": f"Bearer {self.key}"}


class Served:
    """A running gateway, and clients for it."""

    def __init__(self, gateway: Gateway, http: httpx.AsyncClient) -> None:
        self.gateway, self.http = gateway, http
        self.port = int(gateway.base_url.split(":")[2].split("/")[0])

    @asynccontextmanager
    async def client(self, episode: StandIn, **more: Any) -> AsyncIterator[AsyncOpenAI]:
        http = openai.DefaultAsyncHttpxClient(trust_env=False)
        async with AsyncOpenAI(base_url=self.gateway.base_url, api_key=episode.key, http_client=http, **more) as client:
            yield client

    async def post(self, episode: StandIn, body: Any, path: str = "/chat/completions", **more: Any) -> httpx.Response:
        """Send a body, as JSON or as bytes, with the key of an episode."""
        content = {"content": body} if isinstance(body, bytes) else {"json": body}
        return await self.http.post(f"{self.gateway.base_url}{path}", headers=episode.head, **content, **more)


def serve(
    test: Callable[[Served], Coroutine[Any, Any, Any]],
    mcp_app: McpApp | None = None,
    loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
    **limits: Any,
) -> Any:
    """Run a test beside a gateway with these limits, in its event loop, and return its result."""

    async def main() -> Any:
        async with (
            open_gateway(mcp_app, limits=GatewayLimits(**limits)) as gateway,
            httpx.AsyncClient(trust_env=False, timeout=60) as http,
        ):
            return await test(Served(gateway, http))

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(main())


@contextmanager
def serve_in_thread(episode: StandIn) -> Iterator[httpx.Client]:
    """Serve an episode in the event loop of a thread, and yield a client with its key."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(open_gateway()) as gateway,
        gateway.admit(episode),
        httpx.Client(base_url=gateway.base_url, headers=episode.head, trust_env=False, timeout=60) as http,
    ):
        yield http
