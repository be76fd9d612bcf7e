"""Find the files of models: a wrong name is reported at once, in any state of the network."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gumshoe.artifacts.hub import ModelLocation, find_model
from gumshoe.inference.policy_names import load_tokenizer
from gumshoe.inference.transformers_policy import TransformersPolicy
from tests.conftest import find_free_port
from tests.errors import raises
from tests.http_server import run_server
from tests.inference.fake_vllm import write_tokenizer

# huggingface_hub reads its settings on import, so each look-up needs its own process.
PROGRAM = """
import json, sys, time
from huggingface_hub import constants
from gumshoe.inference.policy_names import load_tokenizer
from gumshoe.inference.transformers_policy import TransformersPolicy
from gumshoe.artifacts.hub import find_model
from gumshoe.errors import UsageError

openers = {"find": lambda name: find_model(name, "tokenizer.json").local_files_only}
openers |= {"revision": lambda name: find_model(name, "tokenizer.json").revision}
openers |= {"tokenizer": lambda name: len(load_tokenizer(name)), "model": TransformersPolicy}
pauses = []
time.sleep = pauses.append
for line in sys.argv[1:]:
    opener, name = line.split("=")
    constants.HF_HUB_ETAG_TIMEOUT = 1 if name == "acme/silent" else 600
    found, code, error = None, "", ""
    pauses.clear()
    try:
        found = openers[opener](name)
    except UsageError as failure:
        code, error = failure.code, failure.message
    print(json.dumps({"found": found, "code": code, "error": error, "pauses": pauses}), flush=True)
"""


@dataclass(frozen=True)
class Outcome:
    """Result of a look-up, and the seconds of each pause between attempts."""

    found: Any
    code: str
    error: str
    pauses: list[float]


class _Hub(BaseHTTPRequestHandler):
    """The part of the hub's API that tells if a model exists."""

    stopped: ClassVar[threading.Event] = threading.Event()

    def do_GET(self) -> None:
        name = self.path.removeprefix("/api/models/")
        if name == "acme/silent":
            self.stopped.wait()
        name, _, revision = name.partition("/revision/")
        there = name in {"acme/there", "acme/cached"} and revision != "gone"
        body = json.dumps(
            {"id": name, "sha": ("b" if revision else "a") * 40, "siblings": [], "tags": []} if there else {}
        ).encode()
        self.send_response(200 if there else 503 if name == "acme/busy" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@contextmanager
def hub() -> Iterator[str]:
    """Yield the address of a fake hub."""
    _Hub.stopped.clear()
    with run_server(ThreadingHTTPServer(("127.0.0.1", 0), _Hub)) as address:
        try:
            yield address
        finally:
            _Hub.stopped.set()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a directory for huggingface_hub, with one tokenizer in its cache."""
    kept = tmp_path / "home" / "hub" / "models--acme--cached"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text("a" * 40)
    write_tokenizer(kept / "snapshots" / ("a" * 40))
    return tmp_path / "home"


def look(home: Path, endpoint: str, *asked: str, **settings: str) -> list[Outcome]:
    """Look up models in a new process that uses the given hub only. Check that it prints nothing but the error."""
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    environment |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0"}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, *asked],
        env={**environment, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return [Outcome(**json.loads(line)) for line in ran.stdout.splitlines()]


WRONG = ["find=acme/missing", "tokenizer=acme/missing", "model=acme/missing", "tokenizer=DIR"]


@pytest.mark.ci
def test_a_name_unknown_to_the_hub_is_reported_at_once(home: Path) -> None:
    with hub() as endpoint:
        there, *wrong = look(home, endpoint, "find=acme/there", *WRONG, "tokenizer=acme/busy", "model=acme/silent")
    assert (there.found, there.error) == (False, "")
    for each, said in zip(wrong, ["404"] * 4 + ["503", "timed out"], strict=True):
        assert each.code == "sources.model-not-found"
        assert said in each.error
        assert "HF_TOKEN" in each.error
        assert "\n" not in each.error
        assert each.pauses == []


def test_without_a_network_only_names_in_the_cache_are_found(home: Path) -> None:
    place = f"http://127.0.0.1:{find_free_port()}"
    cached, *wrong = look(home, place, "find=acme/cached", *WRONG)
    assert cached.found is True
    for each in wrong:
        assert each.code == "sources.model-not-found"
        assert "Connection refused" in each.error
        assert "\n" not in each.error
        assert each.pauses == []


def test_offline_the_hub_is_not_called(home: Path) -> None:
    with hub() as endpoint:
        cached, *wrong = look(home, endpoint, "find=acme/cached", *WRONG, "find=acme/silent", HF_HUB_OFFLINE="1")
    assert cached.found is True
    for each in wrong:
        assert each.code == "sources.model-not-found"
        assert "HF_HUB_OFFLINE" in each.error
        assert each.pauses == []


@pytest.mark.ci
def test_a_model_has_the_commit_of_its_revision(home: Path) -> None:
    with hub() as endpoint:
        named = [
            "revision=acme/there",
            "revision=acme/there:v1",
            "revision=acme/there:gone",
            "revision=acme/cached:gone",
        ]
        newest, tagged, *gone = look(home, endpoint, *named)
    assert [newest.found, tagged.found] == ["a" * 40, "b" * 40]
    assert [each.code for each in gone] == ["sources.model-not-found"] * 2
    named = ["revision=acme/cached", f"revision=acme/cached:{'a' * 40}", f"revision=acme/cached:{'b' * 40}"]
    newest, pinned, other = look(home, "http://127.0.0.1:9", *named, HF_HUB_OFFLINE="1")
    assert [newest.found, pinned.found] == ["a" * 40] * 2, "the name of the snapshot"
    assert other.code == "sources.model-not-found", "another commit is no substitute"


@pytest.mark.nightly
@pytest.mark.parametrize("settings", [{}, {"HF_HUB_OFFLINE": "1"}], ids=["no network", "offline"])
def test_a_tokenizer_in_the_cache_is_loaded_without_the_hub(home: Path, settings: dict[str, str]) -> None:
    (tokenizer,) = look(home, f"http://127.0.0.1:{find_free_port()}", "tokenizer=acme/cached", **settings)
    assert tokenizer.found == 259


NO_DIRECTORIES = [
    "./model",
    "../model",
    "~/no-such-model",
    "/no/such/model",
    "runs/7/model",
    "model/",
    "a b",
    Path("m"),
]


@pytest.mark.parametrize("place", NO_DIRECTORIES)
def test_a_path_is_not_looked_up_on_the_hub(place: Path | str) -> None:
    for use in (load_tokenizer, TransformersPolicy):
        with raises("sources.no-such-model-directory", place):
            use(place)


def test_a_directory_with_any_name_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tokenizer(tmp_path / "acme" / "model")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "acme"))
    assert find_model("acme/model", "tokenizer.json") == ModelLocation("acme/model", local_files_only=True)
    for place in ("acme/model", "~/model", tmp_path / "acme" / "model"):
        assert len(load_tokenizer(place)) == 259


def test_an_adapter_must_be_a_directory(tmp_path: Path) -> None:
    with raises("sources.no-such-model-directory", "acme/adapter"):
        TransformersPolicy(tmp_path, Path("acme/adapter"))
