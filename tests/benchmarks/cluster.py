"""Find the best numbers of trainers and rollout servers, and the cost of lost nodes.

    python -m tests.benchmarks.cluster PHASES.yaml --groups 64 --episodes 16 --gpus 8 64 512
    python -m tests.benchmarks.cluster --measure RUN RUN --out phases.json
    python -m tests.benchmarks.cluster --compare transformers

The first command simulates steps (`tests/benchmarks/simulation.py`) for each number of GPUs with the fastest division,
and describes the result; without a file, it uses estimates for a 7B model on H100s. The second measures phase times
from the directories of runs of `gumshoe train`: at least two, with one server each and different
`rollouts.concurrency`, which shows how much episodes slow each other down. The third does everything on this machine,
in some minutes: it measures runs with one trainer and one server, predicts steps with two of either, trains with two,
and compares. Other load on the machine affects its numbers.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from gumshoe.errors import GumshoeError, UsageError
from gumshoe.mail.build import build_mail_index
from gumshoe.model_validation import describe_validation_error
from gumshoe.synthesis.mailboxes import MAIL_FILE, synthesize_mail, write_mail
from gumshoe.training.records import StepRecord, read_records
from gumshoe.training.run_spec import METRICS, SPEC, RunSpec
from tests.benchmarks.mail import show
from tests.benchmarks.simulation import (
    Phases,
    Work,
    best_interval,
    daly_interval,
    mean_of,
    server_loss,
    steps,
    young_interval,
)

ESTIMATED = Path(__file__).with_name("phases-7b-h100.yaml")
MTBF_HOURS = 50_000.0
"""Mean time between failures of one GPU with its share of a node: 419 unexpected interruptions in 54 days of 16,384
H100s (The Llama 3 Herd of Models, https://arxiv.org/abs/2407.21783, section 3.3.4) are one in 50,676 GPU-hours."""
_CODE = "benchmarks.invalid-cluster"
_WORTH = 1.5  # maximum GPU-hours per step of the advice, relative to the cheapest


@dataclass(frozen=True, slots=True)
class Losses:
    """The mean cost of lost nodes."""

    mtbf_hours: float
    """Mean time between failures of one GPU."""
    server_seconds: float
    """Cost of losing one server."""
    server_error: float
    """Standard error of that cost."""
    servers_share: float
    """Share of time that lost servers cost."""
    save_every: int
    """Best number of steps between checkpoints in the simulation."""
    trainers_share: float
    """Share of time that checkpoints and lost trainers cost."""
    young_every: float
    daly_every: float
    """Steps between checkpoints by the formulas of Young and Daly."""


@dataclass(frozen=True, slots=True)
class StepEstimate:
    """A division of GPUs, and the mean times of its steps, in seconds."""

    servers: int
    trainers: int
    gpus: int
    step: float
    rollouts: float
    training: float
    publishing: float
    servers_used: float
    """Work of the servers, as a share of what they could do if always full."""
    trainers_used: float
    """Share of the time in which trainers work."""
    slowest: float
    """Sum over draws of the longest episode, alone: rollouts cannot be shorter with any number of servers."""
    tail: float
    """Share of the rollout time with less than half of the servers' slots in use."""
    gpu_hours: float
    losses: Losses | None = field(default=None)

    def row(self) -> list[str]:
        return [
            f"{self.gpus:,}",
            f"{self.servers:,} ({self.servers_used:.0%})",
            f"{self.trainers:,} ({self.trainers_used:.0%})",
            f"{self.step:,.1f}",
            f"{self.rollouts:,.1f}",
            f"{self.training:,.1f}",
            f"{self.publishing:,.1f}",
            f"{self.tail:.0%}",
            f"{self.gpu_hours:,.2f}",
        ]


HEADER = ["GPUs", "servers (used)", "trainers (used)", "step, s", "rollouts", "training", "publish", "tail", "GPU-h"]


def simulate(phases: Phases, work: Work, servers: int, trainers: int, count: int, seed: int = 0) -> StepEstimate:
    """Simulate `count` steps of a division, and return their means."""
    found = list(steps(phases, work, servers, trainers, count, seed))
    seconds = sum(each.seconds for each in found)
    full = servers * phases.slots / (1 + phases.slowdown * (phases.slots - 1))
    gpus = servers * phases.gpus_per_server + trainers * phases.gpus_per_trainer
    return StepEstimate(
        servers,
        trainers,
        gpus,
        seconds / count,
        statistics.fmean(each.rollouts for each in found),
        statistics.fmean(each.training for each in found),
        statistics.fmean(each.publishing for each in found),
        sum(each.worked for each in found) / (full * seconds),
        sum(each.learned for each in found) / (trainers * seconds),
        statistics.fmean(each.slowest for each in found),
        statistics.fmean(each.tail for each in found),
        gpus * seconds / count / 3600,
    )


def iterate_divisions(phases: Phases, work: Work, gpus: int) -> Iterator[tuple[int, int]]:
    """Yield the numbers of servers and trainers that use these GPUs and split the groups evenly."""
    for trainers in range(1, work.groups + 1):
        servers = (gpus - trainers * phases.gpus_per_trainer) // phases.gpus_per_server
        if work.groups % trainers == 0 and servers >= 1:
            yield servers, trainers


def find_fastest(phases: Phases, work: Work, gpus: int, count: int, seed: int = 0) -> StepEstimate:
    """Return the division of GPUs with the shortest step.

    Raises:
        UsageError: there are too few GPUs for a server and a trainer.
    """
    tried = [simulate(phases, work, *each, 1, seed) for each in iterate_divisions(phases, work, gpus)]
    if not tried:
        raise UsageError(_CODE, f"{gpus} GPUs are too few for a server and a trainer")
    best = min(tried, key=lambda each: each.step)
    return simulate(phases, work, best.servers, best.trainers, count, seed)


def estimate_losses(phases: Phases, work: Work, answer: StepEstimate, mtbf_hours: float, seed: int = 0) -> Losses:
    """Estimate the cost of lost nodes for a division."""
    between = mtbf_hours * 3600
    cost, error = server_loss(phases, work, answer.servers, answer.trainers, seed=seed)
    servers_gpus, trainers_gpus = (
        answer.servers * phases.gpus_per_server,
        answer.trainers * phases.gpus_per_trainer,
    )
    restart = phases.trainer_detection_seconds + phases.trainer_restart_seconds
    checkpoint, of_trainers = phases.checkpoint_seconds, between / trainers_gpus
    every, share = best_interval(answer.step, checkpoint, restart, of_trainers, seed)
    return Losses(
        mtbf_hours,
        cost,
        error,
        cost * servers_gpus / between,
        every,
        share,
        max(1.0, young_interval(checkpoint, of_trainers) / answer.step),
        max(1.0, daly_interval(checkpoint, of_trainers) / answer.step),
    )


def describe_results(phases: Phases, work: Work, answers: Sequence[StepEstimate]) -> list[str]:
    """Describe the results, and recommend a division."""
    cheapest = min(each.gpu_hours for each in answers)
    worth = [each for each in answers if each.gpu_hours <= _WORTH * cheapest]
    chosen = min(worth, key=lambda each: each.step)
    episodes = work.groups * work.episodes
    lines = [
        f"For {episodes:,} episodes per step, use {_counted(chosen.servers, 'server')} and "
        f"{_counted(chosen.trainers, 'trainer')}, {chosen.gpus:,} GPUs. A step takes {chosen.step:,.1f} s and "
        f"{chosen.gpu_hours:,.2f} GPU-hours, {chosen.gpu_hours / cheapest:.2f} times the cheapest.",
        f"Training is synchronous: trainers wait {1 - chosen.trainers_used:.0%} of the time for episodes and the "
        f"adapter, and servers use {chosen.servers_used:.0%} of their capacity.",
        f"Each draw waits for its slowest episode: even alone, these take {chosen.slowest:,.1f} s of a step, for any "
        f"number of servers. Rollouts take {chosen.rollouts:,.1f} s, with less than half of the slots in use for "
        f"{chosen.tail:.0%} of that time.",
    ]
    more = [each for each in answers if each.gpus > chosen.gpus]
    if more:
        last = more[-1]
        lines.append(
            f"{last.gpus / chosen.gpus:,.0f} times the GPUs ({last.gpus:,}) make the step "
            f"{chosen.step / last.step:.1f} times as fast, for {last.gpu_hours / chosen.gpu_hours:.1f} times the "
            "GPU-hours. To keep more GPUs busy, use more groups per step."
        )
    driving = _driving(phases, work)
    if phases.calls_per_second is not None and driving > 0.25 * answers[-1].rollouts:
        lines.append(
            f"One process runs all episodes, at {phases.calls_per_second:,.0f} turns per second: this takes at least "
            f"{driving:,.1f} s per step."
        )
    if chosen.losses is not None:
        lines += _describe_losses(chosen.losses)
    return lines


def _describe_losses(found: Losses) -> list[str]:
    return [
        f"If a GPU fails once in {found.mtbf_hours:,.0f} hours, the loss of a server costs "
        f"{found.server_seconds:,.0f} ± {found.server_error:,.0f} s, and all lost servers cost "
        f"{100 * found.servers_share:.2g} % of the time.",
        f"Save every {_counted(found.save_every, 'step')} (output.save_steps): checkpoints and lost trainers then cost "
        f"{100 * found.trainers_share:.2g} % of the time. Young's formula gives {found.young_every:,.1f} steps, Daly's "
        f"{found.daly_every:,.1f}; the cost hardly changes near its minimum.",
    ]


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _driving(phases: Phases, work: Work) -> float:
    """Return the seconds that the process that runs all episodes needs for a step, for any number of servers."""
    drawn = sum(work.flat**draw for draw in range(work.draws))
    return drawn * work.groups * work.episodes * phases.turns / (phases.calls_per_second or math.inf)


# Phase times of real runs.


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of a run, without its first step, which includes warmup."""

    spec: RunSpec
    steps: list[StepRecord]
    checkpoint_seconds: float

    @property
    def servers(self) -> int:
        return max(1, len(self.spec.urls))

    @property
    def episodes(self) -> int:
        """Episodes per step."""
        settings = self.spec.settings
        return settings.groups * settings.rollouts.num_generations

    @property
    def trainers(self) -> int:
        return self.spec.settings.optimizer.processes

    @property
    def rollouts(self) -> float:
        return statistics.fmean(each.rollout_seconds for each in self.steps)

    @property
    def training(self) -> float:
        return statistics.fmean(each.train_seconds - each.publish_seconds for each in self.steps)

    @property
    def publishing(self) -> float:
        """The maximum time, because after an evaluation the servers already have the adapter."""
        return max(each.publish_seconds for each in self.steps)

    @property
    def quantiles(self) -> dict[float, float]:
        """Quantiles of an episode's seconds among others, as means over steps."""
        shares = self.steps[0].episode_seconds
        return {share: statistics.fmean(each.episode_seconds[share] for each in self.steps) for share in shares}

    @property
    def mean_episode(self) -> float:
        return mean_of(self.quantiles)

    @property
    def at_once(self) -> float:
        """Mean number of concurrent episodes on a server during rollouts."""
        run = statistics.fmean(len(each.scenarios) for each in self.steps) * self.spec.settings.rollouts.num_generations
        return max(1.0, run * self.mean_episode / self.rollouts / self.servers)


def read_run(directory: Path) -> Measured:
    """Read the measurements of a run.

    Raises:
        UsageError: the directory contains no run, or one with too few steps.
    """
    try:
        spec = RunSpec.model_validate_json((directory / SPEC).read_bytes())
    except (OSError, ValidationError) as error:
        raise UsageError(_CODE, f"{directory} contains no run of `gumshoe train` ({type(error).__name__})") from None
    found = [each for each in read_records(directory / METRICS) if isinstance(each, StepRecord)][1:]
    if not found or not all(each.episode_seconds for each in found):
        raise UsageError(_CODE, f"{directory}: the run must have at least two steps with episodes")
    return Measured(spec, found, _saving(directory))


def _saving(directory: Path) -> float:
    """Return the maximum time from the first to the last file of a checkpoint, in seconds."""
    times = [[file.stat().st_mtime for file in each.iterdir()] for each in directory.glob("checkpoint-*")]
    return max((max(each) - min(each) for each in times if each), default=0.0)


def measure_phases(runs: Sequence[Measured], given: dict[str, Any]) -> Phases:
    """Return the phase times of runs, in which `given` values replace measured ones.

    Raises:
        UsageError: the runs do not show how much episodes slow each other down, or a given value is invalid.
    """
    alone, slowdown = _alone(runs, given.get("slowdown"))
    widest = max(runs, key=lambda each: each.at_once)
    quantiles, mean = widest.quantiles, widest.mean_episode
    every = [step for run in runs for step in run.steps]
    tokens = sum(each.tokens for each in every) / sum(_learned(run, step) for run in runs for step in run.steps)
    values = {
        "source": f"measured on runs {', '.join(run.spec.run for run in runs)}",
        "episode_seconds": {share: max(1e-6, alone * each / mean) for share, each in quantiles.items()},
        "slowdown": slowdown,
        "slots": widest.spec.settings.rollouts.concurrency,
        "turns": max(1.0, statistics.fmean(each.turns for each in every)),
        "tokens": tokens,
        "token_seconds": statistics.fmean(run.training * run.trainers / _tokens(run) for run in runs),
        "load_seconds": statistics.fmean(run.publishing for run in runs),
        "checkpoint_seconds": max(run.checkpoint_seconds for run in runs),
    }
    return _phases({**values, **given}, "--set")


def _learned(run: Measured, step: StepRecord) -> int:
    return max(1, step.groups * run.spec.settings.rollouts.num_generations)


def _tokens(run: Measured) -> float:
    """Return the mean number of tokens of a step that went through the model."""
    return statistics.fmean(each.tokens for each in run.steps)


def _alone(runs: Sequence[Measured], given: float | None) -> tuple[float, float]:
    """Return the seconds of an episode alone and the slowdown by each other one, from a least-squares fit to runs.

    The speed depends on the episodes of one server, so `at_once` counts those.
    """
    points = [(run.at_once - 1, run.mean_episode) for run in runs]
    if given is not None:
        alone = statistics.fmean(seconds / (1 + given * others) for others, seconds in points)
        return alone, given
    if max(others for others, _ in points) < 1.5 * min(others for others, _ in points) + 1:
        raise UsageError(
            _CODE,
            "these runs have the same number of concurrent episodes, so the slowdown is unknown; add a run with "
            "another rollouts.concurrency, or give the slowdown: --set slowdown=0.1",
        )
    slope, alone = statistics.linear_regression(*zip(*points, strict=True))
    if alone <= 0 or slope < 0:
        alone = min(seconds / (1 + others) for others, seconds in points)  # each episode waits for all others
        slope = alone
    return alone, slope / alone


# Predictions compared with real runs.

_GROUPS, _EPISODES, _SIMULATED = 4, 4, 200
_RUN = {
    "evaluation.baseline": "false",
    "evaluation.eval_steps": "1000",
    "data.eval_size": "4",
    "rollouts.num_generations": str(_EPISODES),
    "rollouts.draws": "1",
    "optimizer.per_device_train_batch_size": "4",
    "output.save_steps": "2",
    # One trainer would compute the common prefix of prompts once; two cannot, so switch that off.
    "model.gradient_checkpointing": "true",
}


def compare(engine: str, count: int, directory: Path) -> list[list[str]]:
    """Measure runs with one trainer and one server, predict two of either, train with two, and return table rows."""
    write_mail(synthesize_mail(9001, 12, 3600, "plain"), directory)
    build_mail_index([f"jsonl:{directory / MAIL_FILE}"], directory / "index")
    measured = [
        _run_training(directory, f"{engine}-{at_once}", engine, count, **{"rollouts.concurrency": at_once})
        for at_once in (4, _GROUPS * _EPISODES)
    ]
    phases, work = measure_phases(measured, {}), Work(_GROUPS, _EPISODES)
    rows = compare_with_run(phases, work, 1, 1, measured[-1])
    wide = {"rollouts.concurrency": _GROUPS * _EPISODES}
    two = _run_training(directory, f"{engine}-trainers", engine, count, **wide, **{"optimizer.processes": 2})
    rows += compare_with_run(phases, work, 1, 2, two)
    if engine == "vllm":
        two = _run_training(directory, "vllm-servers", engine, count, **wide, **{"rollouts.num_servers": 2})
        rows += compare_with_run(phases, work, 2, 1, two)
    return rows


def _run_training(directory: Path, name: str, engine: str, count: int, **more: Any) -> Measured:
    passes = _GROUPS * _EPISODES // (4 * int(more.get("optimizer.processes", 1)))
    values = {**_RUN, "rollouts.engine": engine, "optimizer.max_steps": str(count + 1), **more}
    values["optimizer.gradient_accumulation_steps"] = passes
    words = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    words += ["--index", str(directory / "index"), "--scenarios", str(directory / "scenarios.jsonl")]
    subprocess.run(
        [sys.executable, "-m", "gumshoe", "train", "--config", "tiny", "--out", str(directory / name), *words],
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # one core per process, as if it were a GPU
    )
    return read_run(directory / name)


def compare_with_run(phases: Phases, work: Work, servers: int, trainers: int, real: Measured) -> list[list[str]]:
    """Compare a prediction with a run. The number of flat groups is random, so it is taken from the run."""
    flat = 1 - statistics.fmean(each.groups for each in real.steps) / work.groups
    predicted = simulate(phases, replace(work, flat=flat), servers, trainers, _SIMULATED)
    rollouts = [each.rollout_seconds for each in real.steps]
    training = [each.train_seconds - each.publish_seconds for each in real.steps]
    whole = [each.seconds for each in real.steps]
    pairs = {
        "rollouts": (predicted.rollouts, rollouts),
        "training": (predicted.training, training),
        "step": (predicted.step, whole),
    }
    return [
        [
            f"{_counted(trainers, 'trainer')}, {_counted(servers, 'server')}",
            phase,
            f"{value:.1f}",
            f"{statistics.fmean(had):.1f} ± {statistics.stdev(had) / len(had) ** 0.5:.1f}",
            f"{round(value / statistics.fmean(had) - 1, 2) + 0.0:+.0%}",  # avoid -0 %
        ]
        for phase, (value, had) in pairs.items()
    ]


# The command.


def read_phases(path: Path) -> Phases:
    """Read phase times from a YAML or JSON file.

    Raises:
        UsageError: the file cannot be read, or has no valid phase times.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(_CODE, f"cannot read {path} ({error}); give a YAML or JSON file of phase times") from None
    return _phases(values, str(path))


def _phases(values: Any, where: str) -> Phases:
    try:
        return Phases.model_validate(values)
    except ValidationError as error:
        raise UsageError(_CODE, f"{where}: invalid phase times: {describe_validation_error(error)}") from None


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phases", type=Path, nargs="?", default=ESTIMATED, help="YAML or JSON of phase times")
    parser.add_argument("--groups", type=int, default=64, help="groups per step")
    parser.add_argument("--episodes", type=int, default=16, help="episodes per group")
    parser.add_argument("--flat", type=float, default=0.3, help="share of flat groups")
    parser.add_argument("--draws", type=int, default=3, help="maximum number of draws, as rollouts.draws")
    parser.add_argument(
        "--gpus", type=int, nargs="+", default=[2, 8, 64, 512, 4096], help="numbers of GPUs to simulate"
    )
    parser.add_argument("--servers", type=int, help="number of servers; requires --trainers")
    parser.add_argument("--trainers", type=int)
    parser.add_argument("--mtbf-hours", type=float, default=MTBF_HOURS, help="mean time between failures of one GPU")
    parser.add_argument("--steps", type=int, default=10, help="number of steps to simulate, or to train with --compare")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="override a phase time")
    parser.add_argument(
        "--measure", type=Path, nargs="+", metavar="RUN", help="measure phase times from directories of runs"
    )
    parser.add_argument("--out", type=Path, help="file for the phase times of --measure (default: print them)")
    parser.add_argument("--compare", choices=["transformers", "vllm"], help="compare predictions with real runs")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(words)
    try:
        _run(options)
    except GumshoeError as error:
        sys.exit(str(error))


def _run(options: argparse.Namespace) -> None:
    given = {name: yaml.safe_load(value) for name, _, value in (each.partition("=") for each in options.set)}
    if options.compare:
        if options.steps < 2:
            raise UsageError(_CODE, "--compare requires at least two steps (--steps)")
        with tempfile.TemporaryDirectory(prefix="gumshoe-benchmark-") as scratch:
            rows = compare(options.compare, options.steps, Path(scratch))
        header = ["", "seconds of", "predicted", "real ± standard error", "difference"]
        load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
        title = f"Predictions and {options.compare} runs of {options.steps} steps; {os.cpu_count()} cores, load {load}"
        show(title, header, rows)
        return
    if options.measure:
        text = measure_phases([read_run(each) for each in options.measure], given).model_dump_json(indent=2)
        if options.out:
            options.out.write_text(text + "\n")
        else:
            print(text)
        return
    phases = _phases({**read_phases(options.phases).model_dump(), **given}, "--set")
    work = Work(options.groups, options.episodes, options.flat, options.draws)
    answers = list(_estimate_steps(options, phases, work))
    lines = describe_results(phases, work, answers)
    if options.json:
        print(json.dumps({"phases": phases.source, "answers": [asdict(each) for each in answers], "advice": lines}))
        return
    show(f"Steps of {work.groups:,} groups of {work.episodes}; {phases.source}", HEADER, [a.row() for a in answers])
    print("\n".join(lines))


def _estimate_steps(options: argparse.Namespace, phases: Phases, work: Work) -> Iterator[StepEstimate]:
    if (options.servers is None) != (options.trainers is None):
        raise UsageError(_CODE, "--servers and --trainers must be given together")
    if options.servers is not None:
        if work.groups % options.trainers:
            raise UsageError(_CODE, f"{work.groups} groups cannot be split evenly over {options.trainers} trainers")
        found = [simulate(phases, work, options.servers, options.trainers, options.steps, options.seed)]
    else:
        found = [find_fastest(phases, work, gpus, options.steps, options.seed) for gpus in sorted(options.gpus)]
    for each in found:
        lost = estimate_losses(phases, work, each, options.mtbf_hours, options.seed)
        yield StepEstimate(**{**{name: getattr(each, name) for name in StepEstimate.__slots__}, "losses": lost})


if __name__ == "__main__":
    main()
