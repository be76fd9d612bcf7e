"""Measure the overhead of the agent server: `python -m tests.benchmarks.serving`.

The server runs in its own process, with API keys, synthetic mail, and a scripted policy instead of a model, which
searches, reads a message and answers. 50 concurrent clients in this process send requests over HTTP, each on its own
connection.

- The overhead per turn: the time of a request, minus that of the scripted policy, divided by its turns. The policy
  sleeps about as long as a fast model takes (`--pauses`, times 0.5 to 1.5), or the 50 clients would wait for each
  other.
- Requests per second if the policy answers at once, so that only the server takes time.
- The server's memory before and after 10,000 requests.

Takes about two minutes.
"""

import argparse
import asyncio
import json
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import uvloop

from gumshoe.corpus import SCENARIOS_FILE
from gumshoe.environments.base import Environment
from gumshoe.environments.registry import open_env
from gumshoe.inference.policy import Completion, Sampling
from gumshoe.inference.policy_names import TINY, PolicyName, load_tokenizer
from gumshoe.mail.build import build_mail_index
from gumshoe.rollouts.chat_format.chat_format import ChatFormat
from gumshoe.rollouts.episode import ChatSession
from gumshoe.rollouts.sessions import chat_loop, token_chat_sessions
from gumshoe.rollouts.tool_threads import ToolThreads
from gumshoe.scenarios.sources import load_scenarios
from gumshoe.serving.access_control import open_access
from gumshoe.serving.feedback_recorder import FeedbackRecorder
from gumshoe.serving.http_protocol import GuardedServer
from gumshoe.serving.key_file import add_key
from gumshoe.serving.served_policies import ServedPolicy
from gumshoe.serving.server import configure_server, open_routes
from gumshoe.serving.service import AnswerService
from gumshoe.serving.settings import read_settings
from gumshoe.serving.telemetry import Metrics, create_tracer, log_as_json
from gumshoe.synthesis.mailboxes import MAIL_FILE, synthesize_mail, write_mail
from tests.benchmarks.agent import Searcher, search_words
from tests.benchmarks.mail import show

AT_ONCE = 50


class PausingSearcher(Searcher):
    """A searcher that pauses in each turn, and reports in its answer how long its turns took."""

    def __init__(self, finds: dict[str, list[str]], encode: Callable[[str], tuple[int, ...]], pause: float) -> None:
        super().__init__(finds, encode)
        self._pause, self._took = pause, 0.0

    async def sample(self, *arguments: Any, seed: int, **named: Any) -> Completion:
        pause = self._pause * (0.5 + random.Random(seed).random())
        self._took += pause
        await asyncio.sleep(pause)
        started = time.perf_counter()
        completion = await super().sample(*arguments, seed=seed, **named)  # this does not wait
        self._took += time.perf_counter() - started
        return completion

    def _next(self, seed: int) -> str:
        return super()._next(seed).replace("It is done.", f"It took {self._took:.6f} seconds")


def serve(directory: Path, listening: socket.socket, pause: float) -> None:
    """Run the server process."""
    codec, env = load_tokenizer(TINY), open_env(directory / "index")
    chat = ChatFormat(codec)
    finds = {
        about.question: search_words(env.index, about) for about in load_scenarios(str(directory / SCENARIOS_FILE))
    }

    def encode(text: str) -> tuple[int, ...]:
        return tuple(codec.backend_tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    @contextmanager
    def speak(environment: Environment, seed: str) -> Iterator[ChatSession]:
        policy = PausingSearcher(finds[environment.scenario.question], encode, pause)
        with token_chat_sessions(policy, chat, Sampling(max_tokens=400), 8192)(environment, seed) as speaker:
            yield speaker

    flags = {"index": str(directory / "index"), "access": {"keys": str(directory / "keys")}}
    settings = read_settings(None, flags | {"limits": {"concurrency": AT_ONCE}})

    async def run() -> None:
        async with ToolThreads() as threads:
            candidates = [ServedPolicy(PolicyName("scripted", "scripted"), 1.0, chat_loop(speak), "")]
            nothing = FeedbackRecorder(settings.keeping, None)
            service = AnswerService(
                settings, env, Metrics(), create_tracer(), threads, nothing.record_episode, candidates
            )
            async with open_routes(service, open_access(settings.access), nothing) as app:
                await GuardedServer(configure_server(app, settings, service.metrics)).serve(sockets=[listening])

    log_as_json()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


@contextmanager
def start_server(directory: Path, pause: float) -> Iterator[tuple[int, psutil.Process]]:
    """Start a server while the block runs, and yield its port and process."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listening, (directory / "log").open("ab") as log:
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        words = ["--serve", str(directory), str(listening.fileno()), str(pause)]
        command = [sys.executable, "-m", "tests.benchmarks.serving", *words]
        process = subprocess.Popen(command, stderr=log, pass_fds=[listening.fileno()])
        port = listening.getsockname()[1]
    try:
        yield port, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(20)


@dataclass(frozen=True, slots=True)
class Request:
    """The time of a request, the part of the policy in it, and the number of turns."""

    seconds: float
    policy: float
    turns: int


async def send_on_connection(port: int, key: str, questions: list[bytes], count: int) -> list[Request]:
    """Send `count` requests, one after another on one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /invoke HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n"
    head += "Content-Type: application/json\r\nContent-Length: "
    taken = []
    for number in range(count):
        body = questions[number % len(questions)]
        started = time.perf_counter()
        writer.write(head.encode() + b"%d\r\n\r\n" % len(body) + body)
        status, *headers = (await reader.readuntil(b"\r\n\r\n")).lower().splitlines()
        length = next(int(line.split(b":")[1]) for line in headers if line.startswith(b"content-length"))
        body = await reader.readexactly(length)
        seconds = time.perf_counter() - started
        assert b" 200 " in status, (status, body)
        answer = json.loads(body)
        assert answer["success"], answer
        taken.append(Request(seconds, float(answer["answer"].split()[2]), answer["turns"]))
    writer.close()
    return taken


async def send_requests(port: int, key: str, questions: list[bytes], count: int) -> list[Request]:
    """Send `count` requests in all, `AT_ONCE` of them concurrently."""
    shares = [questions[start::AT_ONCE] for start in range(AT_ONCE)]
    found = await asyncio.gather(*(send_on_connection(port, key, share, count // AT_ONCE) for share in shares))
    return [each for taken in found for each in taken]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pauses", type=float, nargs="+", default=[0.15, 0.5], help="seconds per turn of the policy")
    parser.add_argument(
        "--requests", type=int, default=10_000, help="number of requests with a policy that answers at once"
    )
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        directory, descriptor, pause = options.serve
        serve(Path(directory), socket.socket(fileno=int(descriptor)), float(pause))
        return
    with tempfile.TemporaryDirectory(prefix="gumshoe-benchmark-") as place:
        measure(Path(place), options.pauses, options.requests)


def measure(directory: Path, pauses: list[float], requests: int) -> None:
    """Make all runs, and show the table."""
    mail = synthesize_mail(3, 12, 3600)
    write_mail(mail, directory)
    build_mail_index([f"jsonl:{directory / MAIL_FILE}"], directory / "index")
    key = add_key(directory / "keys", "benchmark", ["*@*"])
    names = ("question", "inbox_address", "query_date")
    questions = [each.model_dump_json(include=set(names)).encode() for each in mail.scenarios]
    lines, turns = [], 0.0
    for pause in pauses:
        with start_server(directory, pause) as (port, _):
            asyncio.run(send_requests(port, key, questions, AT_ONCE * 4))  # warm up
            found = asyncio.run(send_requests(port, key, questions, AT_ONCE * 20))
        overheads = statistics.quantiles([1000 * (each.seconds - each.policy) / each.turns for each in found], n=100)
        turns = statistics.mean(each.turns for each in found)
        figures = f"{overheads[49]:.1f} and {overheads[98]:.1f} ms"
        lines.append([f"overhead per turn if the model takes {pause * 1000:g} ms: median and p99", figures])
    with start_server(directory, 0) as (port, process):
        asyncio.run(send_requests(port, key, questions, AT_ONCE * 4))
        before, started = process.memory_info().rss, time.perf_counter()
        asyncio.run(send_requests(port, key, questions, requests))
        seconds, after = time.perf_counter() - started, process.memory_info().rss
    show(
        f"The agent server, {AT_ONCE} concurrent requests, {turns:.1f} turns each",
        ["", ""],
        [
            *lines,
            ["requests per second if the model takes no time", f"{requests / seconds:,.0f}"],
            [f"memory before {requests:,} requests and after", f"{before / 2**20:,.0f} and {after / 2**20:,.0f} MiB"],
        ],
    )


if __name__ == "__main__":
    main()
