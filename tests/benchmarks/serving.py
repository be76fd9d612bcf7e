"""What the agent server adds to a model's time: `python -m tests.benchmarks.serving`.

A server in a process of its own, with access by key, synthetic mail, and a scripted policy in the model's place, which
searches, reads a message and answers. Asked over HTTP by 50 clients at once, each on a connection of its own, from this
process.

- The overhead of a turn: a request's time, less what the scripted policy took, by its turns. It sleeps about as long
  as a fast model takes (`--pauses`, half as long to half as long again), or the 50 would wait for each other.
- Requests a second where the policy answers at once: then the server is all that takes time.
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
import uvicorn
import uvloop

from gumshoe.environments.base import Environment
from gumshoe.environments.registry import open_env
from gumshoe.inference.policy import Completion, Sampling
from gumshoe.inference.policy_names import TINY, PolicyName, load_tokenizer
from gumshoe.mail.build import build_mail_index
from gumshoe.rollouts.chat_format import ChatFormat
from gumshoe.rollouts.episode import ChatSession
from gumshoe.rollouts.sessions import token_chat_sessions
from gumshoe.rollouts.tool_threads import ToolThreads
from gumshoe.scenarios.scenario import SCENARIOS_FILE
from gumshoe.scenarios.sources import load_scenarios
from gumshoe.serving.access import add_key, open_access
from gumshoe.serving.feedback_recorder import FeedbackRecorder
from gumshoe.serving.server import open_routes
from gumshoe.serving.service import AnswerService, ServedPolicy
from gumshoe.serving.settings import read_settings
from gumshoe.serving.telemetry import Metrics, create_tracer, log_as_json
from gumshoe.synthesis.mailboxes import MAIL_FILE, synthesize_mail, write_mail
from tests.benchmarks.agent import Searcher, looked_up
from tests.benchmarks.mail import show

AT_ONCE = 50


class Pausing(Searcher):
    """A searcher that takes its time, and says in its answer how long that was, with what its own work took."""

    def __init__(self, finds: dict[str, list[str]], encode: Callable[[str], tuple[int, ...]], pause: float) -> None:
        super().__init__(finds, encode)
        self._pause, self._took = pause, 0.0

    async def sample(self, *arguments: Any, seed: int, **named: Any) -> Completion:
        pause = self._pause * (0.5 + random.Random(seed).random())
        self._took += pause
        await asyncio.sleep(pause)
        began = time.perf_counter()
        completion = await super().sample(*arguments, seed=seed, **named)  # which waits for nothing
        self._took += time.perf_counter() - began
        return completion

    def _next(self, seed: int) -> str:
        return super()._next(seed).replace("It is done.", f"It took {self._took:.6f} seconds")


def serve(directory: Path, listening: socket.socket, pause: float) -> None:
    """The server's process."""
    codec, world = load_tokenizer(TINY), open_env(directory / "index")
    chat = ChatFormat(codec)
    finds = {about.question: looked_up(world.index, about) for about in load_scenarios(str(directory / SCENARIOS_FILE))}

    def encode(text: str) -> tuple[int, ...]:
        return tuple(codec.backend_tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    @contextmanager
    def speak(environment: Environment, seed: str) -> Iterator[ChatSession]:
        policy = Pausing(finds[environment.scenario.question], encode, pause)
        with token_chat_sessions(policy, chat, Sampling(max_tokens=400), 8192)(environment, seed) as speaker:
            yield speaker

    flags = {"index": str(directory / "index"), "access": {"keys": str(directory / "keys")}}
    settings = read_settings(None, flags | {"limits": {"concurrency": AT_ONCE}})

    async def run() -> None:
        async with ToolThreads() as threads:
            candidates = [ServedPolicy(PolicyName("scripted", "scripted"), 1.0, speak, "")]
            nothing = FeedbackRecorder(settings.keeping, None)
            service = AnswerService(
                settings, world, Metrics(), create_tracer(), threads, nothing.record_episode, candidates
            )
            async with open_routes(service, open_access(settings.access), nothing) as app:
                config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off")
                await uvicorn.Server(config).serve(sockets=[listening])

    log_as_json()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


@contextmanager
def served(directory: Path, pause: float) -> Iterator[tuple[int, psutil.Process]]:
    """A server's port and process, until the block ends."""
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
    """One request's seconds, of which the policy took so many, and its turns."""

    seconds: float
    policy: float
    turns: int


async def ask(port: int, key: str, questions: list[bytes], count: int) -> list[Request]:
    """So many requests, one after another on one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /invoke HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n"
    head += "Content-Type: application/json\r\nContent-Length: "
    taken = []
    for number in range(count):
        body = questions[number % len(questions)]
        began = time.perf_counter()
        writer.write(head.encode() + b"%d\r\n\r\n" % len(body) + body)
        status, *headers = (await reader.readuntil(b"\r\n\r\n")).lower().splitlines()
        length = next(int(line.split(b":")[1]) for line in headers if line.startswith(b"content-length"))
        told = await reader.readexactly(length)
        seconds = time.perf_counter() - began
        assert b" 200 " in status, (status, told)
        answer = json.loads(told)
        assert answer["success"], answer
        taken.append(Request(seconds, float(answer["answer"].split()[2]), answer["turns"]))
    writer.close()
    return taken


async def asked(port: int, key: str, questions: list[bytes], count: int) -> list[Request]:
    """So many requests in all, `AT_ONCE` at any time."""
    shares = [questions[start::AT_ONCE] for start in range(AT_ONCE)]
    found = await asyncio.gather(*(ask(port, key, share, count // AT_ONCE) for share in shares))
    return [each for taken in found for each in taken]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--pauses", type=float, nargs="+", default=[0.15, 0.5], help="seconds that a turn's policy takes"
    )
    parser.add_argument("--requests", type=int, default=10_000, help="in a run in which the policy answers at once")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        directory, descriptor, pause = options.serve
        serve(Path(directory), socket.socket(fileno=int(descriptor)), float(pause))
        return
    with tempfile.TemporaryDirectory(prefix="gumshoe-benchmark-") as place:
        measure(Path(place), options.pauses, options.requests)


def measure(directory: Path, pauses: list[float], requests: int) -> None:
    """All runs, and their table."""
    mail = synthesize_mail(3, 12, 3600)
    write_mail(mail, directory)
    build_mail_index([f"jsonl:{directory / MAIL_FILE}"], directory / "index")
    key = add_key(directory / "keys", "benchmark", ["*@*"])
    names = ("question", "inbox_address", "query_date")
    questions = [each.model_dump_json(include=set(names)).encode() for each in mail.scenarios]
    lines, turns = [], 0.0
    for pause in pauses:
        with served(directory, pause) as (port, _):
            asyncio.run(asked(port, key, questions, AT_ONCE * 4))  # the first are slower
            found = asyncio.run(asked(port, key, questions, AT_ONCE * 20))
        overheads = statistics.quantiles([1000 * (each.seconds - each.policy) / each.turns for each in found], n=100)
        turns = statistics.mean(each.turns for each in found)
        figures = f"{overheads[49]:.1f} and {overheads[98]:.1f} ms"
        lines.append([f"overhead of a turn where the model takes {pause * 1000:g} ms: median and p99", figures])
    with served(directory, 0) as (port, process):
        asyncio.run(asked(port, key, questions, AT_ONCE * 4))
        before, began = process.memory_info().rss, time.perf_counter()
        asyncio.run(asked(port, key, questions, requests))
        seconds, after = time.perf_counter() - began, process.memory_info().rss
    show(
        f"The agent server, {AT_ONCE} requests at once, {turns:.1f} turns each",
        ["what", "figure"],
        [
            *lines,
            ["requests a second where it takes none", f"{requests / seconds:,.0f}"],
            [f"memory before {requests:,} requests and after", f"{before / 2**20:,.0f} and {after / 2**20:,.0f} MiB"],
        ],
    )


if __name__ == "__main__":
    main()
