"""How many trainers and rollout servers keep each other busy, and what a node's loss costs.

    python -m tests.benchmarks.cluster PHASES.yaml --groups 64 --episodes 16 --gpus 8 64 512
    python -m tests.benchmarks.cluster --measure RUN RUN --out phases.json
    python -m tests.benchmarks.cluster --compare transformers

The first simulates steps (`tests/benchmarks/simulation.py`) for each number of GPUs, divided in the quickest way, and
says in plain words what came of it; without a file, of a 7B model on H100s, by estimates. The second takes phase times
from the directories of runs of `gumshoe train`: two at least, with one server each and different
`rollouts.concurrency`, since how far episodes slow each other down is seen only so. The third does all of that on this
machine, in some minutes: it measures runs of one trainer and one server, predicts the step of two of either, trains
with two, and says how far off the prediction was. What else the machine does is in its numbers.
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

from gumshoe.errors import GumshoeError, UsageError, describe_validation_error
from gumshoe.mail.build import build_mail_index
from gumshoe.synthesis.mailboxes import MAIL_FILE, synthesize_mail, write_mail
from gumshoe.training.records import StepRecord, read_records
from gumshoe.training.run_spec import METRICS, SPEC, RunSpec
from tests.benchmarks.mail import show
from tests.benchmarks.simulation import Phases, Work, best_interval, daly, mean_of, server_loss, steps, young

ESTIMATED = Path(__file__).with_name("phases-7b-h100.yaml")
MTBF_HOURS = 50_000.0
"""Of one GPU with its share of a node: 419 unexpected interruptions in 54 days of 16,384 H100s (The Llama 3 Herd of
Models, https://arxiv.org/abs/2407.21783, section 3.3.4) are one in 50,676 hours of a GPU."""
_CODE = "benchmarks.invalid-cluster"
_WORTH = 1.5  # times the cheapest step's GPU-hours


@dataclass(frozen=True, slots=True)
class Losses:
    """What lost nodes cost, in the mean."""

    mtbf_hours: float
    """Between failures of one GPU."""
    server_seconds: float
    """That the loss of one server costs."""
    server_error: float
    """Its standard error."""
    servers_share: float
    """Of all time, lost to servers that are lost."""
    save_every: int
    """Steps between checkpoints, as the simulation finds best."""
    trainers_share: float
    """Of all time, lost to checkpoints and to trainers that are lost."""
    young_every: float
    daly_every: float
    """Steps between checkpoints by the formulas."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A division of GPUs, and its step. Times are in seconds, the means of some steps."""

    servers: int
    trainers: int
    gpus: int
    step: float
    rollouts: float
    training: float
    publishing: float
    servers_used: float
    """Of what the servers could run in that time, if always full."""
    trainers_used: float
    """Of their time."""
    slowest: float
    """Of the longest episode of each draw, alone, one after another: no number of servers makes rollouts shorter."""
    tail: float
    """Share of the rollouts with less than half of the servers' places taken."""
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


def simulate(phases: Phases, work: Work, servers: int, trainers: int, count: int, seed: int = 0) -> Answer:
    """The mean of so many steps of a division."""
    found = list(steps(phases, work, servers, trainers, count, seed))
    seconds = sum(each.seconds for each in found)
    full = servers * phases.slots / (1 + phases.slowdown * (phases.slots - 1))
    gpus = servers * phases.gpus_per_server + trainers * phases.gpus_per_trainer
    return Answer(
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


def divisions(phases: Phases, work: Work, gpus: int) -> Iterator[tuple[int, int]]:
    """Servers and trainers that so many GPUs make, all of them where the groups can be shared out so."""
    for trainers in range(1, work.groups + 1):
        servers = (gpus - trainers * phases.gpus_per_trainer) // phases.gpus_per_server
        if work.groups % trainers == 0 and servers >= 1:
            yield servers, trainers


def quickest(phases: Phases, work: Work, gpus: int, count: int, seed: int = 0) -> Answer:
    """The division of so many GPUs with the shortest step.

    Raises:
        UsageError: there are fewer than a server and a trainer need.
    """
    tried = [simulate(phases, work, *each, 1, seed) for each in divisions(phases, work, gpus)]
    if not tried:
        raise UsageError(_CODE, f"{gpus} GPUs are too few for a server and a trainer")
    best = min(tried, key=lambda each: each.step)
    return simulate(phases, work, best.servers, best.trainers, count, seed)


def losses(phases: Phases, work: Work, answer: Answer, mtbf_hours: float, seed: int = 0) -> Losses:
    """What lost nodes cost a run of a division."""
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
        max(1.0, young(checkpoint, of_trainers) / answer.step),
        max(1.0, daly(checkpoint, of_trainers) / answer.step),
    )


def advice(phases: Phases, work: Work, answers: Sequence[Answer]) -> list[str]:
    """What came of it, in plain words."""
    cheapest = min(each.gpu_hours for each in answers)
    worth = [each for each in answers if each.gpu_hours <= _WORTH * cheapest]
    chosen = min(worth, key=lambda each: each.step)
    episodes = work.groups * work.episodes
    said = [
        f"For {episodes:,} episodes a step: {_counted(chosen.servers, 'server')} and "
        f"{_counted(chosen.trainers, 'trainer')}, {chosen.gpus:,} GPUs. A step takes {chosen.step:,.1f} s and "
        f"{chosen.gpu_hours:,.2f} GPU-hours, {chosen.gpu_hours / cheapest:.2f} times those of the cheapest.",
        f"Training is synchronous: trainers wait {1 - chosen.trainers_used:.0%} of the time, for episodes and the "
        f"adapter, and servers do {chosen.servers_used:.0%} of what they could.",
        f"Each draw waits for its slowest episode: alone, those take {chosen.slowest:,.1f} s of a step, whatever the "
        f"number of servers. Rollouts take {chosen.rollouts:,.1f} s now, and for {chosen.tail:.0%} of that less than "
        "half of the servers' places is taken.",
    ]
    more = [each for each in answers if each.gpus > chosen.gpus]
    if more:
        last = more[-1]
        said.append(
            f"{last.gpus / chosen.gpus:,.0f} times the GPUs ({last.gpus:,}) make the step "
            f"{chosen.step / last.step:.1f} times as quick, for {last.gpu_hours / chosen.gpu_hours:.1f} times the "
            "GPU-hours. More groups a step are what keeps more GPUs busy."
        )
    driving = _driving(phases, work)
    if phases.calls_per_second is not None and driving > 0.25 * answers[-1].rollouts:
        said.append(
            f"One process runs all episodes, at {phases.calls_per_second:,.0f} turns a second: {driving:,.1f} s of a "
            "step's rollouts at least."
        )
    if chosen.losses is not None:
        said += _of_losses(chosen.losses)
    return said


def _of_losses(found: Losses) -> list[str]:
    return [
        f"Where a GPU fails once in {found.mtbf_hours:,.0f} hours, the loss of a server costs "
        f"{found.server_seconds:,.0f} ± {found.server_error:,.0f} s, and all such losses "
        f"{100 * found.servers_share:.2g} % of the time.",
        f"Save every {_counted(found.save_every, 'step')} (output.save_steps): checkpoints and lost trainers then cost "
        f"{100 * found.trainers_share:.2g} % of the time. Young's formula says {found.young_every:,.1f} steps, Daly's "
        f"{found.daly_every:,.1f}; the loss hardly changes near its least.",
    ]


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _driving(phases: Phases, work: Work) -> float:
    """Seconds that one process needs for a step's episodes, however many servers there are."""
    drawn = sum(work.flat**draw for draw in range(work.draws))
    return drawn * work.groups * work.episodes * phases.turns / (phases.calls_per_second or math.inf)


# Phase times of real runs.


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run tells, but for its first step, in which all is done for the first time."""

    spec: RunSpec
    steps: list[StepRecord]
    checkpoint_seconds: float

    @property
    def servers(self) -> int:
        return max(1, len(self.spec.urls))

    @property
    def episodes(self) -> int:
        """Of a step."""
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
        return statistics.fmean(each.train_seconds for each in self.steps)

    @property
    def publishing(self) -> float:
        """The most: after an evaluation, servers have the adapter already."""
        return max(each.publish_seconds for each in self.steps)

    @property
    def quantiles(self) -> dict[float, float]:
        """Of an episode's seconds among the others; the mean over steps."""
        shares = self.steps[0].episode_seconds
        return {share: statistics.fmean(each.episode_seconds[share] for each in self.steps) for share in shares}

    @property
    def mean_episode(self) -> float:
        return mean_of(self.quantiles)

    @property
    def at_once(self) -> float:
        """Episodes on a server, the mean over the rollouts."""
        run = statistics.fmean(len(each.scenarios) for each in self.steps) * self.spec.settings.rollouts.num_generations
        return max(1.0, run * self.mean_episode / self.rollouts / self.servers)


def read_run(directory: Path) -> Measured:
    """A run's phase times.

    Raises:
        UsageError: the directory holds none, or too little of one.
    """
    try:
        spec = RunSpec.model_validate_json((directory / SPEC).read_bytes())
    except (OSError, ValidationError) as error:
        raise UsageError(_CODE, f"{directory} holds no run of `gumshoe train` ({type(error).__name__})") from None
    found = [each for each in read_records(directory / METRICS) if isinstance(each, StepRecord)][1:]
    if not found or not all(each.episode_seconds for each in found):
        raise UsageError(_CODE, f"{directory}: at least two steps with episodes are needed to take times from")
    return Measured(spec, found, _saving(directory))


def _saving(directory: Path) -> float:
    """Seconds from the first file of a checkpoint to the last, the most of those that are there."""
    times = [[file.stat().st_mtime for file in each.iterdir()] for each in directory.glob("checkpoint-*")]
    return max((max(each) - min(each) for each in times if each), default=0.0)


def phases_of(runs: Sequence[Measured], given: dict[str, Any]) -> Phases:
    """Phase times of runs, with those that are given in place of what was measured.

    Raises:
        UsageError: they do not tell how far episodes slow each other down, or what is given cannot be.
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
    """That went through the model in a step, the mean."""
    return statistics.fmean(each.tokens for each in run.steps)


def _alone(runs: Sequence[Measured], given: float | None) -> tuple[float, float]:
    """Seconds of an episode alone, and the slowdown by each other one: the line through what runs had, least squares.

    With several servers the pace is the server's own, so `at_once` counts those of one.
    """
    points = [(run.at_once - 1, run.mean_episode) for run in runs]
    if given is not None:
        alone = statistics.fmean(seconds / (1 + given * others) for others, seconds in points)
        return alone, given
    if max(others for others, _ in points) < 1.5 * min(others for others, _ in points) + 1:
        raise UsageError(
            _CODE,
            "these runs had as many episodes at once, so it is not known how far those slow each other down; add a run "
            "with another rollouts.concurrency, or say it: --set slowdown=0.1",
        )
    slope, alone = statistics.linear_regression(*zip(*points, strict=True))
    if alone <= 0 or slope < 0:
        alone = min(seconds / (1 + others) for others, seconds in points)  # each waits for all others
        slope = alone
    return alone, slope / alone


# Predictions beside real runs.

_GROUPS, _EPISODES, _SIMULATED = 4, 4, 200
_RUN = {
    "evaluation.baseline": "false",
    "evaluation.eval_steps": "1000",
    "data.eval_size": "4",
    "rollouts.num_generations": str(_EPISODES),
    "rollouts.draws": "1",
    "optimizer.per_device_train_batch_size": "4",
    "output.save_steps": "2",
    # With one trainer alone, what all prompts begin with goes through the model once; two cannot, so neither does.
    "model.gradient_checkpointing": "true",
}


def compare(engine: str, count: int, directory: Path) -> list[list[str]]:
    """Measure runs of one trainer and one server; predict two of either, and train with two: rows of a table."""
    write_mail(synthesize_mail(9001, 12, 3600, "plain"), directory)
    build_mail_index([f"jsonl:{directory / MAIL_FILE}"], directory / "index")
    measured = [
        _ran(directory, f"{engine}-{at_once}", engine, count, **{"rollouts.concurrency": at_once})
        for at_once in (4, _GROUPS * _EPISODES)
    ]
    phases, work = phases_of(measured, {}), Work(_GROUPS, _EPISODES)
    rows = compared(phases, work, 1, 1, measured[-1])
    wide = {"rollouts.concurrency": _GROUPS * _EPISODES}
    two = _ran(directory, f"{engine}-trainers", engine, count, **wide, **{"optimizer.processes": 2})
    rows += compared(phases, work, 1, 2, two)
    if engine == "vllm":
        two = _ran(directory, "vllm-servers", engine, count, **wide, **{"rollouts.num_servers": 2})
        rows += compared(phases, work, 2, 1, two)
    return rows


def _ran(directory: Path, name: str, engine: str, count: int, **more: Any) -> Measured:
    passes = _GROUPS * _EPISODES // (4 * int(more.get("optimizer.processes", 1)))
    values = {**_RUN, "rollouts.engine": engine, "optimizer.max_steps": str(count + 1), **more}
    values["optimizer.gradient_accumulation_steps"] = passes
    words = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    words += ["--index", str(directory / "index"), "--scenarios", str(directory / "scenarios.jsonl")]
    subprocess.run(
        [sys.executable, "-m", "gumshoe", "train", "--config", "tiny", "--out", str(directory / name), *words],
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # a process has a core, as it would have a GPU
    )
    return read_run(directory / name)


def compared(phases: Phases, work: Work, servers: int, trainers: int, real: Measured) -> list[list[str]]:
    """A prediction beside a run. How many groups taught nothing is the run's own: that is chance, and not predicted."""
    flat = 1 - statistics.fmean(each.groups for each in real.steps) / work.groups
    predicted = simulate(phases, replace(work, flat=flat), servers, trainers, _SIMULATED)
    rollouts = [each.rollout_seconds for each in real.steps]
    training = [each.train_seconds for each in real.steps]
    whole = [each.rollout_seconds + each.train_seconds + each.publish_seconds for each in real.steps]
    pairs = {
        "rollouts": (predicted.rollouts, rollouts),
        "training": (predicted.training, training),
        "step": (predicted.step, whole),
    }
    return [
        [
            f"{_counted(trainers, 'trainer')}, {_counted(servers, 'server')}",
            phase,
            f"{said:.1f}",
            f"{statistics.fmean(had):.1f} ± {statistics.stdev(had) / len(had) ** 0.5:.1f}",
            f"{round(said / statistics.fmean(had) - 1, 2) + 0.0:+.0%}",  # and not -0 %
        ]
        for phase, (said, had) in pairs.items()
    ]


# The command.


def read_phases(path: Path) -> Phases:
    """Phase times of a file, YAML or JSON.

    Raises:
        UsageError: it holds none.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(_CODE, f"{path} cannot be read ({error}); name a YAML or JSON file of phase times") from None
    return _phases(values, str(path))


def _phases(values: Any, where: str) -> Phases:
    try:
        return Phases.model_validate(values)
    except ValidationError as error:
        raise UsageError(_CODE, f"{where}: the phase times cannot be: {describe_validation_error(error)}") from None


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phases", type=Path, nargs="?", default=ESTIMATED, help="YAML or JSON of phase times")
    parser.add_argument("--groups", type=int, default=64, help="of a step")
    parser.add_argument("--episodes", type=int, default=16, help="of a group")
    parser.add_argument("--flat", type=float, default=0.3, help="share of groups that teach nothing")
    parser.add_argument("--draws", type=int, default=3, help="as rollouts.draws")
    parser.add_argument("--gpus", type=int, nargs="+", default=[2, 8, 64, 512, 4096], help="how many there may be")
    parser.add_argument("--servers", type=int, help="with --trainers: this division alone")
    parser.add_argument("--trainers", type=int)
    parser.add_argument("--mtbf-hours", type=float, default=MTBF_HOURS, help="between failures of one GPU")
    parser.add_argument("--steps", type=int, default=10, help="that are simulated, or with --compare trained")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a phase time")
    parser.add_argument("--measure", type=Path, nargs="+", metavar="RUN", help="directories of runs")
    parser.add_argument("--out", type=Path, help="with --measure: where to write the phase times; printed unless given")
    parser.add_argument("--compare", choices=["transformers", "vllm"], help="predictions beside real runs")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(words)
    try:
        _carry_out(options)
    except GumshoeError as error:
        sys.exit(str(error))


def _carry_out(options: argparse.Namespace) -> None:
    given = {name: yaml.safe_load(value) for name, _, value in (each.partition("=") for each in options.set)}
    if options.compare:
        if options.steps < 2:
            raise UsageError(_CODE, "--compare takes means over steps; give it two at least (--steps)")
        with tempfile.TemporaryDirectory(prefix="gumshoe-benchmark-") as scratch:
            rows = compare(options.compare, options.steps, Path(scratch))
        header = ["", "seconds of", "predicted", "real, ± its standard error", "off by"]
        load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
        title = (
            f"Predictions beside {options.compare} runs of {options.steps} steps; {os.cpu_count()} cores, load {load}"
        )
        show(title, header, rows)
        return
    if options.measure:
        text = phases_of([read_run(each) for each in options.measure], given).model_dump_json(indent=2)
        if options.out:
            options.out.write_text(text + "\n")
        else:
            print(text)
        return
    phases = _phases({**read_phases(options.phases).model_dump(), **given}, "--set")
    work = Work(options.groups, options.episodes, options.flat, options.draws)
    answers = list(_answers(options, phases, work))
    said = advice(phases, work, answers)
    if options.json:
        print(json.dumps({"phases": phases.source, "answers": [asdict(each) for each in answers], "advice": said}))
        return
    show(f"Steps of {work.groups:,} groups of {work.episodes}; {phases.source}", HEADER, [a.row() for a in answers])
    print("\n".join(said))


def _answers(options: argparse.Namespace, phases: Phases, work: Work) -> Iterator[Answer]:
    if (options.servers is None) != (options.trainers is None):
        raise UsageError(_CODE, "--servers and --trainers say a division together; name both")
    if options.servers is not None:
        if work.groups % options.trainers:
            raise UsageError(_CODE, f"{work.groups} groups cannot be shared out among {options.trainers} trainers")
        found = [simulate(phases, work, options.servers, options.trainers, options.steps, options.seed)]
    else:
        found = [quickest(phases, work, gpus, options.steps, options.seed) for gpus in sorted(options.gpus)]
    for each in found:
        lost = losses(phases, work, each, options.mtbf_hours, options.seed)
        yield Answer(**{**{name: getattr(each, name) for name in Answer.__slots__}, "losses": lost})


if __name__ == "__main__":
    main()
