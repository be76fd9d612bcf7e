"""The simulation of trainers and servers: each part against results by hand, and the command."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gumshoe.training.records import write_record
from gumshoe.training.run_spec import METRICS, SPEC, RunSpec
from gumshoe.training.settings_sources import resolve
from tests.benchmarks.cluster import (
    ESTIMATED,
    compare_with_run,
    find_fastest,
    main,
    measure_phases,
    read_phases,
    read_run,
    simulate,
)
from tests.benchmarks.simulation import (
    Phases,
    Work,
    best_interval,
    daly_interval,
    lost_share,
    roll_out,
    server_loss,
    steps,
    young_interval,
)
from tests.cpu_time import limit_cpu
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


def ends_of(work: list[float], servers: int, found: Phases, lost_at: float = math.inf) -> list[float]:
    return [round(each, 6) for each in roll_out(np.array(work), servers, found, lost_at).ends]


def test_episodes_without_slowdown_take_their_own_time() -> None:
    assert ends_of([3, 1, 2], 1, phases()) == [3, 1, 2]


def test_episodes_wait_for_free_slots() -> None:
    assert ends_of([10] * 6, 1, phases()) == [10] * 4 + [20] * 2
    assert ends_of([10] * 6, 2, phases()) == [10] * 6


def test_episodes_on_the_same_server_slow_each_other_down() -> None:
    slow = phases(slowdown=0.5)
    assert ends_of([10] * 4, 1, slow) == [25] * 4  # each has three others
    assert ends_of([10] * 4, 2, slow) == [15] * 4
    assert ends_of([10] * 4, 4, slow) == [10] * 4
    assert ends_of([10, 20], 1, slow) == [15, 25]  # from 15 on, the second one is alone, with half of its work left


def test_rollouts_take_at_least_the_slowest_episode() -> None:
    assert max(ends_of([1.0] * 200 + [30.0], 1000, phases(slowdown=0.1))) == 30


def test_turns_per_second_are_limited() -> None:
    ends = ends_of([10] * 100, 100, phases(calls_per_second=10))
    assert max(ends) == 50  # 100 episodes of 5 turns


def test_episodes_of_a_lost_server_repeat_their_turn() -> None:
    # The loss is at 9 of 10 seconds. The last complete turn of 2 seconds ended at 8, and the loss is detected at 12.
    assert ends_of([10, 10], 2, phases(), lost_at=9) in ([14, 10], [10, 14])


def test_episodes_of_the_only_server_wait_for_its_restart() -> None:
    assert ends_of([10, 10], 1, phases(), lost_at=9) == [9 + 3 + 50 + 2] * 2


def test_flat_groups_are_drawn_again() -> None:
    (step,) = steps(phases(), Work(8, 4, flat=1.0, draws=3), 8, 2, 1)
    assert (step.rollouts, step.slowest, step.training) == (30, 30, 0)
    (step,) = steps(phases(), Work(8, 4, draws=3), 8, 2, 1)
    assert (step.rollouts, step.training) == (10, 8 * 4 * 100 * 0.01 / 2)


def test_a_step_is_rollouts_training_and_publishing() -> None:
    found = phases(save_seconds=1, send_seconds=2, load_seconds=3, update_seconds=4, exchange_seconds=5)
    alone, several = simulate(found, Work(8, 4), 8, 1, 2), simulate(found, Work(8, 4), 8, 4, 2)
    assert (alone.publishing, alone.training, several.training) == (6, 32 + 4, 8 + 4 + 5)
    assert alone.step == pytest.approx(10 + 36 + 6)
    assert alone.trainers_used == pytest.approx(36 / 52)
    assert alone.servers_used == pytest.approx(10 / 52)  # 32 episodes fill 8 servers
    assert alone.gpu_hours == pytest.approx(9 * 52 / 3600)


def test_groups_must_be_split_evenly() -> None:
    with pytest.raises(ValueError, match=r"8 groups .* 3 trainers"):
        list(steps(phases(), Work(8, 4), 1, 3, 1))
    with raises("benchmarks.invalid-cluster", "1 GPUs"):
        find_fastest(phases(), Work(8, 4), 1, 1)


def test_the_fastest_division_gives_gpus_to_the_longest_phase() -> None:
    slow_episodes = phases(episode_seconds={0: 100, 1: 100}, slowdown=1.0, token_seconds=1e-4)
    slow_training = phases(token_seconds=1.0)
    assert find_fastest(slow_episodes, Work(32, 4), 32, 2).servers > 24
    assert find_fastest(slow_training, Work(32, 4), 32, 2).trainers == 16


def test_thousands_of_gpus_are_simulated_in_seconds() -> None:
    with limit_cpu(20):
        found = find_fastest(read_phases(ESTIMATED), Work(512, 8), 4096, 2)
    assert found.gpus <= 4096


def test_a_lost_server_costs_at_most_its_restart() -> None:
    cost, error = server_loss(phases(), Work(8, 4), 8, 1, tries=40)
    assert 0 < cost < 53
    assert error < cost
    alone, _ = server_loss(phases(), Work(8, 4), 1, 1, tries=40)
    assert alone > cost


@pytest.mark.parametrize(("checkpoint", "hours"), [(30.0, 2.0), (300.0, 24.0)])
def test_the_best_interval_equals_the_formulas(checkpoint: float, hours: float) -> None:
    between = hours * 3600
    every, share = best_interval(60.0, checkpoint, 120.0, between)
    by_formula = daly_interval(checkpoint, between)
    assert every * 60 == pytest.approx(by_formula, rel=0.35)  # the minimum is flat
    assert share == pytest.approx(lost_share(60.0, round(by_formula / 60), checkpoint, 120.0, between), abs=0.003)
    assert by_formula == pytest.approx(young_interval(checkpoint, between), rel=0.2)


def test_the_lost_share_equals_daly_s_model() -> None:
    """Equation 13 of Daly's paper: M · exp(R / M) · (exp((t + d) / M) - 1) for each interval of t."""
    work, checkpoint, restart, between = 1200.0, 60.0, 300.0, 7200.0
    total = between * math.exp(restart / between) * (math.exp((work + checkpoint) / between) - 1)
    assert lost_share(60.0, 20, checkpoint, restart, between, 200_000) == pytest.approx(1 - work / total, abs=0.002)
    assert lost_share(60.0, 20, checkpoint, restart, math.inf) == pytest.approx(60 / 1260)


def write_run(directory: Path, concurrency: int, alone: float, slowdown: float, flat: int = 0, **more: Any) -> Path:
    """Write the directory of a run with 64 episodes per step that slow each other down."""
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
            train_seconds=16.25,  # with publishing
            publish_seconds=0.25,
            **more,
        )
        write_record(directory / METRICS, record)
    return directory


def test_phase_times_are_measured_from_runs(tmp_path: Path) -> None:
    runs = [read_run(write_run(tmp_path / str(each), each, 2.0, 0.1)) for each in (4, 32)]
    found = measure_phases(runs, {"server_restart_seconds": 7})
    assert found.mean_episode == pytest.approx(2.0)
    assert found.slowdown == pytest.approx(0.1)
    assert (found.slots, found.tokens, found.load_seconds, found.server_restart_seconds) == (32, 500, 0.25, 7)
    assert found.token_seconds == pytest.approx(16 / 32000)
    again = simulate(found, Work(8, 8), 1, 1, 2)
    assert again.rollouts == pytest.approx(64 / 32 * 2 * 4.1)
    assert again.training == pytest.approx(16)


def test_predictions_are_compared_with_a_run(tmp_path: Path) -> None:
    runs = [read_run(write_run(tmp_path / str(each), each, 2.0, 0.1)) for each in (4, 32)]
    rows = compare_with_run(measure_phases(runs, {}), Work(8, 8), 1, 1, runs[1])
    assert [row[:2] for row in rows] == [["1 trainer, 1 server", name] for name in ("rollouts", "training", "step")]
    assert rows[1][2:] == ["16.0", "16.0 ± 0.0", "+0%"]
    real = 64 / 32 * 2 * 4.1 + 16 + 0.25
    assert rows[2][2:] == [f"{real:.1f}", f"{real:.1f} ± 0.0", "+0%"]
    fewer = read_run(write_run(tmp_path / "fewer", 32, 2.0, 0.1, flat=4))
    assert float(compare_with_run(measure_phases(runs, {}), Work(8, 8), 1, 1, fewer)[1][2]) == pytest.approx(8, rel=0.1)


def test_runs_without_information_on_slowdown_are_rejected(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", 8, 2.0, 0.1))
    with raises("benchmarks.invalid-cluster", "rollouts.concurrency"):
        measure_phases([run], {})
    assert measure_phases([run], {"slowdown": 0.1}).mean_episode == pytest.approx(2.0)
    with raises("benchmarks.invalid-cluster", tmp_path):
        read_run(tmp_path)


def test_results_are_text_or_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(write_run(tmp_path / str(each), each, 2.0, 0.1)) for each in (4, 32)]
    file = tmp_path / "phases.json"
    main(["--measure", *runs, "--out", str(file)])
    asked = [str(file), "--groups", "8", "--episodes", "8", "--gpus", "2", "8", "--steps", "2", "--flat", "0"]
    main(asked)
    shown = capsys.readouterr().out
    assert "2.0 s of a step" in shown
    assert "output.save_steps" in shown
    main([*asked, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [each["gpus"] for each in found["answers"]] == [2, 8]
    assert found["answers"][0]["losses"]["save_every"] >= 1
    assert "64 episodes" in found["advice"][0]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["nowhere.yaml"], "nowhere.yaml"),
        (["--set", "slots=0"], "slots"),
        (["--set", "episode_seconds={0: 2, 1: 1}"], "episode_seconds"),
        (["--servers", "2"], "--trainers"),
        (["--compare", "transformers", "--steps", "1"], "--steps"),
        (["--servers", "2", "--trainers", "3"], "64 groups .* 3 trainers"),
    ],
)
def test_invalid_arguments_are_reported(words: list[str], error: str) -> None:
    with pytest.raises(SystemExit, match=error):
        main(words)
