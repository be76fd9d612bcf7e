"""What the supervisor does where the server ends, told without a server."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gumshoe.agent.vllm_server import ServerError
from gumshoe.errors import UnavailableError, UsageError
from gumshoe.training.supervisor import _begun, _ended_at_once, _watched, _write

SAVING = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
print(flush=True)
sys.stdin.read()
"""


class Ending:
    """A server that ends as often as it is started, until `restarted` says otherwise."""

    def __init__(self, restarted: Callable[[int], bool]) -> None:
        self.restarts, self._restarted, self._is_running = 0, restarted, False

    def is_running(self) -> bool:
        return self._is_running

    def restart(self, adapter: Any) -> None:
        assert adapter is None
        self.restarts += 1
        self._is_running = self._restarted(self.restarts)

    def last_words(self) -> str:
        return "these"


class _EndingWithUs(Ending):
    """Ends as this process is asked to."""

    def is_running(self) -> bool:
        os.kill(os.getpid(), signal.SIGTERM)
        return False


@pytest.fixture
def trainer() -> Iterator[subprocess.Popen[bytes]]:
    """Ends when nobody holds its standard input any longer."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        yield process


def watched(directory: Path, trainer: subprocess.Popen[bytes], server: Any) -> int:
    return _watched(directory, iter([trainer]), server)


def test_a_server_that_ends_again_and_again_ends_the_run(trainer: subprocess.Popen[bytes], tmp_path: Path) -> None:
    server = Ending(lambda _: False)
    with pytest.raises(ServerError, match="vLLM ended 3 times; these"):
        watched(tmp_path, trainer, server)
    assert server.restarts == 2
    assert trainer.poll() == 0, "it is not left behind"


def test_one_that_ends_now_and_then_is_started_as_often_as_it_takes(
    trainer: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    def restarted(count: int) -> bool:
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write("{}\n")  # a step
        if count == 5:
            trainer.kill()
        return count == 5

    server = Ending(restarted)
    assert watched(tmp_path, trainer, server) == -signal.SIGKILL
    assert server.restarts == 5


def test_who_is_asked_to_end_while_a_server_is_started_again_does_not_wait_for_it(
    trainer: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    def restarted(_: int) -> bool:
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("it went on")

    with pytest.raises(UnavailableError, match="asked to end while vLLM was started again; go on with --resume"):
        watched(tmp_path, trainer, Ending(restarted))
    assert trainer.poll() == -signal.SIGTERM


def test_who_is_asked_to_end_starts_no_server_again(tmp_path: Path) -> None:
    """All of a service's processes are told at once, and the trainer is still saving."""
    with subprocess.Popen([sys.executable, "-c", SAVING], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        server = _EndingWithUs(lambda _: True)
        assert watched(tmp_path, process, server) == 75
    assert server.restarts == 0


def test_who_is_asked_to_end_before_training_begins_does_at_once() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(UnavailableError, match="asked to end before training began"), _ended_at_once():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_run_that_cannot_be_noted_for_want_of_room_leaves_the_note_that_was_there(small_disk: Path) -> None:
    text = "{}"
    spec: Any = SimpleNamespace(directory=small_disk, model_dump_json=lambda **_: text)
    _write(spec)
    (small_disk / "mail").write_bytes(bytes(4 << 20))
    text = "x" * (2 << 20)
    with pytest.raises(UnavailableError, match=f"the disk of {small_disk} is full; make room, and go on with --resume"):
        _write(spec)
    assert [each.read_text() for each in small_disk.glob("*.json")] == ["{}\n"]


@pytest.mark.parametrize("name", ["checkpoint-500", "runs", "best_model"])
def test_a_directory_with_something_else_s_files_is_left_alone(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    wanted: Any = SimpleNamespace(directory=tmp_path)
    with pytest.raises(UsageError, match=f"holds {name}, of something else; choose another --out"):
        _begun(wanted, replace_run=False)
    assert (tmp_path / name).exists()
    _begun(wanted, replace_run=True)
    assert not (tmp_path / name).exists()
