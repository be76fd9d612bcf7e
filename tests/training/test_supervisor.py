"""The supervisor: restarts of servers, exit statuses, and preparation of directories, without real servers."""

import json
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

from gumshoe.scenarios.lineage import Lineage
from gumshoe.scenarios.scenario import ScenarioSet
from gumshoe.training.launch import supervisor
from gumshoe.training.launch.checkpoint_sync import INCOMING
from gumshoe.training.launch.servers import Servers, create_servers
from gumshoe.training.launch.supervisor import (
    _prepare_new_run,
    _resume_spec,
    _write_spec,
    check_exit_status,
    exit_on_sigterm,
    exit_status_of,
    start_trainers,
)
from gumshoe.training.launch.supervisor import wait_for_trainers as wait_for_trainers
from gumshoe.training.planning.gpu_allocation import allocate_gpus
from gumshoe.training.run_spec import BEST, BEST_BEFORE, METADATA, STALLED, RunSpec, find_best
from gumshoe.training.settings import TrainSettings
from gumshoe.training.settings_sections import OutputSettings
from tests.errors import raises
from tests.scenarios.questions import scenario

SAVING_SCRIPT = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
print(flush=True)
sys.stdin.read()
"""


class EndingServer:
    """A server that ends after each start, until `restarted` returns True for the number of restarts."""

    def __init__(
        self,
        restarted: Callable[[int], bool],
        *,
        adapters: dict[str, Path] | None = None,
        is_running: bool = False,
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self.restarts, self._restarted, self._is_running = 0, restarted, is_running
        self._adapters, self.is_ready = adapters or {}, is_ready

    def is_running(self) -> bool:
        return self._is_running

    def restart(self, adapters: Any) -> None:
        assert adapters == self._adapters
        self.restarts += 1
        self._is_running = self._restarted(self.restarts)

    def log_tail(self) -> str:
        return "last line"


class _StoppedServer(EndingServer):
    """A server that ends when this process is asked to stop, once: another signal would kill a trainer that exits."""

    has_asked = False
    number = signal.SIGTERM

    def is_running(self) -> bool:
        if not self.has_asked:
            self.has_asked = True
            os.kill(os.getpid(), self.number)
        return False


@pytest.fixture(autouse=True)
def _poll_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_POLL", 0.01)


@pytest.fixture
def trainer() -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that ends when its standard input is closed."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        yield process


def wait_for_trainer(directory: Path, trainer: subprocess.Popen[bytes], *servers: Any) -> int:
    return wait_for_trainers(iter([trainer]), Servers(servers, directory))


def test_a_server_that_keeps_ending_ends_the_run(trainer: subprocess.Popen[bytes], tmp_path: Path) -> None:
    server = EndingServer(lambda _: False)
    with raises("training.server-keeps-ending", "3 times", "last line"):
        wait_for_trainer(tmp_path, trainer, server)
    assert server.restarts == 2
    assert trainer.poll() == 0, "the trainer has ended too"


def test_a_server_is_restarted_if_steps_were_made_between(trainer: subprocess.Popen[bytes], tmp_path: Path) -> None:
    def restarted(count: int) -> bool:
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write("{}\n")  # a step
        if count == 5:
            trainer.kill()
        return count == 5

    server = EndingServer(restarted)
    assert wait_for_trainer(tmp_path, trainer, server) == -signal.SIGKILL
    assert server.restarts == 5


def test_only_the_ended_server_is_restarted_with_the_current_adapters(
    trainer: subprocess.Popen[bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others continue while it starts, which may take minutes."""
    (tmp_path / "served.json").write_text('{"policy-6": "/adapters/6", "policy-7": "/adapters/7"}')

    looks = count(1)

    def is_ready() -> bool:
        if next(looks) == 3:
            trainer.kill()
        return False

    first = EndingServer(lambda _: True, is_running=True)
    second = EndingServer(
        lambda _: True, adapters={"policy-6": Path("/adapters/6"), "policy-7": Path("/adapters/7")}, is_ready=is_ready
    )
    assert wait_for_trainer(tmp_path, trainer, first, second) == -signal.SIGKILL
    assert (first.restarts, second.restarts) == (0, 1)
    warned = capsys.readouterr().err
    assert "vLLM 2" in warned
    assert "vLLM 1" not in warned


@pytest.mark.parametrize(
    ("codes", "expected"),
    [([], 0), ([75, 1], 1), ([1, 247], 247), ([250, 2], 2), ([250, 75], 75), ([143, 75], 143), ([250], 250)],
)
def test_the_exit_status_explains_why_trainers_ended(codes: list[int], expected: int) -> None:
    assert exit_status_of(codes) == expected


@pytest.mark.parametrize("codes", [(75, 1), (1, 75)], ids=["first", "last"])
def test_the_failed_trainer_decides_the_status(
    codes: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order does not matter: the other trainer ends while the supervisor waits."""
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
    assert wait_for_trainers(iter(trainers), Servers((), tmp_path)) == 1
    assert pauses == [supervisor._POLL, supervisor._SETTLE]


class RecordingServer:
    """A server that is ready at the second check, and records what is done with it."""

    def __init__(self, events: list[str], name: str) -> None:
        self._events, self._name, self._looks = events, name, 0

    def start(self) -> None:
        self._events.append(f"start {self._name}")

    def is_ready(self) -> bool:
        self._looks += 1
        if self._looks == 2:
            self._events.append(f"ready {self._name}")
        return self._looks >= 2

    def stop(self) -> None:
        self._events.append(f"stop {self._name}")


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        (["0", "1"], ["start 0", "ready 0", "start 1", "ready 1"]),  # both on the second
        (["0", "1", "2"], ["start 0", "start 1", "ready 0", "ready 1"]),
        ([], ["start 0", "start 1", "ready 0", "ready 1"]),
    ],
)
def test_servers_on_one_gpu_start_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: list[str], expected: list[str]
) -> None:
    """While vLLM starts, it measures the memory use of its GPU, and would count that of another server."""
    events, number = list[str](), count()
    monkeypatch.setattr(
        "gumshoe.training.launch.servers.VLLMServer", lambda *_, **__: RecordingServer(events, str(next(number)))
    )
    monkeypatch.setattr("gumshoe.training.launch.servers._POLL", 0.01)
    with create_servers(TrainSettings(), tmp_path, allocate_gpus(gpus, 1, 2)):
        assert events == expected
    assert sorted(events[4:]) == ["stop 0", "stop 1"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["asked to stop", "terminal closed"])
def test_no_server_is_restarted_after_a_stop_request(tmp_path: Path, number: signal.Signals) -> None:
    """All processes get the signal at once, and the trainer is still saving."""
    with subprocess.Popen(
        [sys.executable, "-c", SAVING_SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        server = _StoppedServer(lambda _: True)
        server.number = number
        assert wait_for_trainer(tmp_path, process, server) == 75
    assert server.restarts == 0


def test_a_stop_request_before_training_ends_it_at_once() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with raises("training.stopped-before-start"), exit_on_sigterm():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_full_disk_keeps_the_previous_specification(small_disk: Path) -> None:
    text = "{}"
    spec: Any = SimpleNamespace(directory=small_disk, model_dump_json=lambda **_: text)
    _write_spec(spec)
    (small_disk / "mail").write_bytes(bytes(4 << 20))
    text = "x" * (2 << 20)
    with raises("training.disk-full", small_disk):
        _write_spec(spec)
    assert [each.read_text() for each in small_disk.glob("*.json")] == ["{}\n"]


@pytest.mark.parametrize("name", ["checkpoint-500", "runs", "best_model", BEST_BEFORE])
def test_foreign_files_are_not_overwritten(name: str, tmp_path: Path) -> None:
    for each in (name, INCOMING):
        (tmp_path / each).mkdir()
    wanted: Any = SimpleNamespace(directory=tmp_path)
    with raises("training.foreign-files", tmp_path, f" {name},"):
        _prepare_new_run(wanted, replace_run=False)
    assert (tmp_path / name).exists()
    _prepare_new_run(wanted, replace_run=True)
    assert list(tmp_path.iterdir()) == []


def make_spec(directory: Path, **changes: Any) -> RunSpec:
    """Return the specification of a run, and write it if nothing is changed."""
    settings = TrainSettings(output=OutputSettings(directory=directory))
    plain = {"content": "c", "searched": "i", "run": "r1", "attempt": 1, **changes}
    spec = RunSpec(settings=settings, index=directory / "index", scenarios="s.jsonl", **plain)
    if not changes:
        _write_spec(spec)
    return spec


def test_trainers_hold_the_lock_of_their_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They may still be saving after this process was killed."""
    started = list[dict[str, Any]]()
    monkeypatch.setattr("subprocess.Popen", lambda _, **options: started.append(options))
    list(start_trainers("any.module", tmp_path / "run.json", 2, allocate_gpus([], 2, 0), 7))
    assert [each["pass_fds"] for each in started] == [[7], [7]]


@pytest.mark.parametrize(("changed", "value"), [("searched", "the index"), ("content", "the scenarios")])
def test_a_run_is_not_resumed_with_other_data(changed: str, value: str, tmp_path: Path) -> None:
    first = make_spec(tmp_path)
    resumed = _resume_spec(make_spec(tmp_path, run="r2"))
    assert resumed is not None
    assert (resumed.run, resumed.attempt, resumed.resume) == (first.run, 2, True)
    with raises("training.other-settings", tmp_path, f"({value})"):
        _resume_spec(make_spec(tmp_path, **{changed: "another"}))


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_a_resumed_run_has_the_lineage_of_what_it_continues(has_checkpoint: bool, tmp_path: Path) -> None:
    """Checkpoints have learned from the adapter of the first start, whatever the run would start from now."""
    make_spec(tmp_path)
    if has_checkpoint:
        (tmp_path / "checkpoint-5").mkdir()
        (tmp_path / "checkpoint-5" / METADATA).write_text("{}")
    other = Lineage.of(ScenarioSet((scenario(1, split="train"),)))
    resumed = _resume_spec(make_spec(tmp_path, before=other))
    assert resumed is not None
    assert resumed.before == (None if has_checkpoint else other)


@pytest.mark.parametrize(
    ("best", "before", "expected"),
    [
        (None, 5, 5),  # killed while it was replaced
        (10, 5, 5),  # killed after it was replaced, before a checkpoint
        (10, None, None),
        (5, 3, 5),  # killed after the checkpoint was complete
        (5, None, 5),
    ],
)
def test_a_resumed_run_has_the_best_adapter_of_its_last_checkpoint(
    best: int | None, before: int | None, expected: int | None, tmp_path: Path
) -> None:
    make_spec(tmp_path)
    for name, step in ((BEST, best), (BEST_BEFORE, before), ("checkpoint-5", 5)):
        if step is not None:
            (tmp_path / name).mkdir()
            (tmp_path / name / METADATA).write_text(json.dumps({"step": step}))
    _resume_spec(make_spec(tmp_path, run="r2"))
    found = tmp_path / BEST / METADATA
    assert (json.loads(found.read_bytes())["step"] if found.exists() else None) == expected
    assert not (tmp_path / BEST_BEFORE).exists()


@pytest.mark.group("torch")
def test_the_best_adapter_at_the_last_checkpoint_is_kept_until_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gumshoe.training.grpo.adapter_writer import AdapterWriter

    def save(_: Any, directory: Path, __: Any, step: int, ___: Any = None) -> None:
        directory.mkdir(exist_ok=True)
        (directory / METADATA).write_text(json.dumps({"step": step}))

    writer = AdapterWriter.__new__(AdapterWriter)
    writer._spec = make_spec(tmp_path)
    monkeypatch.setattr(AdapterWriter, "save", save)
    monkeypatch.setattr(AdapterWriter, "complete", lambda _, directory, step, __: save(_, directory, None, step))
    found = []
    for event, step in (("best", 5), ("checkpoint", 10), ("best", 10), ("best", 15), ("best", 20), ("checkpoint", 20)):
        if event == "best":
            writer.save_best(None, step, [])
        else:
            writer.complete_checkpoint(tmp_path / f"checkpoint-{step}", step, [])
        best = find_best(tmp_path)
        found.append(best and json.loads((best / METADATA).read_bytes())["step"])
    assert found == [None, 5, 10, 10, 10, 20]


def test_a_resumed_run_is_no_longer_stalled(tmp_path: Path) -> None:
    make_spec(tmp_path)
    (tmp_path / STALLED).write_text("waiting for a rollout")
    _resume_spec(make_spec(tmp_path, run="r2"))
    assert not (tmp_path / STALLED).exists()


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (75, "training.interrupted"),
        (128 + signal.SIGTERM, "training.interrupted"),
        (256 - signal.SIGKILL, "training.killed"),
        (2, "training.trainer-refused"),
        (1, "training.trainer-failed"),
    ],
)
def test_the_exit_status_of_the_trainers_is_explained(tmp_path: Path, status: int, code: str) -> None:
    with raises(code):
        check_exit_status(status, tmp_path)
    check_exit_status(0, tmp_path)
