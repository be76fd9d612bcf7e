"""A stand-in of the gateway: a real HTTP server with OpenAI's APIs, whose model is a script, and the tools over MCP.

The model searches, reads, and answers. Its turn depends on the number of results in the conversation alone.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from openai.types.chat import ChatCompletion
from openai.types.responses import Response as ModelResponse
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gumshoe.environments.tools import Call, Toolbox
from gumshoe.gateway.agent_task import AgentTask
from gumshoe.gateway.episode_mcp import create_episode_mcp
from gumshoe.gateway.episode_tools import EpisodeTools
from tests.gateway.agent_tasks import KEY, TURNS, make_task
from tests.waiting import wait_until


def search_inbox(keywords: list[str]) -> str:
    """Search the inbox.

    Args:
        keywords: Words that a message must contain.
    """
    return f"{keywords[0]} is in <7@example.com>"


def read_email(message_id: str) -> str:
    """Read a message.

    Args:
        message_id: Id of the message.
    """
    return f"{message_id}: The invoice is due on Friday."


def return_final_answer(answer: str, message_ids: list[str]) -> str:
    """Return the answer.

    Args:
        answer: The answer.
        message_ids: Ids of the messages that contain it.
    """
    return f"{answer} was given with {len(message_ids)} sources."


@dataclass
class FakeEpisode:
    """The tools of an episode."""

    toolbox: Toolbox = field(default_factory=lambda: Toolbox([search_inbox, read_email, return_final_answer]))
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    async def call_tool(self, call: Call) -> str:
        self.calls.append((call.name, call.arguments))
        return self.toolbox.run(call)


@dataclass
class FakeGateway:
    """The server, what it received, and its episode."""

    episode: FakeEpisode = field(default_factory=FakeEpisode)
    final_text: str | None = None
    """Text of the last turn, in place of a call of the tool for the answer."""
    status: int = 200
    """Status of the answers of the model."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of the requests to the model."""
    paths: list[str] = field(default_factory=list)
    refused: int = 0
    """Number of requests without the key."""
    url: str = ""

    def task(self) -> AgentTask:
        """Return the task of the episode. Called in the loop of the test, which its tools then use."""
        return make_task(f"{self.url}/v1", EpisodeTools(self.episode), f"{self.url}/mcp")

    def app(self) -> Any:
        mcp = create_episode_mcp()

        @asynccontextmanager
        async def lifespan(_: Starlette) -> Any:
            async with mcp.run():
                yield

        routes = [
            Route("/v1/chat/completions", self._complete, methods=["POST"]),
            Route("/v1/responses", self._respond, methods=["POST"]),
        ]
        api = Starlette(routes=routes, lifespan=lifespan)

        async def answer(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                await api(scope, receive, send)
                return
            self.paths.append(f"{scope['path']}?{scope['query_string'].decode()}")
            if dict(scope["headers"]).get(b"authorization") != f"Bearer {KEY}".encode():
                self.refused += 1
                await Response(status_code=401)(scope, receive, send)
                return
            scope["state"] = {**scope.get("state", {}), "episode": self.episode}
            await (mcp if scope["path"] == "/mcp" else api)(scope, receive, send)

        return answer

    async def _complete(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        if self.status != 200:
            return self._refuse()
        turn = self._next_turn(sum(each["role"] == "tool" for each in body["messages"]))
        message: dict[str, Any] = {"role": "assistant", "content": turn if isinstance(turn, str) else None}
        if not isinstance(turn, str):
            function = {"name": turn[0], "arguments": json.dumps(turn[1])}
            message["tool_calls"] = [{"id": f"call_{len(self.requests)}", "type": "function", "function": function}]
        choice = {"index": 0, "message": message, "finish_reason": "stop" if isinstance(turn, str) else "tool_calls"}
        given = {"id": "1", "object": "chat.completion", "created": 0, "model": "policy-1", "choices": [choice]}
        return JSONResponse(ChatCompletion.model_validate(given).model_dump(mode="json", exclude_none=True))

    async def _respond(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        if self.status != 200:
            return self._refuse()
        items = body["input"] if isinstance(body["input"], list) else []
        turn = self._next_turn(sum(each.get("type") == "function_call_output" for each in items))
        number = str(len(self.requests))
        item: dict[str, Any] = {"id": f"item_{number}", "status": "completed"}
        if isinstance(turn, str):
            content = {"type": "output_text", "text": turn, "annotations": []}
            item |= {"type": "message", "role": "assistant", "content": [content]}
        else:
            item |= {"type": "function_call", "call_id": f"call_{number}", "name": turn[0]}
            item |= {"arguments": json.dumps(turn[1])}
        given = {"id": f"resp_{number}", "object": "response", "created_at": 0, "model": "policy-1", "output": [item]}
        given |= {"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "status": "completed"}
        return JSONResponse(ModelResponse.model_validate(given).model_dump(mode="json", exclude_none=True))

    def _next_turn(self, results: int) -> tuple[str, dict[str, Any]] | str:
        if results == len(TURNS) - 1 and self.final_text is not None:
            return self.final_text
        return TURNS[results] if results < len(TURNS) else "Done."

    def _refuse(self) -> Response:
        error = {"message": "the episode may have 2 turns", "type": "insufficient_quota", "code": "insufficient_quota"}
        return JSONResponse({"error": error}, self.status, {"x-should-retry": "false"})


@contextmanager
def run_fake_gateway() -> Iterator[FakeGateway]:
    """Run the server while the block runs."""
    gateway = FakeGateway()
    config = uvicorn.Config(gateway.app(), "127.0.0.1", 0, log_level="critical", ws="none", timeout_graceful_shutdown=0)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started)
        gateway.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        yield gateway
    finally:
        server.should_exit = True
        thread.join()
