"""Start the agent server in a process of its own, with test mail."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.inference.fake_vllm import write_tokenizer
from tests.waiting import wait_until
from tests.warm_processes import Process, start_gumshoe

ANN, BOB, EVE = "ann@example.com", "bob@example.com", "eve@other.example"
DAY = "2001-06-01"
SECRET = "the vault opens with 4711"


@dataclass(frozen=True)
class ServerFiles:
    """The files that a server needs: an index and a tokenizer."""

    index: Path
    tokenizer: Path


def make_files(directory: Path) -> ServerFiles:
    """Create an index of mail between Ann and Bob and of Eve's own mail, and a tokenizer."""
    from tests.mail.mailbox import make_index, record

    mail = [record(number) for number in range(1, 21)]
    mail += [record(99, sender=EVE, to=[EVE], subject="Mine alone", body=f"Body of message 99: {SECRET}")]
    return ServerFiles(make_index(directory, mail).path.parent, write_tokenizer(directory / "model"))


@dataclass
class ServerClient:
    """A client of a server in a thread or a process."""

    url: str
    key: str | None = None
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        # Between threads, httpcore may close an idle connection that it has just given away (its issue 1110).
        keep = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=None)
        self.client = httpx.Client(base_url=self.url, timeout=None, headers=headers, limits=keep, trust_env=False)

    def ask(self, number: int = 7, **changes: Any) -> httpx.Response:
        return self.client.post("/invoke", json=question_body(number, **changes))

    def metric(self, name: str, **labels: str) -> float:
        """Return the value of a Prometheus metric; 0 if it does not exist with these labels."""
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        for line in self.client.get("/metrics").text.splitlines():
            if re.match(rf"{name}(\{{|\s)", line) and all(each in line for each in wanted):
                return float(line.rpartition(" ")[2])
        return 0.0


@dataclass
class AgentProcess(ServerClient):
    """A server in a process of its own, with its client."""

    process: Process = field(kw_only=True)
    log: Path = field(kw_only=True)

    def read_log(self) -> list[dict[str, Any]]:
        """Return the JSON lines of the log."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]


def code_of(response: httpx.Response) -> str:
    """Return the error code of a problem."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    kind = str(response.json()["type"])
    assert kind.startswith("urn:gumshoe:error:")
    return kind.removeprefix("urn:gumshoe:error:")


def question_body(number: int = 7, **changes: Any) -> dict[str, Any]:
    """Return the body of a question of Ann's about one message. A field that is None is omitted."""
    fields = {"question": f"What is in {number}?", "inbox_address": ANN, "query_date": DAY, **changes}
    return {name: value for name, value in fields.items() if value is not None}


def add_key(file: Path, name: str, inboxes: list[str]) -> str:
    """Create a key for inboxes, add its hash to a file, and return it."""
    from gumshoe.serving.key_file import add_key as add

    return add(file, name, inboxes)


@contextmanager
def start_server(
    place: ServerFiles,
    model: str | None,
    log: Path,
    *more: str,
    key: str | None = None,
    ready: bool = True,
    prefix: Sequence[str] = (),
    **environment: str,
) -> Iterator[AgentProcess]:
    """Run `gumshoe serve` while the block runs. With `ready`, wait until its model is available.

    The deadline of requests is an hour, unless `more` sets another. `prefix` is a program that runs the command, which
    must replace itself with it.
    """
    words = ["--index", str(place.index), "--port", "0", "--set", "model.max_context=50000"]
    words += ["--set", "limits.deadline=3600"]
    words += ["--policy", model] if model else []
    if model and model.startswith("vllm:"):
        words += ["--tokenizer", str(place.tokenizer)]
    with log.open("wb") as file:
        process: Process
        if prefix:
            command = [*prefix, sys.executable, "-m", "gumshoe", "serve", *words, *more]
            env = {**os.environ, "COLUMNS": "200", **environment}
            process = subprocess.Popen(command, stdout=file, stderr=file, env=env)
        else:
            process = start_gumshoe("serve", *words, *more, stdout=file, stderr=file, env=environment)
    try:
        wait_until(lambda: "Serving at" in log.read_text(), process, log.read_text)
        found = re.search(r"Serving at (http://[\w.:\[\]]+)", log.read_text())
        assert found, log.read_text()
        running = AgentProcess(found[1], key, process=process, log=log)
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
