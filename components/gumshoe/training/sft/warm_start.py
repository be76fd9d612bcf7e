"""Warm starts: train an adapter on correct episodes of any policy, as a start for GRPO.

Invariants: unfinished work (verdicts, checkpoints) is in one hidden subdirectory of the adapter's directory, which is
deleted once the adapter is complete. The adapter is complete once its `adapter_config.json` exists. So a warm start
that is killed at any time continues from its last checkpoint, and ends with the same weights as an uninterrupted one.
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
from gumshoe.artifacts.model_card import write_model_card
from gumshoe.artifacts.storage import explain_os_errors, write_atomically
from gumshoe.environments.registry import EnvFactory
from gumshoe.errors import UsageError
from gumshoe.inference.policy_names import load_tokenizer
from gumshoe.rollouts.chat_format.chat_format import ChatFormat
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
    check_start_chat,
    load_splits,
    open_run_env,
    read_prior_lineage,
)
from gumshoe.training.settings import TrainSettings, find_differences
from gumshoe.training.settings_checks import check_devices, check_warm_start
from gumshoe.training.sft.demonstrations import Demonstration, filter_correct, to_demonstrations, write_demonstrations

DONE = "warm_start.json"
"""File in the adapter's directory with the inputs of the warm start and its report."""
VERDICTS = "verdicts.jsonl"
DEMONSTRATIONS = "demonstrations.jsonl"
LEARNED = "learned.json"
"""The trainer's numbers, written after its adapter."""
ADAPTER = "adapter"
WARM_START_FILES = {
    DONE: "Inputs of the warm start, and its report.",
    f"{WARM_START_STATE}/": "State of an unfinished warm start: verdicts of the judge, demonstrations and checkpoints. "
    "`--resume` continues from it.",
}
"""Description of each file of a warm start, beside those of its adapter."""
Model = TypeVar("Model", bound=BaseModel)
_WINDOW = 64  # steps whose demonstrations are sorted by length together
_DECISIVE = (  # settings that must not change when a warm start is resumed
    "environment",
    "chat.",
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
    """The inputs of a warm start; it can only be resumed with the same ones."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    settings: TrainSettings
    trajectories: str
    """SHA-256 of the file."""
    scenarios: str
    """`ScenarioSet.content` of the split `train`."""
    searched: str
    """Fingerprint of the index, from the index itself."""
    base: AdapterBase
    start: str | None
    """SHA-256 of the weights of the adapter to start from, if there is one."""
    before: Lineage | None
    """Lineage of the adapter to start from."""


class WarmStartReport(BaseModel):
    """Numbers of a warm start."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    episodes: int
    """Number of episodes of training scenarios."""
    right: int
    """Number of episodes whose answers the judge accepted."""
    too_long: int
    """Number of accepted episodes that exceed the model's context, and were left out."""
    tokens: int
    """Number of tokens that are trained on: those of the policy."""
    steps: int
    loss: float
    """Mean loss of the last tenth of the steps, in nats per token."""
    seconds: float
    """Duration of the command that finished the warm start."""


class _FinishedWarmStart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    spec: WarmStartSpec
    report: WarmStartReport


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Division of demonstrations into steps and passes."""

    steps: int
    """Number of optimizer steps."""
    passes: int
    """Passes per step and process."""
    episodes: int
    """Episodes per pass."""
    processes: int

    @property
    def batch(self) -> int:
        """Episodes per optimizer step."""
        return self.passes * self.episodes * self.processes

    @classmethod
    def of(cls, settings: TrainSettings, count: int) -> "BatchPlan":
        """Return the plan for this number of demonstrations.

        Raises:
            UsageError: there are fewer episodes per step than processes.
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
    rng = random.Random(seed)  # noqa: S311 - nothing secret
    every: list[int] = []
    while len(every) < steps * batch:
        every += rng.sample(range(len(lengths)), len(lengths))
    window = batch * min(_WINDOW, len(lengths) // batch)  # so that few demonstrations occur twice in a window
    ordered: list[int] = []
    for start in range(0, steps * batch, window):
        near = sorted(every[start : min(start + window, steps * batch)], key=lambda each: lengths[each])
        parts = [near[place : place + batch] for place in range(0, len(near), batch)]
        first = [] if ordered else [parts.pop()]
        for part in (*first, *rng.sample(parts, len(parts))):
            ordered += part
    return ordered


def start_warm(
    settings: TrainSettings, index: Path, scenarios: str, file: Path, directory: Path, *, resume: bool = False
) -> WarmStartReport:
    """Train an adapter on the correct episodes of the split `train` in a trajectory file, and save it.

    The episodes may come from any policy; those of a chat model are rendered with the base model's template. Only the
    turns of the policy are trained on. With `resume`, a warm start with the same arguments continues from its last
    checkpoint; a finished one is left unchanged.

    Raises:
        UsageError: no episode can be trained on; an argument is invalid; or the directory contains other files, or
            another warm start.
        UnavailableError: the judge gave no verdict, or the process was asked to stop; call this again with `resume`.
        GumshoeError: the trainer failed; its own message is on the terminal.
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
    check_start_chat(settings)
    check_same_base(settings)
    learned, _ = load_splits(settings, scenarios)
    by_id = {scenario.id: scenario for scenario in learned}
    episodes = [each for each in read_trajectories(file) if each.scenario in by_id]
    if not episodes:
        raise UsageError(
            "training.no-episodes", f"{file} has no episode of the {len(learned):,} scenarios of the split train"
        )
    chat = ChatFormat(load_tokenizer(base_model(settings)), settings.chat)
    env = open_run_env(settings, index)
    gpus = visible_gpus()
    check_devices(settings, len(gpus))
    allocation = allocate_gpus(gpus, settings.optimizer.processes, 0)
    place = directory / WARM_START_STATE
    with run_lock(directory) as lock:
        with exit_on_sigterm():
            spec = _spec(settings, file, learned, env)
            done = _prepare_directory(directory, spec, resume=resume)
            if done is not None:
                err.print("This warm start has already finished.")
                return done
            right = filter_correct(episodes, by_id, settings.evaluation.judge, place / VERDICTS)
            demonstrations = _to_demonstrations(right, by_id, settings, env, chat)
            if not demonstrations:
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
            plan = BatchPlan.of(settings, len(demonstrations))
            write_demonstrations(place / DEMONSTRATIONS, demonstrations)
        trainers = start_trainers("gumshoe.training.sft.sft_trainer", place / SPEC, plan.processes, allocation, lock)
        check_exit_status(wait_for_trainers(trainers, None), directory)
        report = WarmStartReport(
            episodes=len(episodes),
            right=len(right),
            too_long=len(right) - len(demonstrations),
            tokens=sum(sum(each.mask) for each in demonstrations),
            seconds=round(time.monotonic() - started, 1),
            **json.loads((place / LEARNED).read_bytes()),
        )
        used = {each.scenario for each in demonstrations}
        seen = ScenarioSet(tuple(each for each in learned if each.id in used))
        with explain_os_errors(directory):
            Lineage(learned_from=seen.to_record(), before=spec.before).write(place / ADAPTER)
            write_model_card(place / ADAPTER)
            spec.base.write(place / ADAPTER)
            spec.settings.chat.write(place / ADAPTER)
            _write(place / ADAPTER / DONE, _FinishedWarmStart(spec=spec, report=report))
            _install_adapter(directory)
    return report


def _spec(settings: TrainSettings, file: Path, learned: ScenarioSet, env: EnvFactory) -> WarmStartSpec:
    start = settings.lora.start
    return WarmStartSpec(
        settings=settings,
        trajectories=file_digest(file),
        scenarios=learned.content,
        searched=env.content,
        base=identify_adapter_base(settings),
        start=None if start is None else file_digest(start / ADAPTER_WEIGHTS),
        before=read_prior_lineage(settings),
    )


def _prepare_directory(directory: Path, spec: WarmStartSpec, *, resume: bool) -> WarmStartReport | None:
    """Prepare the directory to start or resume a warm start; return the report if it has finished, else None.

    Raises:
        UsageError: the directory contains other files, a warm start with other inputs, or an unfinished one that is not
            to be resumed.
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
        done = _read(_FinishedWarmStart, directory / DONE)
        _check_same(directory, done.spec, spec)
        shutil.rmtree(place, ignore_errors=True)  # left by a process that was killed before it could
        return done.report
    if (place / SPEC).exists():
        _check_same(directory, _read(WarmStartSpec, place / SPEC), spec)
    with explain_os_errors(place):
        place.mkdir(exist_ok=True)
        _write(place / SPEC, spec)
    return None


def _check_same(directory: Path, before: WarmStartSpec, wanted: WarmStartSpec) -> None:
    """Check that a warm start is resumed with the inputs that it was started with.

    Raises:
        UsageError: an input has changed.
    """
    wanted = WarmStartSpec.model_validate_json(wanted.model_dump_json())  # to compare it with one read from JSON
    changed = [each for each in find_differences(before.settings, wanted.settings) if each.startswith(_DECISIVE)]
    same = {
        "the trajectories": before.trajectories == wanted.trajectories,
        "the scenarios": before.scenarios == wanted.scenarios,
        "the index": before.searched == wanted.searched,
        "the weights to start from": (before.base.fingerprint, before.start) == (wanted.base.fingerprint, wanted.start),
    }
    changed += [name for name, is_same in same.items() if not is_same]
    if changed:
        raise UsageError(
            "training.other-settings",
            f"the warm start in {directory} was started with other inputs ({', '.join(changed)}); resume it with the "
            "same ones, or start a new one with another --out",
        )


def _to_demonstrations(
    episodes: Sequence[Trajectory],
    by_id: Mapping[str, Scenario],
    settings: TrainSettings,
    env: EnvFactory,
    chat: ChatFormat,
) -> list[Demonstration]:
    """Convert episodes to demonstrations, without those that exceed the model's context."""
    converted = (
        to_demonstrations(each, env.new_environment(by_id[each.scenario], settings.rollouts.max_turns), chat)
        for each in episodes
    )
    return [each for parts in converted for each in parts if len(each.ids) <= settings.model.max_context]


def _install_adapter(directory: Path) -> None:
    """Move the adapter's files into its directory, `adapter_config.json` last, and delete everything else."""
    for each in sorted(
        (directory / WARM_START_STATE / ADAPTER).iterdir(), key=lambda each: each.name == ADAPTER_CONFIG
    ):
        each.replace(directory / each.name)
    shutil.rmtree(directory / WARM_START_STATE)


def _read(kind: type[Model], path: Path) -> Model:
    try:
        return kind.model_validate_json(path.read_bytes())
    except ValidationError:
        raise UsageError(
            "training.other-version", f"{path} was written by another version of Gumshoe; choose another --out"
        ) from None


def _write(path: Path, content: BaseModel) -> None:
    write_atomically(path, io.BytesIO(content.model_dump_json(indent=2).encode() + b"\n"))
