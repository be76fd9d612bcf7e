"""The parts of a run, without a model: validation, reports, work that can be stopped, and the watchdog."""

import asyncio
import json
import math
import sqlite3
import sys
import threading
from contextlib import nullcontext
from datetime import date
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from gumshoe.environments.base import EpisodeState
from gumshoe.rollouts.trajectory import Span, Trajectory
from gumshoe.scenarios.scenario import Scenario, ScenarioSet
from gumshoe.training.grpo.rollout_collector import Accuracy, RolloutBatch, ScoredGroup
from gumshoe.training.progress_file import ProgressFile
from gumshoe.training.records import EvaluationRecord, read_records
from gumshoe.training.run_spec import METRICS, PROGRESS, RunSpec
from gumshoe.training.settings import TrainSettings
from gumshoe.training.settings_sources import resolve
from tests.errors import raises
from tests.training.test_records import evaluation, step
from tests.waiting import Clock

HOUR = 3600.0


def scored(number: int, reward: float) -> ScoredGroup:
    """Return a group of one episode."""
    scenario = Scenario(
        id=str(number),
        question=f"Question {number}?",
        answer="A",
        message_ids=(f"<{number}@x>",),
        inbox_address="a@x.example",
        query_date=date(2024, 1, 1),
    )
    spans = [Span("prompt", "p", (1,)), Span("sampled", "s", (2,), (-0.1,))]
    trajectory = Trajectory(str(number), 0, "policy", "answer", "", spans, EpisodeState(answer="A"), 1, 0.0, 0.0)
    return ScoredGroup(scenario, (trajectory,), (reward,))


def validator(directory: Path, questions: int = 4, found: RolloutBatch | None = None) -> Any:
    """Return a validator whose collector returns `found`, and whose judge accepts every answer."""
    from gumshoe.rewards.judge import Verdict
    from gumshoe.training.grpo.validation import Validator

    class Collector:
        async def measure(self, *_: object) -> RolloutBatch | None:
            return found

    class Judge:
        async def verdict(self, *_: object) -> Verdict:
            return Verdict(True, "accepted")

    scenarios = ScenarioSet(tuple(scored(number, 0.0).scenario for number in range(questions)))
    return Validator(TrainSettings(), scenarios, cast(Any, Collector()), cast(Any, Judge()), directory)


def measurement(rewards: list[float], accuracy: float = 0.5, dropped: int = 0) -> Any:
    from gumshoe.training.grpo.validation import Measurement

    found = RolloutBatch(len(rewards))
    found.scored = [scored(number, reward) for number, reward in enumerate(rewards)]
    found.dropped = {f"dropped-{number}": "server gone" for number in range(dropped)}
    return Measurement(found, Accuracy(accuracy, 0.0))


def test_a_reward_counts_in_a_step_only_if_it_applied_to_an_episode() -> None:
    from gumshoe.training.grpo.step_summary import episode_means

    found = RolloutBatch(2, scored=[scored(1, 0.5), scored(2, 1.5)])
    for each, rubric, only in zip(found.trajectories, (0.5, 1.5), (-1.0, math.nan), strict=True):
        each.rewards = {"rubric": rubric, "one": only, "safe": math.nan, "reward": rubric}
    assert episode_means(found)["rewards"] == {"rubric": 1.0, "one": -1.0}


def test_the_beat_rate_compares_each_question_with_the_policy_before_training(tmp_path: Path) -> None:
    first = validator(tmp_path).record(0, measurement([0.5, 0.5, 0.5, 0.5]), [])
    assert (first.beat_rate, first.best) == (None, True)
    later = validator(tmp_path).record(5, measurement([1.0, 0.5, 0.0, 1.0], accuracy=0.75), [first])
    assert later.beat_rate == (1 + 0.5 + 0 + 1) / 4
    assert (later.best, later.questions, later.reward) == (True, 4, 0.625)
    worse = validator(tmp_path).record(10, measurement([0.0, 0.5], accuracy=0.25, dropped=2), [first, later])
    assert (worse.best, worse.missing, worse.beat_rate) == (False, 2, 0.25)


def test_without_a_baseline_there_is_no_beat_rate(tmp_path: Path) -> None:
    assert validator(tmp_path).record(5, measurement([1.0]), []).beat_rate is None


@pytest.mark.parametrize(
    ("before", "now", "is_best"),
    [
        ([], (0.1, 0), True),
        ([(0, 0.9, 1)], (0.1, 0), True),
        ([(2, 0.5, 0.3)], (0.5, 0.3), False),
        ([(2, 0.5, 0.3)], (0.5, 0.4), True),
        ([(2, 0.5, 0.3), (4, 0.4, 0.9)], (0.5, 0.4), True),
        ([(2, 0.5, 0.3)], (0.4, 0.9), False),
        ([(2, 0.5, 0.3), (4, 0.4, 0.3)], (0.6, -0.1), True),
    ],
)
def test_the_best_adapter_is_the_first_with_the_highest_accuracy_and_then_reward(
    before: list[tuple[int, float, float]], now: tuple[float, float], is_best: bool
) -> None:
    from gumshoe.training.grpo.validation import is_best_trained

    earlier = [evaluation(number, share, reward=reward) for number, share, reward in before]
    assert is_best_trained(evaluation(6, now[0], reward=now[1]), earlier) is is_best
    assert not is_best_trained(evaluation(0, 1.0), []), "the base model is no adapter of the run"


def test_an_evaluation_with_too_many_missing_questions_fails(tmp_path: Path) -> None:
    found = measurement([1.0], dropped=3).rollouts

    class Sampler:
        version, servers = "policy", 1

        def open_policy(self) -> Any:
            return nullcontext()

        def open_runner(self, *_: object) -> Any:
            return nullcontext()

    with raises("training.evaluation-incomplete", "3 of 4", "server gone"):
        asyncio.run(validator(tmp_path, found=found).measure(Sampler()))
    whole = measurement([1.0, 0.0]).rollouts
    assert asyncio.run(validator(tmp_path, found=whole).measure(Sampler())).accuracy.correct == 1.0


def reporter(directory: Path, **settings: Any) -> Any:
    from gumshoe.training.grpo.reporter import RunReporter

    resolved = resolve("tiny", {"output.directory": str(directory), **settings}, {}).settings
    spec = RunSpec(settings=resolved, index=directory, scenarios="", content="", searched="", run="r", attempt=1)
    return RunReporter(spec, 10, resolved.optimizer.algorithm.load(), ProgressFile(directory / PROGRESS, 10))


def test_records_reach_the_file_at_once_and_trackers_when_training_starts(tmp_path: Path) -> None:
    class Handler:
        def __init__(self) -> None:
            self.logged: list[dict[str, float]] = []

        def on_log(self, _: object, __: object, ___: object, values: dict[str, float]) -> None:
            self.logged.append(values)

    class Trainer:
        args = state = control = None
        callback_handler = Handler()

    made = reporter(tmp_path)
    records = [evaluation(0), step(1), step(2)]
    for each in records:
        made.add(each)
    assert list(read_records(tmp_path / METRICS)) == records == made.records
    assert (made.evaluations, made.steps) == (records[:1], records[1:])
    assert Trainer.callback_handler.logged == []
    made.send_to_trackers(Trainer())
    made.send_to_trackers(Trainer())
    assert len(Trainer.callback_handler.logged) == 3, "each once"
    assert reporter(tmp_path).read_records(1) == records[:2]


def test_trackio_receives_the_records_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import trackio  # noqa: F401

    (tmp_path / "trackio").mkdir()
    for name, module in list(sys.modules.items()):  # it reads TRACKIO_DIR once, when it is imported
        if name.startswith("trackio") and hasattr(module, "TRACKIO_DIR"):
            monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio")
    from transformers import DefaultFlowCallback, TrainerControl, TrainerState, integrations, trainer_callback

    from gumshoe.training.grpo.trl_config import grpo_config

    settings = resolve("tiny", {"output.report_to": ["trackio"]}, {}).settings
    tracker = cast(Any, integrations).TrackioCallback()
    new_handler = cast(Any, trainer_callback).CallbackHandler

    class Trainer:
        args, state, control = grpo_config(settings, tmp_path, 10), TrainerState(), TrainerControl()
        callback_handler = new_handler([DefaultFlowCallback(), tracker], None, None, None, None)

    made = reporter(tmp_path)
    made.add(step(1, reward=0.25))
    made.add(evaluation(1, 0.75))
    made.send_to_trackers(Trainer())
    tracker.on_train_end(Trainer.args, Trainer.state, Trainer.control)
    with sqlite3.connect(tmp_path / "trackio" / "gumshoe.db") as database:
        logged = [json.loads(row[0]) for row in database.execute("SELECT metrics FROM metrics ORDER BY id")]
    assert [each.get("train/step/reward") for each in logged] == [0.25, None]
    assert [each.get("train/evaluation/accuracy") for each in logged] == [None, 0.75]


def test_a_step_that_is_off_policy_is_warned_about(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = reporter(tmp_path)
    made.print_step(step(1), RolloutBatch(1), 2.0)
    assert "warning" not in (quiet := capsys.readouterr().err)
    assert "ETA 0:00:18" in quiet, "nine more of two seconds"
    made.print_step(step(2, groups_refused=3, importance_ratio=0.5), RolloutBatch(1), 2.0)
    assert capsys.readouterr().err.count("warning") == 2


@pytest.mark.parametrize(("skipped", "warnings"), [((True, True), 1), ((True, False), 0), ((), 0)])
def test_a_run_that_changed_no_weight_is_warned_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], skipped: tuple[bool, ...], warnings: int
) -> None:
    made = reporter(tmp_path)
    made.records = [
        step(2 * number + use, skipped=each, groups_flat=2, use=use)
        for number, each in enumerate(skipped)
        for use in (1, 2)
    ]
    made.warn_if_all_skipped()
    printed = capsys.readouterr().err
    assert printed.count("warning") == warnings
    assert ("4 groups" in printed) is bool(warnings)


@pytest.mark.ci
def test_plots_are_drawn_again_with_each_evaluation(tmp_path: Path) -> None:
    made = reporter(tmp_path)
    made.add(step(1))
    made.add(evaluation(1))
    made.print_evaluation(cast(EvaluationRecord, made.records[-1]))
    assert (tmp_path / "plots.html").stat().st_size > 1000


@pytest.mark.parametrize("in_thread", [False, True])
def test_work_that_waits_is_stopped_and_no_more_is_accepted(*, in_thread: bool) -> None:
    from gumshoe.training.launch.lifecycle import StoppableRunner
    from gumshoe.training.launch.rendezvous import StopRequestedError

    async def answer(value: int) -> int:
        return value

    async def wait_forever() -> None:
        threading.Timer(0.01, runner.stop).start()
        await asyncio.Event().wait()

    with StoppableRunner(in_thread=in_thread) as runner:
        assert runner.run(answer(1)) == 1
        with pytest.raises(StopRequestedError):
            runner.run(wait_forever())
        with pytest.raises(StopRequestedError):
            runner.run(answer(2))
        assert runner.finish(answer(3)) == 3, "what closes connections"


def test_a_run_without_progress_is_ended_after_its_state_is_written(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Even if nobody reads its message any more."""
    from gumshoe.training.launch import lifecycle

    path, seen, looked, ended = tmp_path / "stalled.txt", [0], threading.Event(), threading.Event()
    statuses: list[int] = []

    def look() -> int:
        looked.set()
        return seen[-1]

    def leave(status: int) -> None:
        statuses.append(status)
        ended.set()

    def wait_for_looks() -> None:
        for _ in range(2):  # the first check may have started before the change
            looked.clear()
            looked.wait()

    broken = Mock(side_effect=BrokenPipeError)
    monkeypatch.setattr(lifecycle, "os", SimpleNamespace(_exit=leave, write=broken))
    watchdog = lifecycle.Watchdog(HOUR, look, lambda: "after step 3", path)
    wait = watchdog._over.wait
    monkeypatch.setattr(watchdog._over, "wait", lambda seconds: wait(min(seconds, 0.01)))
    with watchdog:
        for _ in range(2):
            clock.advance(HOUR - 60)
            seen.append(seen[-1] + 1)
            wait_for_looks()
        assert not statuses
        clock.advance(HOUR + 60)
        ended.wait()
    assert set(statuses) == {75}
    broken.assert_called()
    text = path.read_text()
    first, second, *_ = text.splitlines()
    assert ("3600 seconds" in first, second) == (True, "after step 3")
    assert "Thread 0x" in text


@pytest.mark.parametrize("kind", ["linear", "cosine", "constant_with_warmup"])
@pytest.mark.parametrize("warmup", [0, 3])
def test_learning_rates_follow_the_schedule_from_the_first_step_on(kind: str, warmup: int) -> None:
    rates = run_schedule(kind, warmup, steps=9)
    assert rates[: warmup + 1] == pytest.approx([(step + 1) / (warmup + 1) for step in range(warmup + 1)])
    assert min(rates) > 0
    assert all(one >= other for one, other in pairwise(rates[warmup:]))


def test_a_longer_run_resumes_with_the_rate_of_its_own_schedule() -> None:
    saved: list[dict[str, Any]] = []
    assert run_schedule("linear", 0, steps=4, saved=saved) == pytest.approx([1, 0.75, 0.5, 0.25])
    assert run_schedule("linear", 0, steps=8, saved=saved) == pytest.approx([0.5, 0.375, 0.25, 0.125])


def run_schedule(kind: str, warmup: int, steps: int, saved: list[dict[str, Any]] | None = None) -> list[float]:
    """Return the rate of each step, of a peak of 1, after the states in `saved`, which become those at the end."""
    import torch
    from transformers import get_scheduler

    from gumshoe.training.launch.lifecycle import set_learning_rates

    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))], lr=1)
    scheduler = get_scheduler(kind, optimizer, warmup, steps)
    for each, state in zip((optimizer, scheduler), saved or (), strict=False):
        each.load_state_dict(state)
    set_learning_rates(scheduler, warmup)
    rates = []
    for _ in range(scheduler.last_epoch, steps):
        assert scheduler.get_last_lr() == [optimizer.param_groups[0]["lr"]]
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    if saved is not None:
        saved[:] = [optimizer.state_dict(), scheduler.state_dict()]
    return rates


def test_sharded_gradients_are_added_up_in_32_bits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import torch

    from gumshoe.training.grpo import trl_config
    from gumshoe.training.sft import sft_trainer
    from gumshoe.training.sft.batch_plan import BatchPlan

    settings = resolve("tiny", {"model.dtype": "bfloat16"}, {}).settings
    assert cast(Any, trl_config.grpo_config(settings, tmp_path, 1)).fsdp_plugin_args is None
    sharded = {"use_cpu": True, "fsdp": True, "fsdp_config": {"version": 2}}
    for module in (trl_config, sft_trainer):  # the real arguments would connect processes
        monkeypatch.setattr(module, "sharding_config", lambda *_: dict(sharded))
    for made in (
        trl_config.grpo_config(settings, tmp_path, 1),
        sft_trainer.sft_config(settings, tmp_path, BatchPlan(1, 1, 1, 2)),
    ):
        policy = cast(Any, made).fsdp_plugin_args["mixed_precision_policy"]
        assert (policy.param_dtype, policy.reduce_dtype) == (torch.bfloat16, torch.float32)
        assert policy.output_dtype is None
