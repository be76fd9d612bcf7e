"""One rollout from its settings to its file: only what is missing is run, and each group is written as it ends."""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gumshoe.agent.email import EmailEnvironment
from gumshoe.agent.episode import EpisodeLimits, run_episode
from gumshoe.agent.policies import PolicyName, open_policy
from gumshoe.agent.policy import Sampling
from gumshoe.agent.rollout import RolloutEngine
from gumshoe.agent.trajectory import Trajectory, TrajectoryFileError
from gumshoe.artifacts.lines import DAMAGED, read_lines
from gumshoe.artifacts.storage import NotFoundError, explained
from gumshoe.errors import UsageError
from gumshoe.mail.index import MailIndex
from gumshoe.scenarios.scenario import Scenario, ScenarioSet, as_split
from gumshoe.scenarios.sources import load_scenarios
from gumshoe.terminal import Advance


@dataclass(frozen=True, slots=True)
class Settings:
    """What a rollout is to do; the command line's options."""

    index: Path
    scenarios: str
    policy: str
    tokenizer: str | None = None
    split: str | None = None
    limit: int | None = None
    samples: int = 1
    seed: int = 0
    sampling: Sampling = field(default_factory=Sampling)
    limits: EpisodeLimits = field(default_factory=EpisodeLimits)
    concurrency: int = 64


async def run_to_file(settings: Settings, path: Path, advance: Advance) -> dict[str, Any]:
    """Run what a file of trajectories lacks, and add it: counts of what was done.

    Raises:
        UsageError: the settings cannot be carried out; nothing was begun.
        PolicyError: the policy does not answer at all.
    """
    name = PolicyName.parse(settings.policy)
    chosen = _chosen(settings)
    index = MailIndex(settings.index)
    limits = settings.limits
    for scenario in chosen:
        EmailEnvironment(index, scenario, limits.max_turns)  # raises where it is not about mail
    endings: Counter[str] = Counter()
    dropped: dict[str, str] = {}
    async with open_policy(name, settings.tokenizer, settings.sampling, limits) as speak:

        async def episode(scenario: Scenario, sample: int, attempt: int) -> Trajectory:
            environment = EmailEnvironment(index, scenario, limits.max_turns)
            seed = f"{settings.seed}/{scenario.id}/{sample}/{attempt}"
            with speak(environment, seed) as speaker:
                return await run_episode(speaker, environment, sample, limits)

        engine = RolloutEngine(episode, settings.concurrency)
        with explained(path):
            there = _whole_groups(path, settings.samples, name.version)
        missing = [scenario for scenario in chosen if scenario.id not in there]
        with explained(path), path.open("a", encoding="utf-8") as file:
            state = engine.progress
            async with aclosing(engine.run(missing, settings.samples)) as groups:
                async for group in groups:
                    if group.dropped:
                        dropped[group.scenario] = group.dropped
                    for trajectory in group.trajectories:
                        file.write(f"{trajectory.to_json()}\n")
                        endings[trajectory.ending] += 1
                    file.flush()
                    note = f"{state.running} running, {state.sampled_tokens:,} tokens, {state.retried} again, "
                    advance(len(group.trajectories), note=f"{note}{state.dropped} dropped")
    return {
        "done": sum(endings.values()),
        "already_there": (len(chosen) - len(missing)) * settings.samples,
        "endings": dict(endings.most_common()),
        "retried": state.retried,
        "dropped": state.dropped,
        "causes": dict(state.causes),
        "dropped_groups": dropped,
        "scenarios": chosen.content,
    }


def _chosen(settings: Settings) -> ScenarioSet:
    scenarios = load_scenarios(settings.scenarios)
    if settings.split is not None:
        scenarios = scenarios.only(as_split(settings.split))
    chosen = ScenarioSet(scenarios.scenarios[: settings.limit])
    if not chosen:
        raise UsageError(f"{settings.scenarios} holds no scenario of the split {settings.split}; choose another")
    return chosen


def read_trajectories(path: Path) -> Iterator[Trajectory]:
    """The trajectories of a file. A last line that was cut off, as when a run was killed, is left out.

    Raises:
        TrajectoryFileError: it is not there, or a line is not a trajectory.
    """
    lines = enumerate(read_lines(str(path)), 1)
    try:
        for number, line in lines:
            try:
                if line.strip():
                    yield Trajectory.from_json(line, f"{path}:{number}")
            except TrajectoryFileError:
                if next(lines, None) is not None or not _is_cut(path):
                    raise
    except DAMAGED as error:
        raise TrajectoryFileError(f"{path}: it cannot be unpacked ({error})") from None
    except NotFoundError as error:
        raise TrajectoryFileError(str(error)) from None


def _is_cut(path: Path) -> bool:
    """Whether a file ends within a line."""
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return path.suffix != ".gz" and file.read(1) != b"\n"


def _whole_groups(path: Path, samples: int, policy: str) -> set[str]:
    """Ids of the scenarios whose groups a file has whole. What it has of others, and a line that was cut off when a
    run was killed, is taken out of it.

    Raises:
        TrajectoryFileError: a line is not a trajectory, or another policy's.
    """
    if not path.exists():
        return set()
    lines = path.read_bytes().split(b"\n")
    kept = [line for line in lines[:-1] if line.strip()]  # a whole line ends with its newline
    found = [Trajectory.from_json(line, f"{path}:{number}") for number, line in enumerate(kept, 1)]
    others = sorted({trajectory.policy for trajectory in found} - {policy, ""})
    if others:
        raise TrajectoryFileError(f"{path} holds trajectories of {', '.join(others)}; choose another file for {policy}")
    counts = Counter(trajectory.scenario for trajectory in found)
    whole = {scenario for scenario, count in counts.items() if count >= samples}
    left = [line for line, trajectory in zip(kept, found, strict=True) if trajectory.scenario in whole]
    if len(left) != len(lines) - 1 or lines[-1]:
        partial = path.with_name(f".{path.name}.partial")
        partial.write_bytes(b"".join(line + b"\n" for line in left))
        partial.replace(path)
    return whole
