"""What a run tells about its progress, and the view of a run's directory."""

import json
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gumshoe.artifacts.storage import lock_directory
from gumshoe.environments.base import EpisodeState
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.terminal import ProgressLines
from gumshoe.training.commands import watch
from gumshoe.training.curves import draw_curve, find_range
from gumshoe.training.progress_file import ProgressFile, read_progress
from gumshoe.training.records import write_record
from gumshoe.training.run_directory import TRAININGS
from gumshoe.training.run_spec import FINAL, METADATA, METRICS, PROGRESS, SPEC, RunSpec
from gumshoe.training.run_view import find_run, read_run
from gumshoe.training.settings_sources import resolve
from tests.conftest import CommandResult
from tests.errors import raises
from tests.scenarios.questions import scenario
from tests.training.test_records import evaluation, step
from tests.waiting import Clock

Run = Callable[..., CommandResult]


def trajectory(number: int, reward: float) -> Trajectory:
    record = EpisodeState(answer=f"Answer {number}")
    return Trajectory(f"q{number}", 0, "policy", "answer", "", [], record, 2, 0.0, 0.0, rewards={"reward": reward})


def test_progress_is_written_when_a_phase_begins_and_then_every_second(tmp_path: Path) -> None:
    clock = Clock()
    file = ProgressFile(tmp_path / PROGRESS, 10, clock.now)
    file.step = 3
    lines = ProgressLines("Rollouts", clock=clock.now)
    advance = file.follow("Rollouts", 8, lines.advance)
    file.add_episodes(scenario(1), [trajectory(1, 0.5)])
    advance(4, note="8 running")
    found = read_progress(tmp_path / PROGRESS)
    assert found is not None
    assert (found.phase, found.step, found.steps, found.done, found.total) == ("Rollouts", 3, 10, 0, 8)
    clock.advance(1.5)
    advance(2)
    found = read_progress(tmp_path / PROGRESS)
    assert found is not None
    assert (found.done, found.note) == (6, "8 running")
    (episode,) = found.episodes
    assert (episode.question, episode.answer, episode.reward) == (scenario(1).question, "Answer 1", 0.5)


def test_only_the_newest_episodes_are_kept(tmp_path: Path) -> None:
    file = ProgressFile(tmp_path / PROGRESS)
    for number in range(20):
        file.add_episodes(scenario(number), [trajectory(number, 0.0)])
    file.follow("Training", None, ProgressLines("").advance)
    found = read_progress(tmp_path / PROGRESS)
    assert found is not None
    assert [each.scenario for each in found.episodes] == [f"q{number}" for number in range(19, 11, -1)]


def test_progress_that_cannot_be_written_does_not_end_a_run(tmp_path: Path) -> None:
    ProgressFile(tmp_path / "missing" / PROGRESS).follow("Training", 1, ProgressLines("").advance)(1)
    ProgressFile().follow("Training", 1, ProgressLines("").advance)(1)
    assert list(tmp_path.iterdir()) == []


def make_run(directory: Path, **more: Any) -> Path:
    """Write the directory of a run of 10 steps that has done two."""
    directory.mkdir(parents=True)
    settings = resolve("tiny", {"output.directory": str(directory), "optimizer.max_steps": 10}, {}).settings
    given = {"index": directory, "scenarios": "", "content": "", "searched": "", "run": "r7", "attempt": 1, **more}
    (directory / SPEC).write_text(RunSpec(settings=settings, **given).model_dump_json())
    for record in (evaluation(0, 0.25), step(1), step(2, reward=0.5), evaluation(2, 0.75)):
        write_record(directory / METRICS, record)
    return directory


def finish(directory: Path) -> None:
    (directory / FINAL).mkdir()
    (directory / FINAL / METADATA).touch()


def test_a_run_is_viewed_while_it_writes(tmp_path: Path) -> None:
    place = make_run(tmp_path / "run")
    with (place / METRICS).open("ab") as file:
        file.write(b'{"event":"step","step":3,"lo')
    (place / PROGRESS).write_text('{"phase": "Tr')
    with lock_directory(place, None):
        view = read_run(place)
    assert (view.state, view.run, view.step, view.length) == ("running", "r7", 2, 10)
    assert (view.facts["model"], view.facts["mode"], view.progress) == ("tiny", "masked", None)
    assert [each.accuracy for each in view.evaluations] == [0.25, 0.75]
    each = view.steps[-1]
    assert view.seconds_left == pytest.approx(8 * (each.rollout_seconds + each.train_seconds))


def test_the_newest_training_of_a_pipeline_run_is_found(tmp_path: Path) -> None:
    pipeline = tmp_path / "pipeline"
    pipeline.mkdir()
    (pipeline / SPEC).write_text(json.dumps({"pipeline": "pipeline.yaml"}))
    assert find_run(pipeline) is None
    older = make_run(pipeline / TRAININGS / "gumshoe-train-1")
    os.utime(older / SPEC, (0, 0))
    own = make_run(pipeline / TRAININGS / "gumshoe-train-2")
    assert find_run(pipeline) == own
    assert find_run(own) == own
    with lock_directory(pipeline, None):
        assert find_run(pipeline) is None  # another attempt follows
        with lock_directory(own, None):
            assert find_run(pipeline) == own


def test_watch_ends_with_the_pipeline_run(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step removes the directory of its training, and the evaluation follows."""
    pipeline = tmp_path / "pipeline"
    pipeline.mkdir()
    (pipeline / SPEC).write_text(json.dumps({"pipeline": "pipeline.yaml"}))
    locks = ExitStack()
    locks.enter_context(lock_directory(pipeline, None))
    assert run("watch", pipeline).code == "training.not-started"
    place = make_run(pipeline / TRAININGS / "gumshoe-train-1")
    training = ExitStack()
    training.enter_context(lock_directory(place, None))

    def remove() -> None:
        training.close()
        shutil.rmtree(place)

    changes = [remove, locks.close]
    monkeypatch.setattr(watch, "time", SimpleNamespace(sleep=lambda _: changes.pop(0)()))
    last = watch._follow(pipeline)
    assert last is not None
    assert (last.state, last.step, changes) == ("ended", 2, [])
    assert run("watch", pipeline).status == 0


def test_a_directory_without_a_run_is_an_error(tmp_path: Path) -> None:
    for content in (None, "{}", "not JSON", "[]"):
        if content is not None:
            (tmp_path / SPEC).write_text(content)
        with raises("training.no-run", tmp_path):
            find_run(tmp_path)


def test_watch_shows_a_run_and_exits_with_its_outcome(run: Run, tmp_path: Path) -> None:
    place = make_run(tmp_path / "run")
    file = ProgressFile(place / PROGRESS, 10)
    file.step = 3
    file.add_episodes(scenario(1), [trajectory(1, 0.5)])
    file.follow("Rollouts for training", 8, ProgressLines("").advance)
    before = {each: each.stat().st_mtime_ns for each in place.iterdir()}
    with lock_directory(place, None):
        ran = run("watch", place)
    assert ran.status == 0
    for shown in (
        "Run r7 running: step 2 of 10",
        "Validation accuracy 75%",
        "in step 3: Rollouts for training, 0 of 8",
    ):
        assert shown in ran.out
    assert "+0.50  What does message 1 say?" in ran.out
    stopped = run("watch", place, "--once")
    assert (stopped.status, stopped.code) == (1, "training.run-stopped")
    finish(place)
    assert run("watch", place).status == 0
    assert {each: each.stat().st_mtime_ns for each in before} == before
    shutil.rmtree(place)
    assert run("watch", place).code == "training.no-run"


def test_curves_rise_from_the_left_to_the_right() -> None:
    lines = draw_curve({step: float(step) for step in range(1, 101)}, 10, 2, 1, 100)
    assert [len(each) for each in lines] == [10, 10]
    blank = "\N{BRAILLE PATTERN BLANK}"
    assert lines[0].startswith(blank * 4)
    assert lines[1].endswith(blank * 4)
    assert blank not in lines[0][-4:] + lines[1][:4]


@pytest.mark.parametrize(
    ("values", "expected"), [([1.0, 3.0], (1.0, 3.0)), ([2.0, 2.0], (1.8, 2.2)), ([0.0], (-0.1, 0.1))]
)
def test_the_axis_spans_the_values(values: list[float], expected: tuple[float, float]) -> None:
    assert find_range(values) == pytest.approx(expected)


def test_one_value_is_one_dot() -> None:
    (line,) = draw_curve({5: 1.0}, 3, 1, 0, 2)
    assert sum(each != "\N{BRAILLE PATTERN BLANK}" for each in line) == 1
