"""One rollout from its settings to its file: only what is missing is run, and each group is written as it ends."""

import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, aclosing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from gumshoe.artifacts.lines import DAMAGED, read_lines
from gumshoe.artifacts.storage import NotFoundError, explain_os_errors, held_file
from gumshoe.environments.registry import EnvFactory, EnvironmentSettings, open_env
from gumshoe.errors import UsageError
from gumshoe.inference.policy import Sampling
from gumshoe.inference.policy_names import PolicyName
from gumshoe.rollouts.engine import RolloutEngine, RolloutProgress
from gumshoe.rollouts.episode import EpisodeLimits, run_episode
from gumshoe.rollouts.sessions import OpenChatSession, env_for_policy, open_policy
from gumshoe.rollouts.tool_threads import ToolThreads
from gumshoe.rollouts.trajectory import Trajectory, TrajectoryFileError
from gumshoe.scenarios.scenario import Scenario, ScenarioSet, as_split
from gumshoe.scenarios.sources import load_scenarios
from gumshoe.terminal import Advance

_LOOK = 0.5  # seconds between two looks at how far a rollout is


@dataclass(frozen=True, slots=True)
class RolloutOptions:
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
    environment: EnvironmentSettings | None = None
    """As the index tells, where none is named."""

    @property
    def of_an_episode(self) -> dict[str, Any]:
        """What decides how an episode goes, beside its scenario, the policy, and what a `EnvFactory` notes."""
        return {"seed": self.seed, **asdict(self.sampling), **asdict(self.limits)}


@dataclass(frozen=True, slots=True)
class RolloutReport:
    """What a rollout did."""

    done: int
    """Episodes that were run and written."""
    already_there: int
    """Episodes that the file had."""
    endings: dict[str, int]
    """Episodes that were run, by their ending, the commonest first."""
    retried: int
    """Episodes that were begun again for want of infrastructure."""
    dropped: int
    """Groups that were left out."""
    causes: dict[str, int]
    """Why, by error code."""
    dropped_groups: dict[str, str]
    """The last failure of each, by its scenario's id."""
    scenarios: str
    """Which these were: `ScenarioSet.content`."""


async def run_to_file(
    settings: RolloutOptions, path: Path, advance: Advance, world: EnvFactory | None = None
) -> RolloutReport:
    """Run what a file of trajectories lacks, and add it; in a world that is open already, if one is given.

    Raises:
        UsageError: the settings cannot be carried out, or another process writes to the file; nothing was begun.
        PolicyError: the policy does not answer at all.
    """
    if path.suffix == ".gz":
        raise UsageError(
            "rollouts.compressed-output", f"cannot append to a .gz file: {path}; use an uncompressed output path"
        )
    name = PolicyName.parse(settings.policy)
    chosen = chosen_scenarios(settings)
    world = env_for_policy(world or open_env(settings.index, settings.environment), name)
    limits = settings.limits
    world.check(chosen, limits.max_turns)
    noted = {**settings.of_an_episode, **world.provenance, "weights": name.weights}
    speak: OpenChatSession

    async def episode(scenario: Scenario, sample: int, attempt: int) -> Trajectory:
        environment = world.new_environment(scenario, limits.max_turns)
        seed = f"{settings.seed}/{scenario.id}/{sample}/{attempt}"
        with speak(environment, seed) as speaker:
            trajectory = await run_episode(speaker, environment, sample, limits, threads)
        trajectory.settings = noted
        return trajectory

    engine = RolloutEngine(episode, settings.concurrency)
    endings, dropped = Counter[str](), dict[str, str]()
    async with AsyncExitStack() as held:
        file, there = held.enter_context(_opened(path, settings.samples, name.version, noted))
        missing = [scenario for scenario in chosen if scenario.id not in there]
        advance(total=len(missing) * settings.samples)
        if missing:  # a policy may be gone by the time that nothing is asked of it
            await asyncio.to_thread(world.get_ready)
            opened = open_policy(name, settings.tokenizer, settings.sampling, limits)
            speak = await held.enter_async_context(opened)
            threads = await held.enter_async_context(ToolThreads())
            held.enter_context(_shown(engine.progress, advance))
            groups = await held.enter_async_context(aclosing(engine.run(missing, settings.samples)))
            async for group in groups:
                if group.dropped:
                    dropped[group.scenario] = group.dropped
                endings.update(trajectory.ending for trajectory in group.trajectories)
                with explain_os_errors(path):
                    file.writelines(f"{each.to_json()}\n".encode() for each in group.trajectories)
                    file.flush()
                advance(settings.samples)
    return RolloutReport(
        done=sum(endings.values()),
        already_there=(len(chosen) - len(missing)) * settings.samples,
        endings=dict(endings.most_common()),
        retried=engine.progress.retried,
        dropped=engine.progress.dropped,
        causes=dict(engine.progress.causes),
        dropped_groups=dropped,
        scenarios=chosen.content,
    )


@contextmanager
def _shown(state: RolloutProgress, advance: Advance) -> Iterator[None]:
    """Keep the progress line up to date while the block runs."""
    started = time.monotonic()

    def show() -> None:
        pace = state.sampled_tokens / (time.monotonic() - started + _LOOK)
        counts = f"{state.running} running, {state.retried} again, {state.dropped} dropped"
        advance(note=f"{pace:,.0f} tokens/s, {counts}")

    async def keep_showing() -> None:
        while True:
            show()
            await asyncio.sleep(_LOOK)

    showing = asyncio.create_task(keep_showing())
    try:
        yield
    finally:
        showing.cancel()
        show()


def chosen_scenarios(settings: RolloutOptions) -> ScenarioSet:
    """The scenarios that a rollout is of.

    Raises:
        UsageError: there are none.
    """
    scenarios = load_scenarios(settings.scenarios)
    if settings.split is not None:
        scenarios = scenarios.only(as_split(settings.split))
    chosen = ScenarioSet(scenarios.scenarios[: settings.limit])
    if not chosen:
        of = f" in the split {settings.split}" if settings.split else ""
        raise UsageError("rollouts.no-scenarios", f"{settings.scenarios} has no scenarios{of}; choose another")
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
        raise TrajectoryFileError("rollouts.damaged-gzip", f"cannot decompress {path}: {error}") from None
    except NotFoundError as error:
        raise TrajectoryFileError(error.code, str(error)) from None


def _is_cut(path: Path) -> bool:
    """Whether a file ends within a line."""
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return path.suffix != ".gz" and file.read(1) != b"\n"


@contextmanager
def _opened(path: Path, samples: int, policy: str, noted: dict[str, Any]) -> Iterator[tuple[BinaryIO, set[str]]]:
    """A file of trajectories to add to, and the ids of the scenarios whose groups it has whole.

    What a run that was killed left of its last group is taken out of it, with a line that was cut off. No other
    process can do the same until the block, or this process, ends. Where the block fails and nothing was added to a
    new file, it is not there.

    Raises:
        InUseError: another process has it.
        TrajectoryFileError: a line is not a trajectory, or another policy's, or was run
            with other settings, or is of a group that had fewer samples.
    """
    with ExitStack() as held:
        with explain_os_errors(path):
            file, there = _repaired(path, samples, policy, noted, held)
        try:
            yield file, there
        except BaseException:
            if not path.stat().st_size:
                path.unlink()
            raise


def _repaired(
    path: Path, samples: int, policy: str, noted: dict[str, Any], held: ExitStack
) -> tuple[BinaryIO, set[str]]:
    """The file, and the scenarios whose groups it has whole, with nothing else in it. It is `held` from here on."""
    file = held.enter_context(held_file(path))
    owners = _owners(file, path, policy, noted)
    counts = Counter(owner for owner in owners if owner)
    whole = {owner for owner, count in counts.items() if count >= samples}
    last = next((owner for owner in reversed(owners) if owner), None)
    smaller = [count for owner, count in counts.items() if count < samples and owner != last]
    if smaller:
        raise TrajectoryFileError(
            "rollouts.other-group-size",
            f"{path} has groups of {max(smaller)} samples, but {samples} were requested; use another file, or the "
            "number of samples that it was started with",
        )
    if not whole.issuperset(owners):
        partial = path.with_name(f".{path.name}.partial")
        kept = held.enter_context(held_file(partial))  # held before it is seen in the other's place
        kept.truncate(0)
        file.seek(0)
        kept.writelines(line for line, owner in zip(file, owners, strict=True) if owner in whole)
        kept.flush()
        os.fsync(kept.fileno())
        partial.replace(path)
        file = kept
    return file, {owner for owner in whole if owner}


def _owners(file: BinaryIO, path: Path, policy: str, noted: dict[str, Any]) -> list[str | None]:
    """The scenario of each line of a file; None for a line that is empty, or was cut off."""
    owners: list[str | None] = []
    file.seek(0)
    for number, line in enumerate(file, 1):
        if not line.strip() or not line.endswith(b"\n"):
            owners.append(None)
            continue
        found = Trajectory.from_json(line, f"{path}:{number}")
        owners.append(sys.intern(found.scenario))
        if found.policy not in (policy, ""):
            raise TrajectoryFileError(
                "rollouts.other-policy",
                f"{path} contains trajectories of another policy: {found.policy}; use another file for {policy}",
            )
        others = [f"{name} {value}" for name, value in found.settings.items() if noted.get(name, value) != value]
        if others:
            raise TrajectoryFileError(
                "rollouts.other-settings",
                f"{path} contains trajectories with other settings: {', '.join(others)}; use another file, or the "
                "same settings",
            )
    return owners
