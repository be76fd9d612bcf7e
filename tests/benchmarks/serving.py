"""What the agent server adds to a model's time: `python -m tests.benchmarks.serving`.

A server in a process of its own, with access by key, synthetic mail, and a scripted policy in the model's place, so
that an episode is three turns: a search, a message read, an answer. Asked over HTTP by 50 clients at once, each on a
connection of its own, from this process.

- The overhead of a turn: a request's time, less what the scripted policy slept, by its turns. It sleeps as long as a
  fast model takes (`--pause`), or the 50 would wait for each other and not for the server.
- Requests a second where the policy answers at once: then the server is all that takes time.
- The server's memory before and after 10,000 requests.

Figures are of all requests of a run; takes about two minutes.
"""

import argparse
import asyncio
import json
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import uvicorn

from gumshoe.agent.chat_format import ChatFormat
from gumshoe.agent.policies import TINY, PolicyName, load_tokenizer, token_speakers
from gumshoe.agent.policy import Completion, Sampling, ScriptedPolicy
from gumshoe.agent.threads import ToolThreads
from gumshoe.mail.build import build_index
from gumshoe.mail.index import MailIndex
from gumshoe.serving.access import add_key
from gumshoe.serving.keeping import Keeper
from gumshoe.serving.server import routes_to
from gumshoe.serving.service import AnswerService, Candidate
from gumshoe.serving.settings import read_settings
from gumshoe.serving.telemetry import Metrics, log_as_json, tracer
from gumshoe.synthesis.mail import MAIL, synthesize_mail, write_mail
from tests.benchmarks.mail import show

AT_ONCE, TURNS = 50, 3


class Pausing(ScriptedPolicy):
    """A scripted policy that takes its time."""

    pause = 0.0

    async def sample(self, *arguments: Any, **named: Any) -> Completion:
        await asyncio.sleep(self.pause)
        return await super().sample(*arguments, **named)


def script(prompt: str, seed: int) -> str:  # noqa: ARG001 - as a script is
    """Search for the question's last word, read the first hit, answer."""
    results = re.findall(r"<tool_response>\n(.*?)\n</tool_response>", prompt, re.S)
    ids = re.findall(r"id: (\S+)", results[0]) if results else []
    if not results:
        call: dict[str, Any] = {"name": "search_inbox", "arguments": {"keywords": ["the"]}}
    elif len(results) == 1 and ids:
        call = {"name": "read_email", "arguments": {"message_id": ids[0]}}
    else:
        call = {"name": "return_final_answer", "arguments": {"answer": "so it is", "message_ids": ids[:1]}}
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


def serve(directory: Path, listening: socket.socket, pause: float) -> None:
    """The server's process."""
    chat = ChatFormat(load_tokenizer(TINY))
    policy = Pausing(load_tokenizer(TINY), script)
    policy.pause = pause
    speak = token_speakers(policy, chat, Sampling(max_tokens=400), 8192)
    flags = {"index": str(directory / "index"), "access": {"keys": str(directory / "keys")}}
    settings = read_settings(None, flags | {"limits": {"concurrency": AT_ONCE}})

    async def run() -> None:
        async with ToolThreads() as threads:
            served = [Candidate(PolicyName("scripted", "scripted"), 1.0, speak, "")]
            index, nothing = MailIndex(directory / "index"), Keeper(settings.keeping, None)
            service = AnswerService(settings, index, Metrics(), tracer(), threads, nothing.episode, served)
            async with routes_to(service, nothing) as app:
                config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off")
                await uvicorn.Server(config).serve(sockets=[listening])

    log_as_json()
    asyncio.run(run())


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


async def ask(port: int, key: str, questions: list[bytes], count: int) -> list[float]:
    """Seconds of each of so many requests, one after another on one connection."""
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
        taken.append(time.perf_counter() - began)
        assert b" 200 " in status, (status, told)
        assert b'"turns":%d' % TURNS in told, told
    writer.close()
    return taken


async def asked(port: int, key: str, questions: list[bytes], count: int) -> list[float]:
    """Seconds of so many requests in all, `AT_ONCE` at any time."""
    shares = [questions[start::AT_ONCE] for start in range(AT_ONCE)]
    found = await asyncio.gather(*(ask(port, key, share, count // AT_ONCE) for share in shares))
    return [each for taken in found for each in taken]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pause", type=float, default=0.15, help="seconds that the scripted policy takes for a turn")
    parser.add_argument("--requests", type=int, default=10_000, help="in a run in which the policy answers at once")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        directory, descriptor, pause = options.serve
        serve(Path(directory), socket.socket(fileno=int(descriptor)), float(pause))
        return
    with tempfile.TemporaryDirectory(prefix="gumshoe-benchmark-") as place:
        measure(Path(place), options.pause, options.requests)


def measure(directory: Path, pause: float, requests: int) -> None:
    """Both runs, and their table."""
    mail = synthesize_mail(3, 12, 3600)
    write_mail(mail, directory)
    build_index([f"jsonl:{directory / MAIL}"], directory / "index")
    key = add_key(directory / "keys", "benchmark", ["*@*"])
    names = ("question", "inbox_address", "query_date")
    questions = [each.model_dump_json(include=set(names)).encode() for each in mail.scenarios]
    with served(directory, pause) as (port, _):
        asyncio.run(asked(port, key, questions, AT_ONCE * 4))  # the first are slower
        overheads = [1000 * (each / TURNS - pause) for each in asyncio.run(asked(port, key, questions, AT_ONCE * 20))]
    with served(directory, 0) as (port, process):
        asyncio.run(asked(port, key, questions, AT_ONCE * 4))
        before, began = process.memory_info().rss, time.perf_counter()
        asyncio.run(asked(port, key, questions, requests))
        seconds, after = time.perf_counter() - began, process.memory_info().rss
    middle, *_ = statistics.quantiles(overheads, n=2)
    show(
        f"The agent server, {AT_ONCE} requests at once, {TURNS} turns each",
        ["what", "figure"],
        [
            [f"overhead of a turn, median (where the model takes {pause * 1000:g} ms)", f"{middle:.1f} ms"],
            ["the same, 99th percentile", f"{statistics.quantiles(overheads, n=100)[98]:.1f} ms"],
            ["requests a second, where it takes none", f"{requests / seconds:,.0f}"],
            [f"memory before {requests:,} requests and after", f"{before / 2**20:,.0f} and {after / 2**20:,.0f} MiB"],
        ],
    )


if __name__ == "__main__":
    main()
