"""Run a rollout into a file of trajectories: run missing groups only, and write each group when it ends."""

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, aclosing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from gumshoe.artifacts.lines import GZIP_ERRORS, read_lines
from gumshoe.artifacts.storage import NotFoundError, explain_os_errors, open_locked_file
from gumshoe.environments.registry import EnvFactory, EnvironmentSettings, open_env
from gumshoe.errors import UsageError
from gumshoe.inference.policy import Sampling
from gumshoe.inference.policy_names import PolicyName
from gumshoe.rollouts.agent_code import digest_code
from gumshoe.rollouts.agent_settings import AgentSettings
from gumshoe.rollouts.chat_format.chat_settings import ChatSettings, resolve_chat_settings
from gumshoe.rollouts.engine import RolloutEngine, show_progress
from gumshoe.rollouts.episode import EpisodeLimits, EpisodeRunner, EpisodeStart
from gumshoe.rollouts.episode_runners import check_policy, open_policy
from gumshoe.rollouts.sessions import env_for_policy
from gumshoe.rollouts.tool_threads import ToolThreads
from gumshoe.rollouts.trajectory import AGENT_FAILURES, Trajectory, TrajectoryFileError
from gumshoe.scenarios.scenario import Scenario, ScenarioSet, parse_split
from gumshoe.scenarios.sources import load_scenarios
from gumshoe.terminal import Advance

_AGENT_CODE = "agent_code"  # in the settings of a trajectory
_LEFT_OUT: Mapping[str, Any] = {"agent": None, "chat": {}}  # settings that are recorded unless they have these values


@dataclass(frozen=True, slots=True)
class RolloutOptions:
    """Options of a rollout, as on the command line."""

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
    """None for the default environment of the index."""
    chat: ChatSettings | None = None
    """None for the settings that the policy was trained with, or else the defaults."""
    agent: AgentSettings | None = None
    """None for Gumshoe's own loop."""

    def for_policy(self, word: str) -> "RolloutOptions":
        """Return a copy for another policy, without the tokenizer if the policy takes none."""
        return replace(self, policy=word, tokenizer=self.tokenizer if PolicyName.parse(word).takes_tokenizer else None)

    @property
    def episode_settings(self) -> dict[str, Any]:
        """Settings that affect an episode, in addition to its scenario, the policy and `EnvFactory.provenance`."""
        chat = {} if self.chat is None else self.chat.model_dump(exclude_defaults=True)
        recorded: dict[str, Any] = {"chat": chat} if chat else {}
        if self.agent is not None:
            recorded["agent"] = self.agent.model_dump(mode="json", exclude_defaults=True)
            if (code := digest_code(self.agent)) is not None:
                recorded[_AGENT_CODE] = code
        sampling = {name: value for name, value in asdict(self.sampling).items() if not name.startswith("json_")}
        return {"seed": self.seed, **sampling, **asdict(self.limits), **recorded}


@dataclass(frozen=True, slots=True)
class RolloutReport:
    """Outcome of a rollout."""

    done: int
    """Number of episodes that were run and written."""
    already_there: int
    """Number of episodes that the file already had."""
    endings: dict[str, int]
    """New episodes by ending, the most frequent first."""
    failure: str
    """Details of the first episode whose agent failed or was too slow; empty if there is none."""
    split: int
    """Number of new episodes with several segments."""
    split_reasons: dict[str, int]
    """New episodes by the reason of a segment, the most frequent first. An episode may have several."""
    retried: int
    """Number of retries after failures of infrastructure."""
    dropped: int
    """Number of dropped groups."""
    causes: dict[str, int]
    """Dropped groups by error code."""
    dropped_groups: dict[str, str]
    """Last error of each dropped group, by scenario id."""
    scenarios: str
    """Identifier of the scenarios: `ScenarioSet.content`."""


async def run_to_file(
    settings: RolloutOptions, path: Path, advance: Advance, env_factory: EnvFactory | None = None
) -> RolloutReport:
    """Run the groups that are missing in a file of trajectories, and append them.

    `env_factory` is an index that is already open; without it, the index of the settings is opened.

    Raises:
        UsageError: if the settings are wrong, or another process writes to the file. No episode was started.
        PolicyError: if the policy does not answer at all.
    """
    if path.suffix == ".gz":
        raise UsageError(
            "rollouts.compressed-output", f"cannot append to a .gz file: {path}; use an uncompressed output path"
        )
    name = PolicyName.parse(settings.policy)
    check_policy(name, settings.tokenizer, settings.agent)
    chosen = select_scenarios(settings)
    if settings.chat is None:
        settings = replace(settings, chat=resolve_chat_settings(None, *name.directories, settings.tokenizer))
    opened_env = env_factory or open_env(settings.index, settings.environment)
    env_factory = env_for_policy(opened_env, name, settings.tokenizer)
    limits = settings.limits
    env_factory.check(chosen, limits.max_turns)
    recorded = {**settings.episode_settings, **env_factory.provenance, "weights": name.weights_digest}
    if served := await asyncio.to_thread(name.describe_served):
        recorded["served"] = served
    run: EpisodeRunner

    async def episode(scenario: Scenario, sample: int, attempt: int) -> Trajectory:
        environment = env_factory.new_environment(scenario, limits.max_turns)
        seed = f"{settings.seed}/{scenario.id}/{sample}/{attempt}"
        trajectory = await run(EpisodeStart(environment, seed, limits, threads, sample))
        trajectory.settings = recorded
        return trajectory

    engine = RolloutEngine(episode, settings.concurrency)
    endings, dropped = Counter[str](), dict[str, str]()
    splits, failures = list[set[str]](), list[str]()
    async with AsyncExitStack() as held:
        file, there = held.enter_context(_open_output(path, settings.samples, name.version, recorded))
        missing = [scenario for scenario in chosen if scenario.id not in there]
        advance(total=len(missing) * settings.samples)
        if missing:  # do not require a policy if there is nothing to run
            await asyncio.to_thread(env_factory.get_ready)
            opened = open_policy(
                name, settings.tokenizer, settings.sampling, limits, chat_settings=settings.chat, agent=settings.agent
            )
            run = await held.enter_async_context(opened)
            threads = await held.enter_async_context(ToolThreads())
            held.enter_context(show_progress(engine.progress, advance))
            groups = await held.enter_async_context(aclosing(engine.run(missing, settings.samples)))
            async for group in groups:
                if group.dropped:
                    dropped[group.scenario] = group.dropped
                endings.update(trajectory.ending for trajectory in group.trajectories)
                failures += [each.detail for each in group.trajectories if each.ending in AGENT_FAILURES]
                splits += [{segment.reason for segment in each.segments} for each in group.trajectories]
                with explain_os_errors(path):
                    file.writelines(f"{each.to_json()}\n".encode() for each in group.trajectories)
                    file.flush()
                advance(settings.samples)
    return RolloutReport(
        done=sum(endings.values()),
        already_there=(len(chosen) - len(missing)) * settings.samples,
        endings=dict(endings.most_common()),
        failure=failures[0] if failures else "",
        split=sum(map(bool, splits)),
        split_reasons=dict(Counter(reason for each in splits for reason in sorted(each)).most_common()),
        retried=engine.progress.retried,
        dropped=engine.progress.dropped,
        causes=dict(engine.progress.causes),
        dropped_groups=dropped,
        scenarios=chosen.content,
    )


def select_scenarios(settings: RolloutOptions) -> ScenarioSet:
    """Return the scenarios of a rollout.

    Raises:
        UsageError: if no scenarios are left.
    """
    scenarios = load_scenarios(settings.scenarios)
    if settings.split is not None:
        scenarios = scenarios.only(parse_split(settings.split))
    chosen = ScenarioSet(scenarios.scenarios[: settings.limit])
    if not chosen:
        of = f" in the split {settings.split}" if settings.split else ""
        raise UsageError("rollouts.no-scenarios", f"{settings.scenarios} has no scenarios{of}; choose another")
    return chosen


def read_trajectories(path: Path) -> Iterator[Trajectory]:
    """Yield the trajectories of a file. An incomplete last line, left by a killed run, is ignored.

    Raises:
        TrajectoryFileError: if the file does not exist, or a line is not a trajectory.
    """
    lines = enumerate(read_lines(str(path)), 1)
    try:
        for number, line in lines:
            try:
                if line.strip():
                    yield Trajectory.from_json(line, f"{path}:{number}")
            except TrajectoryFileError:
                if next(lines, None) is not None or not _ends_mid_line(path):
                    raise
    except GZIP_ERRORS as error:
        raise TrajectoryFileError("rollouts.damaged-gzip", f"cannot decompress {path}: {error}") from None
    except NotFoundError as error:
        raise TrajectoryFileError(error.code, str(error)) from None


def _ends_mid_line(path: Path) -> bool:
    """Return True if the last line of a file is incomplete."""
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return path.suffix != ".gz" and file.read(1) != b"\n"


@contextmanager
def _open_output(
    path: Path, samples: int, policy: str, recorded: dict[str, Any]
) -> Iterator[tuple[BinaryIO, set[str]]]:
    """Open a file of trajectories to append to. Yield it with the ids of the scenarios whose groups are complete.

    An incomplete last group or line, left by a killed run, is removed. The file is locked until the block or this
    process ends. If the block fails and a new file is still empty, the file is removed.

    Raises:
        InUseError: if another process has locked it.
        TrajectoryFileError: if a line is not a trajectory, or is of another policy, other settings or a smaller group.
    """
    with ExitStack() as held:
        with explain_os_errors(path):
            file, there = _remove_incomplete(path, samples, policy, recorded, held)
        try:
            yield file, there
        except BaseException:
            if not path.stat().st_size:
                path.unlink()
            raise


def _remove_incomplete(
    path: Path, samples: int, policy: str, recorded: dict[str, Any], held: ExitStack
) -> tuple[BinaryIO, set[str]]:
    """Remove incomplete groups from a file. Return it, locked in `held`, and the scenarios of the complete groups."""
    file = held.enter_context(open_locked_file(path))
    owners = _read_owners(file, path, policy, recorded)
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
        kept = held.enter_context(open_locked_file(partial))  # lock it before it replaces the file
        kept.truncate(0)
        file.seek(0)
        kept.writelines(line for line, owner in zip(file, owners, strict=True) if owner in whole)
        kept.flush()
        os.fsync(kept.fileno())
        partial.replace(path)
        file = kept
    return file, {owner for owner in whole if owner}


def _read_owners(file: BinaryIO, path: Path, policy: str, recorded: dict[str, Any]) -> list[str | None]:
    """Return the scenario id of each line of a file; None for an empty or incomplete line."""
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
        _check_settings(path, found.settings, recorded)
    return owners


def find_changed_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the names of settings of episodes that have another value now.

    A setting that only one of the records has is not compared, except those that are left out at their defaults.
    """
    before, now = {**_LEFT_OUT, **before}, {**_LEFT_OUT, **now}
    return [name for name, value in before.items() if now.get(name, value) != value]


def _check_settings(path: Path, found: dict[str, Any], recorded: dict[str, Any]) -> None:
    """Check that a trajectory has the settings of this rollout.

    Raises:
        TrajectoryFileError: if one is different (see `find_changed_settings`).
    """
    others = [
        f"{name} {found.get(name, _LEFT_OUT.get(name))}"
        for name in find_changed_settings(found, recorded)
        if name != _AGENT_CODE
    ]
    if others:
        raise TrajectoryFileError(
            "rollouts.other-settings",
            f"{path} contains trajectories with other settings: {', '.join(others)}; use another file, or the same "
            "settings",
        )
    if found.get(_AGENT_CODE) != recorded.get(_AGENT_CODE) and {_AGENT_CODE} <= found.keys() & recorded.keys():
        raise TrajectoryFileError(
            "rollouts.other-agent-code",
            f"{path} contains trajectories of the agent before its code was changed; use another file, or remove it",
        )
