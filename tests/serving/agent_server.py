"""The agent server as its users start it, in a process of its own, and the mail that it is asked about."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.inference.fake_vllm import write_tokenizer
from tests.waiting import wait_until

ANN, BOB, EVE = "ann@example.com", "bob@example.com", "eve@other.example"
DAY = "2001-06-01"
SECRET = "the vault opens with 4711"


@dataclass(frozen=True)
class Place:
    """What a server needs: an index and a tokenizer."""

    index: Path
    tokenizer: Path


def make_place(directory: Path) -> Place:
    """Make an index of mail between Ann and Bob, and of Eve's own."""
    from tests.mail.mailbox import make_index, record

    mail = [record(number) for number in range(1, 21)]
    mail += [record(99, sender=EVE, to=[EVE], subject="Mine alone", body=f"Body of message 99: {SECRET}")]
    return Place(make_index(directory, mail).path.parent, write_tokenizer(directory / "model"))


@dataclass
class Answering:
    """A server that answers, wherever it runs."""

    url: str
    key: str | None = None
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        # Between threads, httpcore may close an idle connection that it has just given away (its issue 1110).
        keep = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=None)
        self.client = httpx.Client(base_url=self.url, timeout=None, headers=headers, limits=keep, trust_env=False)

    def ask(self, number: int = 7, **changes: Any) -> httpx.Response:
        return self.client.post("/invoke", json=asked(number, **changes))

    def metric(self, name: str, **labels: str) -> float:
        """A number as Prometheus has it; 0 where there is none of those labels."""
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        for line in self.client.get("/metrics").text.splitlines():
            if re.match(rf"{name}(\{{|\s)", line) and all(each in line for each in wanted):
                return float(line.rpartition(" ")[2])
        return 0.0


@dataclass
class Running(Answering):
    """A server in a process of its own."""

    process: subprocess.Popen[bytes] = field(kw_only=True)
    log: Path = field(kw_only=True)

    def logged(self) -> list[dict[str, Any]]:
        """Return the lines of the log that are JSON."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]


def code_of(response: httpx.Response) -> str:
    """Return the code of a problem that a server answered with."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    kind = str(response.json()["type"])
    assert kind.startswith("urn:gumshoe:error:")
    return kind.removeprefix("urn:gumshoe:error:")


def asked(number: int = 7, **changes: Any) -> dict[str, Any]:
    """A question of Ann's about one message; None leaves a field out."""
    fields = {"question": f"What is in {number}?", "inbox_address": ANN, "query_date": DAY, **changes}
    return {name: value for name, value in fields.items() if value is not None}


def add_key(file: Path, name: str, inboxes: list[str]) -> str:
    """Make a key for inboxes, keep its hash in a file, and return it."""
    from gumshoe.serving.access import add_key as add

    return add(file, name, inboxes)


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
    """Run `gumshoe serve` from its first answer to its end; `ready`: from when its model is there.

    Its deadline is an hour, unless `more` sets another.
    """
    words = ["--index", str(place.index), "--port", "0", "--set", "model.max_context=50000"]
    words += ["--set", "limits.deadline=3600"]
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
        wait_until(lambda: "Serving at" in log.read_text(), process, log.read_text)
        found = re.search(r"Serving at (http://[\w.:\[\]]+)", log.read_text())
        assert found, log.read_text()
        running = Running(found[1], key, process=process, log=log)
        with running.client:
            if ready:
                wait_until(lambda: running.client.get("/readyz").status_code == 200, process, log.read_text)
            yield running
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
