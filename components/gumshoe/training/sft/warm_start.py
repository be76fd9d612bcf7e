"""A warm start: an adapter learns from episodes that any policy got right, before it learns from rewards.

What always holds: all that is not at its end is in one hidden place of the adapter's directory (verdicts, checkpoints),
which is gone when the adapter is there; and the adapter is there as soon as its `adapter_config.json` is. So a warm
start may be killed at any instant, and goes on from its last checkpoint to the weights of the undisturbed one.
"""

import io
import json
import math
import random
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from gumshoe.artifacts.manifest import file_digest
from gumshoe.artifacts.storage import explain_os_errors, write_atomically
from gumshoe.environments.registry import EnvFactory
from gumshoe.errors import UsageError
from gumshoe.inference.policy_names import load_tokenizer
from gumshoe.rollouts.chat_format import ChatFormat
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.rollouts.writer import read_trajectories
from gumshoe.scenarios.lineage import Lineage
from gumshoe.scenarios.scenario import Scenario, ScenarioSet
from gumshoe.terminal import err
from gumshoe.training.launch.distributed_env import DistributedEnv
from gumshoe.training.launch.supervisor import (
    check_context,
    check_exit_status,
    exit_on_sigterm,
    run_lock,
    start_trainers,
    wait_for_trainers,
)
from gumshoe.training.models.base_model import AdapterBase, check_same_base, identify_adapter_base
from gumshoe.training.planning.gpu_allocation import allocate_gpus, visible_gpus
from gumshoe.training.run_spec import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    SPEC,
    WARM_START_STATE,
    base_model,
    check_start,
    load_splits,
    open_run_env,
    read_prior_lineage,
)
from gumshoe.training.settings import TrainSettings, check_devices, check_warm_start, find_differences
from gumshoe.training.sft.demonstrations import Demonstration, filter_correct, to_demonstration, write_demonstrations

DONE = "warm_start.json"
"""In the adapter's directory: what it was made from, and the report."""
VERDICTS = "verdicts.jsonl"
DEMONSTRATIONS = "demonstrations.jsonl"
LEARNED = "learned.json"
"""What the trainer has to tell; it is written when its adapter is."""
ADAPTER = "adapter"
Kept = TypeVar("Kept", bound=BaseModel)
_WINDOW = 64  # steps whose demonstrations are sorted by length together
_DECIDING = (  # settings, of what is learned and how
    "environment",
    "model.name",
    "model.dtype",
    "model.quantization",
    "model.max_context",
    "lora.",
    "warm_start.",
    "data.train_size",
    "data.seed",
    "rollouts.max_turns",
    "evaluation.judge",
    "optimizer.processes",
    "optimizer.weight_decay",
    "optimizer.max_grad_norm",
)


class WarmStartSpec(BaseModel):
    """What a warm start is of: only one of the same goes on with it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    settings: TrainSettings
    trajectories: str
    """The SHA-256 of the file."""
    scenarios: str
    """`ScenarioSet.content` of the split `train`."""
    searched: str
    """What the index was built from, as it says itself."""
    base: AdapterBase
    start: str | None
    """The SHA-256 of the weights that it begins at, where those are an adapter's."""
    before: Lineage | None
    """What the adapter that it begins at had seen."""


class WarmStartReport(BaseModel):
    """What an adapter learned from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    episodes: int
    """Of the scenarios that are learned from."""
    right: int
    """Those whose answers the judge accepted."""
    too_long: int
    """Of those, the ones that are longer than the model's context, and were left out."""
    tokens: int
    """Said by the policy: what is learned."""
    steps: int
    loss: float
    """Of the last tenth of the steps, in nats a token."""
    seconds: float
    """Of the command that came to the end."""


class _Done(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    spec: WarmStartSpec
    report: WarmStartReport


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """How much is learned, and in what parts."""

    steps: int
    """Optimizer steps."""
    passes: int
    """Of each process in a step."""
    episodes: int
    """In each pass."""
    processes: int

    @property
    def batch(self) -> int:
        """Episodes of an optimizer step."""
        return self.passes * self.episodes * self.processes

    @classmethod
    def of(cls, settings: TrainSettings, count: int) -> "BatchPlan":
        """For so many demonstrations.

        Raises:
            UsageError: they are too few for the processes.
        """
        wanted, optimizer = settings.warm_start, settings.optimizer
        each = min(wanted.batch_size, count) // optimizer.processes
        if not each:
            raise UsageError(
                "training.batch-too-small",
                f"a step of {min(wanted.batch_size, count)} episodes cannot be split over {optimizer.processes} "
                "processes; lower optimizer.processes, or raise warm_start.batch_size and the number of episodes",
            )
        most = min(each, optimizer.per_device_train_batch_size)
        episodes = next(size for size in range(most, 0, -1) if not each % size)
        steps = math.ceil(wanted.epochs * count / (each * optimizer.processes))
        return cls(steps, each // episodes, episodes, optimizer.processes)


def order_demonstrations(lengths: Sequence[int], batch: int, steps: int, seed: int) -> list[int]:
    """Return which demonstration each place of each step takes: [steps * batch].

    The same arguments give the same order. Every demonstration is used once before any is used again. A step takes
    demonstrations of similar length, to save padding; the longest of the first steps come first, so that a lack of
    memory shows at once.
    """
    dice = random.Random(seed)  # noqa: S311 - nothing secret
    every: list[int] = []
    while len(every) < steps * batch:
        every += dice.sample(range(len(lengths)), len(lengths))
    window = batch * min(_WINDOW, len(lengths) // batch)  # one has hardly any of them twice
    ordered: list[int] = []
    for start in range(0, steps * batch, window):
        near = sorted(every[start : min(start + window, steps * batch)], key=lambda each: lengths[each])
        parts = [near[place : place + batch] for place in range(0, len(near), batch)]
        first = [] if ordered else [parts.pop()]
        for part in (*first, *dice.sample(parts, len(parts))):
            ordered += part
    return ordered


def start_warm(
    settings: TrainSettings, index: Path, scenarios: str, file: Path, directory: Path, *, resume: bool = False
) -> WarmStartReport:
    """Train an adapter on those episodes of a file that are about the split `train` and right, and save it.

    Episodes are as `gumshoe rollout` writes them, of any policy; those of a chat model are said again in the words of
    the base model's template. Only what the policy said is learned. With `resume` it goes on where an earlier call
    with the same arguments was stopped, if there was one, and does nothing where that had come to its end.

    Raises:
        UsageError: no episode can be learned from; it cannot be carried out as it was put; or the directory holds
            something else, or a warm start from something else.
        UnavailableError: the judge gave no verdict, or it was asked to end; it is to be called again.
        GumshoeError: the trainer failed; its own words are on the terminal.
    """
    started = time.monotonic()
    check_warm_start(settings)
    machines = DistributedEnv.from_environ().count
    if machines > 1:
        raise UsageError(
            "training.warm-start-multi-node",
            f"a warm start runs on one machine, but PET_NNODES is {machines}; run it without PET_NNODES",
        )
    check_context(settings)
    check_start(settings.lora)
    check_same_base(settings)
    learned, _ = load_splits(settings, scenarios)
    by_id = {scenario.id: scenario for scenario in learned}
    episodes = [each for each in read_trajectories(file) if each.scenario in by_id]
    if not episodes:
        raise UsageError(
            "training.no-episodes", f"{file} has no episode of the {len(learned):,} scenarios of the split train"
        )
    chat = ChatFormat(load_tokenizer(base_model(settings)))
    world = open_run_env(settings, index)
    gpus = visible_gpus()
    check_devices(settings, len(gpus))
    shares = allocate_gpus(gpus, settings.optimizer.processes, 0)
    place = directory / WARM_START_STATE
    with run_lock(directory) as lock:
        with exit_on_sigterm():
            spec = _spec(settings, file, learned, world)
            done = _taken_up(directory, spec, resume=resume)
            if done is not None:
                err.print("This warm start is at its end; there is nothing to go on with.")
                return done
            right = filter_correct(episodes, by_id, settings.evaluation.judge, place / VERDICTS)
            kept = _demonstrations(right, by_id, settings, world, chat)
            if not kept:
                shutil.rmtree(place)
                if right:
                    raise UsageError(
                        "training.episodes-too-long",
                        f"{file}: all {len(right):,} correct episodes are longer than model.max_context "
                        f"{settings.model.max_context:,}; raise it, or give shorter episodes",
                    )
                raise UsageError(
                    "training.no-correct-episodes",
                    f"{file}: the judge accepts none of the {len(episodes):,} episodes of the split train",
                )
            plan = BatchPlan.of(settings, len(kept))
            write_demonstrations(place / DEMONSTRATIONS, kept)
        trainers = start_trainers("gumshoe.training.sft.sft_trainer", place / SPEC, plan.processes, shares, lock)
        check_exit_status(wait_for_trainers(trainers, None), directory)
        report = WarmStartReport(
            episodes=len(episodes),
            right=len(right),
            too_long=len(right) - len(kept),
            tokens=sum(sum(each.mask) for each in kept),
            seconds=round(time.monotonic() - started, 1),
            **json.loads((place / LEARNED).read_bytes()),
        )
        used = {each.scenario for each in kept}
        seen = ScenarioSet(tuple(each for each in learned if each.id in used))
        with explain_os_errors(directory):
            Lineage(learned_from=seen.to_record(), before=spec.before).write(place / ADAPTER)
            spec.base.write(place / ADAPTER)
            _write(place / ADAPTER / DONE, _Done(spec=spec, report=report))
            _put_in_place(directory)
    return report


def _spec(settings: TrainSettings, file: Path, learned: ScenarioSet, world: EnvFactory) -> WarmStartSpec:
    start = settings.lora.start
    return WarmStartSpec(
        settings=settings,
        trajectories=file_digest(file),
        scenarios=learned.content,
        searched=world.content,
        base=identify_adapter_base(settings),
        start=None if start is None else file_digest(start / ADAPTER_WEIGHTS),
        before=read_prior_lineage(settings),
    )


def _taken_up(directory: Path, spec: WarmStartSpec, *, resume: bool) -> WarmStartReport | None:
    """Make the directory ready for a warm start to begin there, or to go on; its report, where it is at its end.

    Raises:
        UsageError: something else is there, or one that is not to be gone on with, or is of something else.
    """
    place = directory / WARM_START_STATE
    is_whole = (directory / ADAPTER_CONFIG).exists()
    others = [each.name for each in directory.iterdir() if each != place]
    if place.exists() and not is_whole and not resume:
        raise UsageError(
            "training.warm-start-unfinished",
            f"{directory} contains an unfinished warm start; continue it with --resume, or choose another --out",
        )
    if others and not resume:
        raise UsageError("training.directory-not-empty", f"{directory} is not empty; choose another --out")
    if others and (is_whole or not place.exists()) and not (directory / DONE).exists():
        raise UsageError(
            "training.nothing-to-resume",
            f"{directory} has files but no warm start to resume; omit --resume and choose another --out",
        )
    if is_whole:
        done = _read(_Done, directory / DONE)
        _check_same(directory, done.spec, spec)
        shutil.rmtree(place, ignore_errors=True)  # of a process that was killed just before it did so
        return done.report
    if (place / SPEC).exists():
        _check_same(directory, _read(WarmStartSpec, place / SPEC), spec)
    with explain_os_errors(place):
        place.mkdir(exist_ok=True)
        _write(place / SPEC, spec)
    return None


def _check_same(directory: Path, before: WarmStartSpec, wanted: WarmStartSpec) -> None:
    """
    Raises:
        UsageError: what was begun is of something else than what is wanted.
    """
    wanted = WarmStartSpec.model_validate_json(wanted.model_dump_json())  # as the other was read
    changed = [each for each in find_differences(before.settings, wanted.settings) if each.startswith(_DECIDING)]
    same = {
        "the trajectories": before.trajectories == wanted.trajectories,
        "the scenarios": before.scenarios == wanted.scenarios,
        "the index": before.searched == wanted.searched,
        "the weights that it begins at": (before.base.fingerprint, before.start)
        == (wanted.base.fingerprint, wanted.start),
    }
    changed += [name for name, is_same in same.items() if not is_same]
    if changed:
        raise UsageError(
            "training.other-settings",
            f"the warm start in {directory} was started with other inputs ({', '.join(changed)}); resume it with the "
            "same ones, or start a new one with another --out",
        )


def _demonstrations(
    episodes: Sequence[Trajectory],
    by_id: Mapping[str, Scenario],
    settings: TrainSettings,
    world: EnvFactory,
    chat: ChatFormat,
) -> list[Demonstration]:
    """Episodes as tokens; but for those that are longer than the model's context."""
    made = (
        to_demonstration(each, world.new_environment(by_id[each.scenario], settings.rollouts.max_turns), chat)
        for each in episodes
    )
    return [each for each in made if len(each.ids) <= settings.model.max_context]


def _put_in_place(directory: Path) -> None:
    """Move the adapter's files to where it belongs, last the one that makes it whole, and remove all else."""
    for each in sorted(
        (directory / WARM_START_STATE / ADAPTER).iterdir(), key=lambda each: each.name == ADAPTER_CONFIG
    ):
        each.replace(directory / each.name)
    shutil.rmtree(directory / WARM_START_STATE)


def _read(kind: type[Kept], path: Path) -> Kept:
    try:
        return kind.model_validate_json(path.read_bytes())
    except ValidationError:
        raise UsageError(
            "training.other-version", f"{path} was written by another version of Gumshoe; choose another --out"
        ) from None


def _write(path: Path, kept: BaseModel) -> None:
    write_atomically(path, io.BytesIO(kept.model_dump_json(indent=2).encode() + b"\n"))
