"""Measure the agent server with many clients at once: `python -m tests.benchmarks.load`.

`gumshoe serve` runs in its own process, with a fake vLLM server in another one that takes 150 ms for each turn, and has
almost all answers ready, so that it takes little of the processor. Each of 500 clients has a connection of its own and
asks one question after another, which take three turns each.

- Errors, and the overhead of a question: its time minus that of the model.
- Processor time of the server per question, which does not depend on what else runs on the machine, and its memory.
- Answers that are lost if the server is terminated while all clients ask: accepted requests without an answer.

`--every SECONDS` lets each client wait that long between two questions, for a server that is not saturated. Takes two
minutes.
"""

import argparse
import asyncio
import json
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import uvloop

from tests.benchmarks.mail import show
from tests.conftest import find_free_port
from tests.inference.fake_vllm import ServerProcess
from tests.serving.agent_server import AgentProcess, make_files, question_body, start_server
from tests.waiting import wait_until

PAUSE = 0.15  # seconds that the model takes for a turn
_MESSAGES = 20  # in the index
_WARM_UP = 2  # questions of each client before the measurement


@dataclass(frozen=True, slots=True)
class Question:
    """A question that was sent. Status 0 means that there was no response."""

    status: int
    seconds: float
    turns: int

    @property
    def overhead(self) -> float:
        """Time that the model did not take, in milliseconds."""
        return 1000 * (self.seconds - self.turns * PAUSE)


@dataclass(slots=True)
class Client:
    """A client with a connection of its own."""

    url: str
    number: int

    async def run(self, count: int, every: float) -> list[Question]:
        """Ask questions, each `every` seconds or at once after the last, as long as there are responses."""
        draw = random.Random(self.number)
        await asyncio.sleep(draw.uniform(0, every))
        asked: list[Question] = []
        with suppress(OSError, asyncio.IncompleteReadError):
            address = urlsplit(self.url)
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            try:
                while len(asked) < count:
                    began = time.perf_counter()
                    asked.append(Question(0, 0.0, 0))
                    asked[-1] = await self._ask(reader, writer, 1 + draw.randrange(_MESSAGES))
                    await asyncio.sleep(max(0.0, every - (time.perf_counter() - began)))
            finally:
                writer.close()
        return asked

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> Question:
        body = json.dumps(question_body(number)).encode()
        head = (
            f"POST /invoke HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        )
        started = time.perf_counter()
        writer.write(head.encode() + b"\r\n\r\n" + body)
        received = await reader.readuntil(b"\r\n\r\n")
        status = int(received.split()[1])
        answer = await reader.readexactly(_length(received))
        return Question(status, time.perf_counter() - started, json.loads(answer).get("turns", 0))


def ask(url: str, clients: int, count: int, every: float = 0.0) -> list[Question]:
    """Let all clients ask at once, and return all questions."""

    async def run() -> list[Question]:
        asked = await asyncio.gather(*(Client(url, number).run(count, every) for number in range(clients)))
        return [each for one in asked for each in one]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


async def run_model(port: int, source: str) -> None:
    """Answer each request to the model after a pause, as the server at `source` has answered it before."""
    ready: dict[tuple[bytes, bytes], bytes] = {}

    async def fetch(head: bytes, body: bytes) -> bytes:
        address = urlsplit(source)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(head + body)
        received = await reader.readuntil(b"\r\n\r\n")
        content = await reader.readexactly(_length(received))
        writer.close()
        return received + content

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.readexactly(_length(head))
                key = head.split(b"\r\n", 1)[0], body
                pause = asyncio.sleep(PAUSE if body else 0)
                if key not in ready or not body:
                    ready[key] = await fetch(head, body)
                await pause
                writer.write(ready[key])
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", port, backlog=2048, limit=1 << 20)
    await server.serve_forever()


def _length(head: bytes) -> int:
    """Return the Content-Length of a message; 0 if it has none."""
    return int((head.lower().partition(b"content-length:")[2].split() or [b"0"])[0])


@contextmanager
def start_model() -> Iterator[str]:
    """Run the model while the block runs, and yield its address."""
    port, source = find_free_port(), ServerProcess(find_free_port())
    source.start()
    process = subprocess.Popen([sys.executable, "-m", "tests.benchmarks.load", "--model", str(port), source.address])
    try:
        wait_until(lambda: not socket.socket().connect_ex(("127.0.0.1", port)), process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
        source.kill()


@contextmanager
def serve(directory: Path, clients: int, workers: int) -> Iterator[AgentProcess]:
    """Run a model, and a server with room for `clients` at once, while the block runs."""
    place = make_files(directory)
    bounds = {
        "workers": workers,
        "limits.concurrency": clients,
        "limits.queue": clients,
        "connections.per_address": 2 * clients,
    }
    more = [word for name, value in bounds.items() for word in ("--set", f"{name}={value}")]
    with (
        start_model() as model,
        start_server(place, f"vllm:{model}#adapter", directory / "log", "--open", *more) as server,
    ):
        yield server


def measure_speed(server: AgentProcess, clients: int, count: int, every: float) -> list[list[str]]:
    """Return the lines of the table about speed, errors and memory."""
    own = psutil.Process(server.process.pid)
    processes = [own, *own.children()]

    def measure() -> tuple[list[float], int]:
        times = [each.cpu_times() for each in processes]
        return [each.user + each.system for each in times], sum(each.memory_full_info().uss for each in processes)

    ask(server.url, clients, _WARM_UP)  # connections to the model, and its answers
    (before, memory), started = measure(), time.perf_counter()
    asked = ask(server.url, clients, count, every)
    seconds, (used, memory_after) = time.perf_counter() - started, measure()
    statuses = Counter(each.status for each in asked)
    first, *others = (1000 * (after - earlier) / len(asked) for after, earlier in zip(used, before, strict=True))
    shares = f"{first + sum(others):.1f} ms" + (f", of which {sum(others):.1f} ms in workers" if others else "")
    overheads = statistics.quantiles([each.overhead for each in asked if each.status == 200], n=100)
    return [
        ["questions, and those without an answer", f"{len(asked):,} and {len(asked) - statuses[200]:,}"],
        ["questions per second", f"{len(asked) / seconds:.0f}"],
        ["overhead of a question: median and p99", f"{overheads[49]:,.0f} and {overheads[98]:,.0f} ms"],
        ["processor time of the server per question", shares],
        ["own memory before and after", f"{memory / 2**20:,.0f} and {memory_after / 2**20:,.0f} MiB"],
    ]


def measure_shutdown(server: AgentProcess, clients: int, earlier: int) -> list[str]:
    """Terminate the server while all clients ask, and return the line of the table about lost answers.

    The log says how many requests the server has accepted, `earlier` of them before.
    """

    async def run() -> list[Question]:
        asking = asyncio.gather(*(Client(server.url, number).run(1000, 0.0) for number in range(clients)))
        await asyncio.sleep(5)
        server.process.send_signal(signal.SIGTERM)
        return [each for one in await asking for each in one]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        asked = runner.run(run())
    code = server.process.wait()
    answered = sum(each.status == 200 for each in asked)
    accepted = sum(each.get("route") == "/invoke" for each in server.read_log()) - earlier
    failed = sum(each.status not in (0, 200) for each in asked)
    return [
        f"terminated while {clients} clients ask: accepted, answered, failed",
        f"{accepted:,}, {answered:,}, {failed:,} (exit status {code})",
    ]


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=500, help="number of concurrent clients")
    parser.add_argument("--questions", type=int, default=5, help="number of questions of each client")
    parser.add_argument("--workers", type=int, default=0, help="worker processes of the server")
    parser.add_argument("--every", type=float, default=0.0, help="seconds between two questions of a client")
    parser.add_argument("--model", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.model:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run_model(int(options.model[0]), options.model[1]))
        return
    with (
        tempfile.TemporaryDirectory(prefix="gumshoe-benchmark-") as directory,
        serve(Path(directory), options.clients, options.workers) as server,
    ):
        lines = measure_speed(server, options.clients, options.questions, options.every)
        lines.append(measure_shutdown(server, options.clients, options.clients * (_WARM_UP + options.questions)))
    workers = f", {options.workers} workers" if options.workers else ""
    show(f"The agent server{workers}, {options.clients} clients, {PAUSE * 1000:g} ms per turn", ["", ""], lines)


if __name__ == "__main__":
    main()
