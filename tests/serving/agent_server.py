"""The agent server as its users start it, in a process of its own, and the mail that it is asked about."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.agent.fake_vllm import write_tokenizer
from tests.mail.mailbox import make_index, record

ANN, BOB, EVE = "ann@example.com", "bob@example.com", "eve@other.example"
DAY = "2001-06-01"
SECRET = "the vault opens with 4711"


@dataclass(frozen=True)
class Place:
    """What a server needs: an index and a tokenizer."""

    index: Path
    tokenizer: Path


def make_place(directory: Path) -> Place:
    """Mail between Ann and Bob, and Eve's own."""
    mail = [record(number) for number in range(1, 21)]
    mail += [record(99, sender=EVE, to=[EVE], subject="Mine alone", body=f"Body of message 99: {SECRET}")]
    return Place(make_index(directory, mail).path.parent, write_tokenizer(directory / "model"))


@dataclass
class Running:
    """A server that answers."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path
    key: str | None = None
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        # Between threads, httpcore may close an idle connection that it has just given away (its issue 1110).
        keep = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=None)
        self.client = httpx.Client(base_url=self.url, timeout=60, headers=headers, limits=keep, trust_env=False)

    def ask(self, number: int = 7, **changes: Any) -> httpx.Response:
        return self.client.post("/invoke", json=asked(number, **changes))

    def metric(self, name: str, **labels: str) -> float:
        """A number as Prometheus has it; 0 where there is none of those labels."""
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        for line in self.client.get("/metrics").text.splitlines():
            if re.match(rf"{name}(\{{|\s)", line) and all(each in line for each in wanted):
                return float(line.rpartition(" ")[2])
        return 0.0

    def logged(self) -> list[dict[str, Any]]:
        """The lines of the log that are JSON."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]


def asked(number: int = 7, **changes: Any) -> dict[str, Any]:
    """A question of Ann's about one message; None leaves a field out."""
    fields = {"question": f"What is in {number}?", "inbox_address": ANN, "query_date": DAY, **changes}
    return {name: value for name, value in fields.items() if value is not None}


@contextmanager
def started(
    place: Place,
    model: str | None,
    log: Path,
    *more: str,
    key: str | None = None,
    ready: bool = True,
    **environment: str,
) -> Iterator[Running]:
    """`gumshoe serve`, from its first answer to its end; `ready`: and its model is there."""
    words = ["--index", str(place.index), "--port", "0", "--set", "model.max_context=50000"]
    words += ["--policy", model] if model else []
    if model and model.startswith("vllm:"):
        words += ["--tokenizer", str(place.tokenizer)]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "gumshoe", "serve", *words, *more],
            stdout=file,
            stderr=file,
            env={**os.environ, "COLUMNS": "200", **environment},
        )
    try:
        until(lambda: "Serving at" in log.read_text() or process.poll() is not None)
        found = re.search(r"Serving at (http://[\w.:\[\]]+)", log.read_text())
        assert found, log.read_text()
        running = Running(found[1], process, log, key)
        with running.client:
            if ready:
                until(lambda: running.client.get("/readyz").status_code == 200)
            yield running
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def until(look: Any, seconds: float = 120) -> None:
    """Wait until something is so."""
    began = time.monotonic()
    while not look():
        assert time.monotonic() - began < seconds, "it never came to be"
        time.sleep(0.02)
