"""What the supervisor does where the server ends, told without a server."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gumshoe.training.launch import supervisor
from gumshoe.training.launch.servers import Servers, create_servers
from gumshoe.training.launch.supervisor import _prepare_new_run, _write_spec, exit_on_sigterm, exit_status_of
from gumshoe.training.launch.supervisor import wait_for_trainers as watch
from gumshoe.training.planning.gpu_allocation import allocate_gpus
from gumshoe.training.settings import TrainSettings
from tests.errors import raises

SAVING = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
print(flush=True)
sys.stdin.read()
"""


class Ending:
    """A server that ends as often as it is started, until `restarted` says otherwise."""

    def __init__(
        self,
        restarted: Callable[[int], bool],
        *,
        adapter: tuple[str, Path] | None = None,
        is_running: bool = False,
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self.restarts, self._restarted, self._is_running = 0, restarted, is_running
        self._adapter, self.is_ready = adapter, is_ready

    def is_running(self) -> bool:
        return self._is_running

    def restart(self, adapter: Any) -> None:
        assert adapter == self._adapter
        self.restarts += 1
        self._is_running = self._restarted(self.restarts)

    def log_tail(self) -> str:
        return "last words"


class _EndingWithUs(Ending):
    """Ends as this process is asked to."""

    def is_running(self) -> bool:
        os.kill(os.getpid(), signal.SIGTERM)
        return False


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_POLL", 0.01)


@pytest.fixture
def trainer() -> Iterator[subprocess.Popen[bytes]]:
    """Ends when nobody holds its standard input any longer."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        yield process


def watched(directory: Path, trainer: subprocess.Popen[bytes], *servers: Any) -> int:
    return watch(iter([trainer]), Servers(servers, directory))


def test_a_server_that_ends_again_and_again_ends_the_run(trainer: subprocess.Popen[bytes], tmp_path: Path) -> None:
    server = Ending(lambda _: False)
    with raises("training.server-keeps-ending", "3 times", "last words"):
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


def test_one_of_several_is_started_again_alone_with_the_adapter_that_is_served(
    trainer: subprocess.Popen[bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """While it starts, which may take minutes, all else goes on."""
    (tmp_path / "served.json").write_text('{"name": "policy-7", "path": "/adapters/7"}')

    looks = count(1)

    def is_ready() -> bool:
        if next(looks) == 3:
            trainer.kill()
        return False

    first = Ending(lambda _: True, is_running=True)
    second = Ending(lambda _: True, adapter=("policy-7", Path("/adapters/7")), is_ready=is_ready)
    assert watched(tmp_path, trainer, first, second) == -signal.SIGKILL
    assert (first.restarts, second.restarts) == (0, 1)
    warned = capsys.readouterr().err
    assert "vLLM 2" in warned
    assert "vLLM 1" not in warned


@pytest.mark.parametrize(
    ("codes", "told"),
    [([], 0), ([75, 1], 1), ([1, 247], 247), ([250, 2], 2), ([250, 75], 75), ([143, 75], 143), ([250], 250)],
)
def test_of_several_trainers_the_one_that_did_not_end_for_another_s_sake_tells_why(codes: list[int], told: int) -> None:
    assert exit_status_of(codes) == told


@pytest.mark.parametrize("codes", [(75, 1), (1, 75)], ids=["first", "last"])
def test_the_status_of_a_run_is_that_of_the_trainer_that_failed_and_not_of_one_that_missed_it(
    codes: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of the two ends first; the other ends while the supervisor lets it settle."""
    pipe = subprocess.PIPE
    trainers = [subprocess.Popen(["sh", "-c", f"cat; exit {code}"], stdin=pipe) for code in codes]
    pauses: list[float] = []

    def end_one(seconds: float) -> None:
        ending = trainers[len(pauses)]
        pauses.append(seconds)
        assert ending.stdin is not None
        ending.stdin.close()
        ending.wait()

    monkeypatch.setattr("gumshoe.training.launch.supervisor.time.sleep", end_one)
    assert watch(iter(trainers), Servers((), tmp_path)) == 1
    assert pauses == [supervisor._POLL, supervisor._SETTLE]


class Starting:
    """A server that is ready at the second look, and notes what is done with it."""

    def __init__(self, events: list[str], name: str) -> None:
        self._events, self._name, self._looks = events, name, 0

    def begin(self) -> None:
        self._events.append(f"begin {self._name}")

    def is_ready(self) -> bool:
        self._looks += 1
        if self._looks == 2:
            self._events.append(f"ready {self._name}")
        return self._looks >= 2

    def stop(self) -> None:
        self._events.append(f"stop {self._name}")


@pytest.mark.parametrize(
    ("gpus", "begun"),
    [
        (["0", "1"], ["begin 0", "ready 0", "begin 1", "ready 1"]),  # both on the second
        (["0", "1", "2"], ["begin 0", "begin 1", "ready 0", "ready 1"]),
        ([], ["begin 0", "begin 1", "ready 0", "ready 1"]),
    ],
)
def test_servers_start_together_and_those_that_share_a_gpu_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: list[str], begun: list[str]
) -> None:
    """vLLM measures how much of a GPU it uses while it starts, and others' use would count as its own."""
    events, number = list[str](), count()
    monkeypatch.setattr(
        "gumshoe.training.launch.servers.VLLMServer", lambda *_, **__: Starting(events, str(next(number)))
    )
    monkeypatch.setattr("gumshoe.training.launch.servers._POLL", 0.01)
    with create_servers(TrainSettings(), tmp_path, allocate_gpus(gpus, 1, 2)):
        assert events == begun
    assert sorted(events[4:]) == ["stop 0", "stop 1"]


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
    with raises("training.stopped-before-start"), exit_on_sigterm():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_run_that_cannot_be_noted_for_want_of_room_leaves_the_note_that_was_there(small_disk: Path) -> None:
    text = "{}"
    spec: Any = SimpleNamespace(directory=small_disk, model_dump_json=lambda **_: text)
    _write_spec(spec)
    (small_disk / "mail").write_bytes(bytes(4 << 20))
    text = "x" * (2 << 20)
    with raises("training.disk-full", small_disk):
        _write_spec(spec)
    assert [each.read_text() for each in small_disk.glob("*.json")] == ["{}\n"]


@pytest.mark.parametrize("name", ["checkpoint-500", "runs", "best_model"])
def test_a_directory_with_something_else_s_files_is_left_alone(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    wanted: Any = SimpleNamespace(directory=tmp_path)
    with raises("training.foreign-files", tmp_path, f" {name},"):
        _prepare_new_run(wanted, replace_run=False)
    assert (tmp_path / name).exists()
    _prepare_new_run(wanted, replace_run=True)
    assert not (tmp_path / name).exists()
