"""Warm starts: train an adapter or a whole model on correct episodes of any policy, as a start for GRPO.

Invariants: unfinished work (verdicts, checkpoints) is in one hidden subdirectory of the output directory, which is
deleted once the result is complete. An adapter is complete once its `adapter_config.json` exists, and a model once its
`config.json` does. So a warm start that is killed at any time continues from its last checkpoint, and ends with the
same weights as an uninterrupted one.
"""

import hashlib
import io
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from gumshoe.artifacts.manifest import file_digest
from gumshoe.artifacts.model_card import write_model_card
from gumshoe.artifacts.storage import explain_os_errors, write_atomically
from gumshoe.environments.recorded import write_environment
from gumshoe.environments.registry import EnvFactory
from gumshoe.errors import UsageError
from gumshoe.inference.policy_names import ORIGIN_RECORD, load_tokenizer
from gumshoe.rollouts.chat_format.chat_format import ChatFormat
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.rollouts.writer import read_trajectories
from gumshoe.scenarios.lineage import Lineage
from gumshoe.scenarios.scenario import Scenario, ScenarioSet
from gumshoe.terminal import err
from gumshoe.training.launch.checkpoint_sync import CheckpointStore
from gumshoe.training.launch.distributed_env import DistributedEnv
from gumshoe.training.launch.supervisor import (
    check_context,
    check_exit_status,
    exit_on_sigterm,
    run_lock,
    start_trainers,
    wait_for_trainers,
)
from gumshoe.training.models.base_model import CONFIG, AdapterBase, check_same_base, identify_adapter_base
from gumshoe.training.models.model_files import describe_origin, fetch_model
from gumshoe.training.planning.gpu_allocation import GpuAllocation, allocate_gpus, visible_gpus
from gumshoe.training.run_spec import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    SPEC,
    VERDICTS,
    WARM_START_STATE,
    base_model,
    check_start,
    check_start_chat,
    find_checkpoints,
    load_training_scenarios,
    open_run_env,
    read_prior_lineage,
)
from gumshoe.training.settings import TrainSettings, find_differences
from gumshoe.training.settings_checks import check_devices, check_warm_start
from gumshoe.training.sft.batch_plan import BatchPlan
from gumshoe.training.sft.demonstrations import (
    Demonstration,
    filter_correct,
    to_demonstrations,
    warn_if_other_environment,
    write_demonstrations,
)

DONE = "warm_start.json"
"""File in the output directory with the inputs of the warm start and its report."""
DEMONSTRATIONS = "demonstrations.jsonl"
LEARNED = "learned.json"
"""The trainer's numbers, written after the weights."""
TRAINED = "trained"
"""Directory of the trained adapter or model, until all its files are complete."""
WARM_START_FILES = {
    DONE: "Inputs of the warm start, and its report.",
    ORIGIN_RECORD: "With `--full`: the base model and its fingerprint, and the model that it was made from itself "
    "(`origin`).",
    f"{WARM_START_STATE}/": "State of an unfinished warm start: verdicts of the judge, demonstrations and checkpoints. "
    "`--resume` continues from it.",
}
"""Description of each file of a warm start, beside those of its adapter or model."""
Model = TypeVar("Model", bound=BaseModel)
_COMPLETE = (ADAPTER_CONFIG, CONFIG)  # files of which one is installed last: that of an adapter, and that of a model
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
    "rollouts.max_tokens",
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
    """SHA-256 of the file; empty while it does not exist yet."""
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
    """Number of accepted episodes that exceed the model's context, or the tokens of a turn, and were left out; of those
    with several segments, only the segments that do."""
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


class _Inputs(NamedTuple):
    """The checked inputs of a warm start, besides its episodes."""

    learned: ScenarioSet
    """The scenarios of the split `train`."""
    chat: ChatFormat
    env: EnvFactory
    allocation: GpuAllocation


def check_before_episodes(
    settings: TrainSettings, index: Path, scenarios: str, directory: Path, *, resume: bool
) -> WarmStartReport | None:
    """Check the arguments of a warm start whose episodes do not exist yet. See `start_warm` for what it raises.

    Return the report of a warm start that has finished and is resumed with the same arguments, or else None.
    """
    inputs = _check_inputs(settings, index, scenarios)
    return _find_report(directory, _spec(settings, None, inputs), resume=resume)


def start_warm(
    settings: TrainSettings,
    index: Path,
    scenarios: str,
    file: Path,
    directory: Path,
    *,
    resume: bool = False,
    are_correct: bool = False,
    store: CheckpointStore | None = None,
) -> WarmStartReport:
    """Train an adapter or a model on the correct episodes of the split `train` in a trajectory file, and save it.

    The episodes may come from any policy; those of a chat model are rendered with the base model's template. Only the
    turns of the policy are trained on. With `resume`, a warm start with the same arguments continues from its last
    checkpoint; a finished one is left unchanged. `are_correct` is True if all episodes are known to be correct: no
    judge is asked. The work is also kept in `store`, if there is one, and continued from there in a directory that has
    none. The last checkpoint stays there, so that one that has finished is repeated without training.

    Raises:
        UsageError: no episode can be trained on; an argument is invalid; or the directory contains other files, or
            another warm start. Without a checkpoint, other arguments may be tried in the same directory.
        UnavailableError: the judge gave no verdict, or the process was asked to stop; call this again with `resume`.
        GumshoeError: the trainer failed; its own message is on the terminal.
    """
    started = time.monotonic()
    inputs = _check_inputs(settings, index, scenarios)
    by_id = {scenario.id: scenario for scenario in inputs.learned}
    episodes = [each for each in read_trajectories(file) if each.scenario in by_id]
    if not episodes:
        raise UsageError(
            "training.no-episodes", f"{file} has no episode of the {len(by_id):,} scenarios of the split train"
        )
    place = directory / WARM_START_STATE
    with run_lock(directory) as lock:
        with exit_on_sigterm():
            if store is not None:
                store.restore(place, may_begin_again=True)
            spec = _spec(settings, file, inputs)
            done = _find_report(directory, spec, resume=resume)
        if done is not None:
            return done
        kept = nullcontext() if store is None else store.uploading(place, store.claim_attempt(1))
        with _leave_usable(place), kept:
            with exit_on_sigterm():
                warn_if_other_environment(episodes, inputs.env)
                converted = [_convert(each, by_id[each.scenario], settings, inputs) for each in episodes]
                _plan(converted, settings, f"{file}: all {len(episodes):,} episodes of the split train")
                with explain_os_errors(place):
                    place.mkdir(exist_ok=True)
                    _write(place / SPEC, spec)
                if not are_correct:
                    right = filter_correct(episodes, by_id, settings.evaluation.judge, place / VERDICTS)
                    accepted = set(map(id, right))
                    converted = [each for each in converted if id(each.episode) in accepted]
                if not converted:
                    raise UsageError(
                        "training.no-correct-episodes",
                        f"{file}: the judge accepts none of the {len(episodes):,} episodes of the split train",
                    )
                plan = _plan(converted, settings, f"{file}: all {len(converted):,} correct episodes")
                demonstrations = [part for each in converted for part in each.demonstrations]
                write_demonstrations(place / DEMONSTRATIONS, demonstrations)
            module, processes = "gumshoe.training.sft.sft_trainer", plan.processes
            trainers = start_trainers(module, place / SPEC, processes, inputs.allocation, lock)
            check_exit_status(wait_for_trainers(trainers, None), directory)
        report = WarmStartReport(
            episodes=len(episodes),
            right=len(converted),
            too_long=sum(each.is_too_long for each in converted),
            tokens=sum(sum(each.mask) for each in demonstrations),
            seconds=round(time.monotonic() - started, 1),
            **json.loads((place / LEARNED).read_bytes()),
        )
        used = {each.scenario for each in demonstrations}
        seen = ScenarioSet(tuple(each for each in inputs.learned if each.id in used))
        with explain_os_errors(directory):
            Lineage.of(seen, before=spec.before).write(place / TRAINED)
            write_environment(inputs.env, place / TRAINED)
            _write_records(place / TRAINED, _FinishedWarmStart(spec=spec, report=report))
            _install(directory)
    return report


def digest_warm_start(settings: TrainSettings, index: Path, scenarios: str, file: Path | None) -> str:
    """Return a digest of the inputs of a warm start: the same for one that can continue another.

    `file` is None if the episodes are made from the scenarios. See `start_warm` for what it raises.
    """
    spec = _spec(settings, file, _check_inputs(settings, index, scenarios))
    return hashlib.sha256(spec.model_dump_json().encode()).hexdigest()


def _check_inputs(settings: TrainSettings, index: Path, scenarios: str) -> _Inputs:
    """Check settings, index and scenarios, and return what a warm start needs of them.

    Raises:
        UsageError: one of them cannot be used.
    """
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
    learned = load_training_scenarios(settings, scenarios)
    chat = ChatFormat(load_tokenizer(base_model(settings)), settings.chat)
    env = open_run_env(settings, index)
    gpus = visible_gpus()
    check_devices(settings, len(gpus), servers=0)
    return _Inputs(learned, chat, env, allocate_gpus(gpus, settings.optimizer.processes, 0))


@contextmanager
def _leave_usable(place: Path) -> Iterator[None]:
    """Delete the state of a warm start that ends with a usage error before its first checkpoint.

    So the same directory can be used with other arguments. The verdicts of the judge are kept for them.
    """
    try:
        yield
    except UsageError:
        if (place / SPEC).exists() and not find_checkpoints(place):
            for each in place.iterdir():
                if each.is_dir():
                    shutil.rmtree(each)
                elif each.name != VERDICTS:
                    each.unlink()
            if not any(place.iterdir()):
                place.rmdir()
        raise


def _spec(settings: TrainSettings, file: Path | None, inputs: _Inputs) -> WarmStartSpec:
    start, base = settings.lora.start, identify_adapter_base(settings)
    if settings.warm_start.weights == "full" and base.stored == "quantized":
        raise UsageError(
            "settings.full-quantized",
            f"warm_start.weights full requires a model with full weights, but those of {settings.model.name} are "
            "quantized; set model.name to another model, or warm_start.weights to lora",
        )
    return WarmStartSpec(
        settings=settings,
        trajectories="" if file is None else file_digest(file),
        scenarios=inputs.learned.content,
        searched=inputs.env.content,
        base=base,
        start=None if start is None else file_digest(start / ADAPTER_WEIGHTS),
        before=read_prior_lineage(settings),
    )


def _find_report(directory: Path, spec: WarmStartSpec, *, resume: bool) -> WarmStartReport | None:
    """Check that a warm start can begin or go on in a directory. Return the report if it has finished, else None.

    Raises:
        UsageError: the directory contains other files, a warm start with other inputs, or an unfinished one that is not
            to be resumed.
    """
    place = directory / WARM_START_STATE
    is_begun = (place / SPEC).exists()
    is_whole = any((directory / each).exists() for each in _COMPLETE)
    others = [each.name for each in directory.iterdir() if each != place]
    if is_begun and not is_whole and not resume:
        raise UsageError(
            "training.warm-start-unfinished",
            f"{directory} contains an unfinished warm start; continue it with --resume, or choose another --out",
        )
    if others and not resume:
        raise UsageError("training.directory-not-empty", f"{directory} is not empty; choose another --out")
    if others and (is_whole or not is_begun) and not (directory / DONE).exists():
        raise UsageError(
            "training.nothing-to-resume",
            f"{directory} has files but no warm start to resume; omit --resume and choose another --out",
        )
    if is_whole:
        done = _read(_FinishedWarmStart, directory / DONE)
        _check_same(directory, done.spec, spec)
        err.print("This warm start has already finished.")
        shutil.rmtree(place, ignore_errors=True)  # left by a process that was killed before it could
        return done.report
    if is_begun:
        _check_same(directory, _read(WarmStartSpec, place / SPEC), spec)
    return None


def _check_same(directory: Path, before: WarmStartSpec, wanted: WarmStartSpec) -> None:
    """Check that a warm start is resumed with the inputs that it was started with.

    Raises:
        UsageError: an input has changed.
    """
    wanted = WarmStartSpec.model_validate_json(wanted.model_dump_json())  # to compare it with one read from JSON
    changed = [each for each in find_differences(before.settings, wanted.settings) if each.startswith(_DECISIVE)]
    same = {
        "the trajectories": wanted.trajectories in ("", before.trajectories),
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


class _Converted(NamedTuple):
    """An episode and its demonstrations."""

    episode: Trajectory
    demonstrations: list[Demonstration]
    """Without those that are too long."""
    is_too_long: bool
    """A demonstration is left out."""


def _convert(episode: Trajectory, scenario: Scenario, settings: TrainSettings, inputs: _Inputs) -> _Converted:
    environment = inputs.env.new_environment(scenario, settings.rollouts.max_turns)
    parts = to_demonstrations(episode, environment, inputs.chat)
    kept = [part for part in parts if _is_possible(part, settings)]
    return _Converted(episode, kept, len(kept) < len(parts))


def _plan(converted: Sequence[_Converted], settings: TrainSettings, what: str) -> BatchPlan:
    """Return the plan for the demonstrations of some episodes. An error begins with `what`.

    Raises:
        UsageError: all episodes are too long, or there are fewer per step than processes.
    """
    count = sum(len(each.demonstrations) for each in converted)
    if not count:
        raise UsageError(
            "training.episodes-too-long",
            f"{what} are longer than model.max_context {settings.model.max_context:,}, or have a turn that is longer "
            f"than rollouts.max_tokens {settings.rollouts.max_tokens:,}; raise the limit, or give shorter episodes",
        )
    return BatchPlan.of(settings, count)


def _is_possible(demonstration: Demonstration, settings: TrainSettings) -> bool:
    """Return True if the policy can do the same within its limits: the model's context, and the tokens of a turn."""
    longest = settings.rollouts.max_tokens + (settings.chat.thinking_budget or 0)
    turns = (sum(run) for _, run in groupby(demonstration.mask))
    return len(demonstration.ids) <= settings.model.max_context and max(turns, default=0) <= longest


def _write_records(directory: Path, finished: _FinishedWarmStart) -> None:
    """Write what is known about an adapter or a model into its directory."""
    spec = finished.spec
    spec.settings.chat.write(directory)
    _write(directory / DONE, finished)
    if spec.settings.warm_start.weights == "lora":
        spec.base.write(directory)
        write_model_card(directory)
        return
    name = spec.settings.model.name
    origin = describe_origin(name, fetch_model(name))
    write_atomically(directory / ORIGIN_RECORD, io.BytesIO(json.dumps(origin, indent=2).encode() + b"\n"))


def _install(directory: Path) -> None:
    """Move the adapter or model into the output directory, its file of `_COMPLETE` last, and delete everything else.

    Directories that a killed process has moved already are replaced.
    """
    for each in sorted((directory / WARM_START_STATE / TRAINED).iterdir(), key=lambda each: each.name in _COMPLETE):
        place = directory / each.name
        if place.is_dir():
            shutil.rmtree(place)
        each.replace(place)
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
