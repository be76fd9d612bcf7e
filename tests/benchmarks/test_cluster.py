"""The simulation of trainers and servers: each part against what can be worked out, and its answer in words."""

import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gumshoe.training.records import write_record
from gumshoe.training.run_spec import METRICS, SPEC, RunSpec
from gumshoe.training.settings import resolve
from tests.benchmarks.cluster import ESTIMATED, compared, main, phases_of, quickest, read_phases, read_run, simulate
from tests.benchmarks.simulation import (
    Phases,
    Work,
    best_interval,
    daly,
    lost_share,
    roll_out,
    server_loss,
    steps,
    young,
)
from tests.errors import raises
from tests.training.test_records import step as step_record


def phases(**more: Any) -> Phases:
    values: dict[str, Any] = {
        "source": "a test",
        "episode_seconds": {0: 10, 1: 10},
        "slowdown": 0.0,
        "slots": 4,
        "turns": 5,
        "tokens": 100,
        "token_seconds": 0.01,
        "server_detection_seconds": 3,
        "server_restart_seconds": 50,
    }
    return Phases.model_validate({**values, **more})


def rolled(work: list[float], servers: int, found: Phases, lost_at: float = math.inf) -> list[float]:
    return [round(each, 6) for each in roll_out(np.array(work), servers, found, lost_at).ends]


def test_episodes_end_after_their_own_seconds_where_nothing_slows_them_down() -> None:
    assert rolled([3, 1, 2], 1, phases()) == [3, 1, 2]


def test_what_servers_have_no_place_for_waits() -> None:
    assert rolled([10] * 6, 1, phases()) == [10] * 4 + [20] * 2
    assert rolled([10] * 6, 2, phases()) == [10] * 6


def test_episodes_slow_those_on_the_same_server_down() -> None:
    slow = phases(slowdown=0.5)
    assert rolled([10] * 4, 1, slow) == [25] * 4  # each has three others
    assert rolled([10] * 4, 2, slow) == [15] * 4
    assert rolled([10] * 4, 4, slow) == [10] * 4
    assert rolled([10, 20], 1, slow) == [15, 25]  # from 15 on, the second is alone with half of its work


def test_no_number_of_servers_is_quicker_than_the_slowest_episode() -> None:
    assert max(rolled([1.0] * 200 + [30.0], 1000, phases(slowdown=0.1))) == 30


def test_one_process_drives_so_many_turns_a_second_and_no_more() -> None:
    ends = rolled([10] * 100, 100, phases(calls_per_second=10))
    assert max(ends) == 50  # 100 episodes of 5 turns


def test_the_episodes_of_a_lost_server_begin_their_turn_again_on_another() -> None:
    # 9 of 10 seconds are over, of which the last whole turn, of 2, ended at 8; the loss is known at 12.
    assert rolled([10, 10], 2, phases(), lost_at=9) in ([14, 10], [10, 14])


def test_without_another_server_they_wait_until_it_is_back() -> None:
    assert rolled([10, 10], 1, phases(), lost_at=9) == [9 + 3 + 50 + 2] * 2


def test_groups_that_teach_nothing_are_drawn_again_as_often_as_draws_say() -> None:
    (step,) = steps(phases(), Work(8, 4, flat=1.0, draws=3), 8, 2, 1)
    assert (step.rollouts, step.slowest, step.training) == (30, 30, 0)
    (step,) = steps(phases(), Work(8, 4, draws=3), 8, 2, 1)
    assert (step.rollouts, step.training) == (10, 8 * 4 * 100 * 0.01 / 2)


def test_a_step_is_rollouts_training_and_the_adapter_on_its_way() -> None:
    found = phases(save_seconds=1, send_seconds=2, load_seconds=3, update_seconds=4, exchange_seconds=5)
    alone, several = simulate(found, Work(8, 4), 8, 1, 2), simulate(found, Work(8, 4), 8, 4, 2)
    assert (alone.publishing, alone.training, several.training) == (6, 32 + 4, 8 + 4 + 5)
    assert alone.step == pytest.approx(10 + 36 + 6)
    assert alone.trainers_used == pytest.approx(36 / 52)
    assert alone.servers_used == pytest.approx(10 / 52)  # 32 episodes fill 8 servers
    assert alone.gpu_hours == pytest.approx(9 * 52 / 3600)


def test_groups_that_cannot_be_shared_out_are_refused() -> None:
    with pytest.raises(ValueError, match=r"8 groups .* 3 trainers"):
        list(steps(phases(), Work(8, 4), 1, 3, 1))
    with raises("benchmarks.invalid-cluster", "1 GPUs"):
        quickest(phases(), Work(8, 4), 1, 1)


def test_the_quickest_division_gives_gpus_to_what_takes_longest() -> None:
    slow_episodes = phases(episode_seconds={0: 100, 1: 100}, slowdown=1.0, token_seconds=1e-4)
    slow_training = phases(token_seconds=1.0)
    assert quickest(slow_episodes, Work(32, 4), 32, 2).servers > 24
    assert quickest(slow_training, Work(32, 4), 32, 2).trainers == 16


def test_thousands_of_gpus_take_seconds() -> None:
    started = time.process_time()
    found = quickest(read_phases(ESTIMATED), Work(512, 8), 4096, 2)
    assert found.gpus <= 4096
    assert time.process_time() - started < 20


def test_a_lost_server_costs_its_restart_at_most_where_there_are_others() -> None:
    cost, error = server_loss(phases(), Work(8, 4), 8, 1, tries=40)
    assert 0 < cost < 53
    assert error < cost
    alone, _ = server_loss(phases(), Work(8, 4), 1, 1, tries=40)
    assert alone > cost


@pytest.mark.parametrize(("checkpoint", "hours"), [(30.0, 2.0), (300.0, 24.0)])
def test_the_best_interval_is_that_of_the_formulas(checkpoint: float, hours: float) -> None:
    between = hours * 3600
    every, share = best_interval(60.0, checkpoint, 120.0, between)
    by_formula = daly(checkpoint, between)
    assert every * 60 == pytest.approx(by_formula, rel=0.35)  # it is flat there
    assert share == pytest.approx(lost_share(60.0, round(by_formula / 60), checkpoint, 120.0, between), abs=0.003)
    assert by_formula == pytest.approx(young(checkpoint, between), rel=0.2)


def test_what_is_lost_is_what_daly_s_complete_model_says() -> None:
    """Equation 13 of his paper: M · exp(R / M) · (exp((t + d) / M) - 1) for each interval of t."""
    work, checkpoint, restart, between = 1200.0, 60.0, 300.0, 7200.0
    took = between * math.exp(restart / between) * (math.exp((work + checkpoint) / between) - 1)
    assert lost_share(60.0, 20, checkpoint, restart, between, 200_000) == pytest.approx(1 - work / took, abs=0.002)
    assert lost_share(60.0, 20, checkpoint, restart, math.inf) == pytest.approx(60 / 1260)


def run_at(directory: Path, concurrency: int, alone: float, slowdown: float, flat: int = 0, **more: Any) -> Path:
    """What a run of 32 episodes a step leaves, each of which slows the others down, but for what takes no time."""
    flags = {"rollouts.concurrency": concurrency, "optimizer.gradient_accumulation_steps": 8}
    spec = RunSpec(
        settings=resolve("tiny", flags, {}).settings,
        index=directory,
        scenarios="",
        content="",
        searched="",
        run=f"at{concurrency}",
        attempt=1,
    )
    directory.mkdir()
    (directory / SPEC).write_text(spec.model_dump_json())
    seconds = alone * (1 + slowdown * (concurrency - 1))
    for number in (1, 2, 3):
        record = step_record(
            number,
            scenarios=tuple(map(str, range(8))),
            groups=8 - flat,
            tokens=64 * 500,
            rollout_seconds=64 / concurrency * seconds,
            episode_seconds={0: seconds, 1: seconds},
            train_seconds=16.0,
            publish_seconds=0.25,
            **more,
        )
        write_record(directory / METRICS, record)
    return directory


def test_phase_times_are_taken_from_runs(tmp_path: Path) -> None:
    runs = [read_run(run_at(tmp_path / str(each), each, 2.0, 0.1)) for each in (4, 32)]
    found = phases_of(runs, {"server_restart_seconds": 7})
    assert found.mean_episode == pytest.approx(2.0)
    assert found.slowdown == pytest.approx(0.1)
    assert (found.slots, found.tokens, found.load_seconds, found.server_restart_seconds) == (32, 500, 0.25, 7)
    assert found.token_seconds == pytest.approx(16 / 32000)
    again = simulate(found, Work(8, 8), 1, 1, 2)
    assert again.rollouts == pytest.approx(64 / 32 * 2 * 4.1)
    assert again.training == pytest.approx(16)


def test_predictions_stand_beside_what_a_run_had(tmp_path: Path) -> None:
    runs = [read_run(run_at(tmp_path / str(each), each, 2.0, 0.1)) for each in (4, 32)]
    rows = compared(phases_of(runs, {}), Work(8, 8), 1, 1, runs[1])
    assert [row[:2] for row in rows] == [["1 trainer, 1 server", name] for name in ("rollouts", "training", "step")]
    assert rows[1][2:] == ["16.0", "16.0 ± 0.0", "+0%"]
    real = 64 / 32 * 2 * 4.1 + 16 + 0.25
    assert rows[2][2:] == [f"{real:.1f}", f"{real:.1f} ± 0.0", "+0%"]
    fewer = read_run(run_at(tmp_path / "fewer", 32, 2.0, 0.1, flat=4))
    assert float(compared(phases_of(runs, {}), Work(8, 8), 1, 1, fewer)[1][2]) == pytest.approx(8, rel=0.1)


def test_runs_that_do_not_tell_how_episodes_slow_each_other_down_are_refused(tmp_path: Path) -> None:
    run = read_run(run_at(tmp_path / "run", 8, 2.0, 0.1))
    with raises("benchmarks.invalid-cluster", "rollouts.concurrency"):
        phases_of([run], {})
    assert phases_of([run], {"slowdown": 0.1}).mean_episode == pytest.approx(2.0)
    with raises("benchmarks.invalid-cluster", tmp_path):
        read_run(tmp_path)


def test_the_answer_is_in_plain_words_and_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(run_at(tmp_path / str(each), each, 2.0, 0.1)) for each in (4, 32)]
    file = tmp_path / "phases.json"
    main(["--measure", *runs, "--out", str(file)])
    asked = [str(file), "--groups", "8", "--episodes", "8", "--gpus", "2", "8", "--steps", "2", "--flat", "0"]
    main(asked)
    shown = capsys.readouterr().out
    assert "Each draw waits for its slowest episode: alone, those take 2.0 s of a step" in shown
    assert "Save every" in shown
    main([*asked, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [each["gpus"] for each in found["answers"]] == [2, 8]
    assert found["answers"][0]["losses"]["save_every"] >= 1
    assert found["advice"][0].startswith("For 64 episodes a step")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere.yaml"], "nowhere.yaml"),
        (["--set", "slots=0"], "slots"),
        (["--set", "episode_seconds={0: 2, 1: 1}"], "episode_seconds"),
        (["--servers", "2"], "--trainers"),
        (["--compare", "transformers", "--steps", "1"], "--steps"),
        (["--servers", "2", "--trainers", "3"], "64 groups .* 3 trainers"),
    ],
)
def test_a_mistake_is_told_of(words: list[str], said: str) -> None:
    with pytest.raises(SystemExit, match=said):
        main(words)
