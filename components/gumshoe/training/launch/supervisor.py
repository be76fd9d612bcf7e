"""Supervise a run (`gumshoe train`): start the servers and the trainers, watch both, and end them."""

import errno
import io
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from gumshoe.artifacts.storage import Deadline, DeadlineError, lock_directory, make_writable_directory, write_atomically
from gumshoe.errors import GumshoeError, UnavailableError, UsageError
from gumshoe.evaluation.proof.proof_models import PROOF, PROOF_PAGE
from gumshoe.inference.policy_names import load_tokenizer
from gumshoe.inference.vllm_server import check_server, find_free_ports, server_address
from gumshoe.rollouts.agent_code import digest_code
from gumshoe.rollouts.chat_format.chat_format import ChatFormat
from gumshoe.signals import handle_signals
from gumshoe.terminal import err, printable
from gumshoe.training.attempts import record_attempt
from gumshoe.training.launch.adapter_transfer import check_adapter_transfer
from gumshoe.training.launch.checkpoint_sync import INCOMING, OUTGOING, CheckpointStore
from gumshoe.training.launch.distributed_env import DistributedEnv
from gumshoe.training.launch.machine_checks import check_engine, prepare_machine
from gumshoe.training.launch.servers import Servers, create_servers, find_server_logs
from gumshoe.training.models.base_model import check_same_base, check_servable
from gumshoe.training.models.model_shape import read_context
from gumshoe.training.planning.gpu_allocation import GpuAllocation, available_processors
from gumshoe.training.run_directory import how_to_continue
from gumshoe.training.run_proof import write_run_proof
from gumshoe.training.run_spec import (
    ADAPTERS,
    ATTEMPTS,
    BASELINE,
    BEST,
    BEST_BEFORE,
    CHECKPOINT,
    EPISODES,
    FINAL,
    METADATA,
    METRICS,
    PAGE,
    PLOTS,
    PROGRESS,
    SERVED,
    SPEC,
    STALLED,
    TENSORBOARD,
    TIMELINE,
    RunSpec,
    base_model,
    check_start,
    check_start_chat,
    find_best,
    find_checkpoints,
    load_splits,
    open_run_env,
    read_prior_lineage,
)
from gumshoe.training.settings import TrainSettings, find_differences
from gumshoe.training.settings_checks import check_plugins, check_settings
from gumshoe.training.train_request import TrainRequest

_TRAINER = "gumshoe.training.grpo.run"
_NODE_PREFIX = ".machine-"  # of a subdirectory of the run's directory, for each machine but the first
_POLL = 0.25  # seconds
_SETTLE = 2.0  # seconds for the other trainers to end after one has failed
_SIGNAL = 128  # statuses from here on mean: ended by a signal
_ENDED = _SIGNAL + signal.SIGTERM  # status of the reaper if it was asked to end its trainer
_KILLED = 256 - signal.SIGKILL  # status of the reaper if the trainer was killed, e.g. because memory ran out
_GRACE = 25.0  # seconds for the trainer to save and exit
_LOCK_TIMEOUT = _GRACE + 10  # seconds to wait for the processes of a run whose supervisor was killed
_CHANGEABLE = (  # settings that may change when a run is resumed
    "output.",
    "evaluation.eval_steps",
    "evaluation.target_accuracy",
    "evaluation.patience",
    "evaluation.baseline",
    "model.check_memory",
    "model.gradient_checkpointing",
    "costs.",
    "lora.start",  # a resumed run starts from a checkpoint
    "rollouts.engine",
    "rollouts.servers",
    "rollouts.handover",
    "rollouts.num_servers",
    "rollouts.concurrency",
    "rollouts.gpu_memory",
    "optimizer.max_steps",
    "optimizer.num_train_epochs",
)
_NEW_RUN = "start a new run with another --out; in a pipeline, with another `run` or none (`--new`)"
_EXTENDS_RUN = {
    "evaluation.target_accuracy",
    "evaluation.patience",
    "optimizer.max_steps",
    "optimizer.num_train_epochs",
}


def train(request: TrainRequest, *, resume: bool, replace_run: bool) -> Path:
    """Train, and return the run's directory.

    If several machines share the run, each calls this with the same arguments. The first one decides where the run
    continues, and keeps the result.

    Raises:
        UsageError: the request is invalid; nothing was started.
        UnavailableError: the process was asked to stop; a server or the trainer made no progress; a server sampled from
            another policy, or kept ending; or another process uses the run's directory.
        GumshoeError: the trainer failed; its own message is on the terminal.
    """
    settings, scenarios, index = request.resolve(), request.scenarios, Path(request.index)
    learned, chosen_on = load_splits(settings, scenarios)
    check_settings(settings, len(learned))
    check_plugins(settings)
    ChatFormat(load_tokenizer(base_model(settings)), settings.chat)
    check_context(settings)
    check_start(settings.lora)
    check_start_chat(settings)
    check_same_base(settings)
    check_servable(settings)
    env = open_run_env(settings, index)
    env.check((*learned, *chosen_on), settings.rollouts.max_turns)
    env.get_ready()
    node = DistributedEnv.from_environ()
    if settings.servers and node.count > 1:
        raise UsageError(
            "training.external-servers-required",
            f"a run on {node.count} machines cannot start its own vLLM servers; start them separately and set "
            "rollouts.servers, or set rollouts.engine to transformers",
        )
    check_engine(settings)
    urls = tuple(map(server_address, settings.rollouts.servers)) if settings.mode != "simple" else ()
    if settings.rollouts.handover is not None:
        check_adapter_transfer(settings.rollouts.handover)
    elif not node.rank:
        for url in urls:
            check_server(url, settings.model.max_context)
    settings, allocation = prepare_machine(settings, node)
    directory = make_writable_directory(
        str(settings.directory / f"{_NODE_PREFIX}{node.rank}" if node.rank else settings.directory)
    )
    wanted = RunSpec(
        settings=settings.model_copy(
            update={"output": settings.output.model_copy(update={"directory": directory.absolute()})}
        ),
        index=index.absolute(),
        scenarios=scenarios,
        content=f"{learned.content} {chosen_on.content} {learned.order}",
        searched=env.content,
        run=secrets.token_hex(3),
        attempt=1,
        before=read_prior_lineage(settings),
        agent_code=digest_code(settings.agent) if settings.agent else None,
        urls=urls,
    )
    with ExitStack() as stack:
        lock = stack.enter_context(run_lock(directory))
        if node.rank:
            check_exit_status(_train_other_node(wanted, node, allocation, lock), directory)
            return directory
        store = _checkpoint_store(settings)
        if store is not None:
            with exit_on_sigterm():
                store.restore(directory) if resume else store.check_free()
        spec = _resume_spec(wanted) if resume else _prepare_new_run(wanted, replace_run=replace_run)
        if spec is None:
            ended = _read_spec(directory / SPEC)
            if not (directory / PROOF).exists():  # the process was killed before it wrote the proof
                _prove(directory)
            if store is not None and ended is not None:
                with store.uploading(directory, ended.attempt):  # files that could not be uploaded when the run ended
                    pass
            err.print("This run has already finished.")
            node.announce_end(settings.optimizer.processes)
            return directory
        if store is not None:
            spec = spec.model_copy(update={"attempt": store.claim_attempt(spec.attempt)})
        _write_spec(spec)  # before the servers start, which takes minutes, so that the run can be resumed from here on
        servers = None
        with _record_attempt(spec, allocation, node.count):
            if settings.servers:
                servers = create_servers(settings, directory, allocation)
                err.print(f"Starting {settings.servers} vLLM servers" if settings.servers > 1 else "Starting vLLM")
                with exit_on_sigterm():
                    stack.enter_context(servers)
                spec = spec.model_copy(update={"urls": servers.urls})
            _write_spec(spec)
            if store is not None:
                stack.enter_context(store.uploading(directory, spec.attempt))
            trainers = start_trainers(_TRAINER, directory / SPEC, settings.optimizer.processes, allocation, lock, node)
            check_exit_status(wait_for_trainers(trainers, servers), directory)
        _prove(directory)
    return directory


def _record_attempt(spec: RunSpec, allocation: GpuAllocation, nodes: int) -> AbstractContextManager[None]:
    """Record the start and the end of an attempt, with the hardware that it holds."""
    own = {*allocation.trainers, *(gpu for each in allocation.servers for gpu in each)}
    gpus = len(own) * nodes + spec.settings.costs.server_gpus
    return record_attempt(spec.directory / ATTEMPTS, spec.attempt, gpus, available_processors() * nodes)


def _prove(directory: Path) -> None:
    """Write the proof of a finished run. A run without the records that it needs ends with a warning."""
    try:
        write_run_proof(directory)
    except UsageError as error:
        err.print(f"[bold yellow]warning:[/] {printable(error.message_with_code)}", soft_wrap=True)


def _train_other_node(wanted: RunSpec, node: DistributedEnv, allocation: GpuAllocation, lock: int) -> int:
    """Train on a machine other than the first, in an empty directory, and return the exit status of the trainers."""
    directory = wanted.directory
    _remove(directory, *(each.name for each in directory.iterdir() if not each.name.startswith(".")))
    _write_spec(wanted)
    processes = wanted.settings.optimizer.processes
    status = wait_for_trainers(start_trainers(_TRAINER, directory / SPEC, processes, allocation, lock, node), None)
    if not status:
        _remove(directory, *(each.name for each in directory.iterdir() if not each.name.startswith(".")))
    return status


def check_exit_status(status: int, directory: Path) -> None:
    """Raise the error for the exit status of trainers that did not finish.

    Raises:
        UsageError, UnavailableError, GumshoeError: the status is not 0.
    """
    if status == _KILLED:
        raise UnavailableError(
            "training.killed",
            f"the trainer of {directory} was killed, e.g. because memory ran out; {how_to_continue()}, or start "
            "again with a lower optimizer.per_device_train_batch_size if memory was short",
        )
    if status in (UnavailableError.exit_status, _ENDED):
        raise UnavailableError("training.interrupted", f"the run in {directory} is not finished; {how_to_continue()}")
    if status == UsageError.exit_status:
        raise UsageError("training.trainer-refused", "the trainer could not start; see its error above")
    if status:
        raise GumshoeError(
            "training.trainer-failed",
            f"the trainer ended with status {status}; see its error above, then {how_to_continue()}",
        )


def _checkpoint_store(settings: TrainSettings) -> CheckpointStore | None:
    output = settings.output
    return CheckpointStore(output.checkpoints, output.save_total_limit) if output.checkpoints else None


@contextmanager
def run_lock(directory: Path) -> Iterator[int]:
    """Hold the lock of a run's directory while the block runs, and yield its file descriptor.

    The trainers hold the lock too, because they may still be saving after their supervisor was killed.

    Raises:
        UnavailableError: another process keeps the lock.
    """
    with ExitStack() as stack:
        lock = stack.enter_context(lock_directory(directory, None))
        if lock is None:
            err.print(f"Waiting for another process that uses {directory}", soft_wrap=True)
            try:
                lock = stack.enter_context(lock_directory(directory, Deadline(_LOCK_TIMEOUT)))
            except DeadlineError:
                raise UnavailableError(
                    "training.directory-in-use", f"another process is at work in {directory}; wait until it ends"
                ) from None
        if lock is None:
            raise AssertionError("waiting for a lock ends with the lock or with DeadlineError")
        yield lock


def _write_spec(spec: RunSpec) -> None:
    """Write the specification into the run's directory.

    Raises:
        UnavailableError: the disk is full.
    """
    try:
        write_atomically(spec.directory / SPEC, io.BytesIO(spec.model_dump_json(indent=2).encode() + b"\n"))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UnavailableError(
            "training.disk-full", f"the disk of {spec.directory} is full; free space, then {how_to_continue()}"
        ) from None


def check_context(settings: TrainSettings) -> None:
    """Check that the base model supports `model.max_context` tokens.

    Raises:
        UsageError: the model does not exist, `transformers` does not support it, or its context is shorter.
    """
    most = read_context(base_model(settings))
    if most is not None and settings.model.max_context > most:
        raise UsageError(
            "training.context-exceeds-model",
            f"model.max_context {settings.model.max_context:,} is more than the {most:,} tokens that "
            f"{settings.model.name} supports; lower it",
        )


def _resume_spec(wanted: RunSpec) -> RunSpec | None:
    """Return the specification to resume the run in a directory; None if the run has finished and is not extended.

    If the directory contains no run, return the one that is wanted.

    Raises:
        UsageError: the run was started with other settings or data, or with other code of its agent.
    """
    directory = wanted.directory
    before = _read_spec(directory / SPEC)
    if before is None:
        if any(not each.name.startswith(".") for each in directory.iterdir()):  # hidden files are unfinished
            raise UsageError(
                "training.nothing-to-resume",
                f"{directory} has files but no run to resume; omit --resume, or choose another --out",
            )
        return wanted
    changes = find_differences(before.settings, TrainSettings.model_validate_json(wanted.settings.model_dump_json()))
    changed = [each for each in changes if not each.startswith(_CHANGEABLE)]
    if before.content != wanted.content:
        changed.append("the scenarios")
    if before.searched != wanted.searched:
        changed.append("the index")
    place = before.settings.output.checkpoints or directory
    if changed:
        raise UsageError(
            "training.other-settings",
            f"the run in {place} was started with other settings ({', '.join(changed)}); resume it with the same "
            f"ones, or {_NEW_RUN}",
        )
    if wanted.has_other_agent_code(before):
        agent = wanted.settings.agent.word if wanted.settings.agent else ""
        raise UsageError(
            "training.other-agent-code",
            f"the run in {place} was started with other code of the agent {agent}; restore that code, or {_NEW_RUN}",
        )
    if (directory / FINAL / METADATA).exists() and not _EXTENDS_RUN & set(changes):
        return None
    best = find_best(directory)
    if best != directory / BEST:
        _remove(directory, BEST)
        if best is not None:
            best.rename(directory / BEST)
    _remove(directory, BEST_BEFORE, SERVED, STALLED, FINAL, ADAPTERS, PROOF, PROOF_PAGE)
    known = {"run": before.run, "attempt": before.attempt + 1, "resume": True}
    if find_checkpoints(directory):  # their weights come from the first start, even if lora.start has changed
        known["before"] = before.before
    return wanted.model_copy(update=known)


def _prepare_new_run(wanted: RunSpec, *, replace_run: bool) -> RunSpec:
    """Prepare the directory for a new run, and return its specification.

    Raises:
        UsageError: the directory contains another run, and `replace_run` is False.
    """
    directory = wanted.directory
    if not replace_run and _read_spec(directory / SPEC) is not None:
        raise UsageError(
            "training.run-exists",
            f"{directory} already contains a run; continue it with --resume, overwrite it with --replace, or choose "
            "another --out",
        )
    kept = [each.name for each in directory.glob(f"{CHECKPOINT}*")]
    own = (*kept, BEST, BEST_BEFORE, FINAL, ADAPTERS, PLOTS, TENSORBOARD)
    if not replace_run and (there := [name for name in own if (directory / name).exists()]):
        raise UsageError(
            "training.foreign-files",
            f"{directory} contains {', '.join(there)}, but no run; choose another --out, or have them deleted with "
            "--replace",
        )
    shown = (PAGE, TIMELINE, PROOF, PROOF_PAGE)
    logs = [each.name for each in find_server_logs(directory)]
    records = (SPEC, BASELINE, SERVED, METRICS, EPISODES, ATTEMPTS, STALLED, PROGRESS)
    _remove(directory, *records, *shown, *logs, INCOMING, OUTGOING, *own)
    return wanted


def _remove(directory: Path, *names: str) -> None:
    for place in (directory / name for name in names):
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)


def _read_spec(path: Path) -> RunSpec | None:
    try:
        return RunSpec.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError:
        raise UsageError(
            "training.other-version",
            f"{path} was written by another version of Gumshoe; choose another --out, or overwrite it with --replace",
        ) from None


def wait_for_trainers(processes: Iterator[subprocess.Popen[bytes]], servers: Servers | None) -> int:
    """Wait until the trainers end, restart servers that end meanwhile, and return the exit status of the trainers.

    If one trainer fails, the others are stopped.
    """
    with _stop_trainers_on_exit(list(processes)) as signals:
        trainers = signals.trainers
        while None in (codes := [each.poll() for each in trainers]) and not any(codes):
            time.sleep(_POLL)
            if servers is not None:
                servers.restart_ended(lambda: signals.is_stopping)
        if None in codes:
            time.sleep(_SETTLE)  # one has failed, so the others are about to fail
        return exit_status_of([code for each in trainers if (code := each.poll())])


def exit_status_of(failed: Sequence[int]) -> int:
    """Return the exit status that explains why trainers ended; 0 if none failed.

    The order of preference: killed; failed by itself; stopped, or lost another trainer; crashed with a signal such as
    SIGABRT, which may follow from the failure of another trainer.
    """

    def priority(code: int) -> int:
        if code == _KILLED:
            return 0
        if code in (UnavailableError.exit_status, _ENDED):
            return 2
        return 1 if code < _SIGNAL else 3

    return min(failed, key=priority, default=0)


def start_trainers(
    module: str, spec: Path, processes: int, allocation: GpuAllocation, lock: int, node: DistributedEnv | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Start the trainers of this machine, out of `processes` in all, and yield their processes.

    Each runs a module of Gumshoe with the path of a specification, under a reaper, which ends it if this process is
    gone, and holds the lock until then.
    """
    node = node or DistributedEnv()
    reaper = [sys.executable, "-m", "gumshoe.inference.reaper", "--patience", str(_GRACE)]
    command = [*reaper, sys.executable, "-m", module, str(spec)]
    port = node.port
    if not port:
        port = find_free_ports(1)[0]
    for number in range(node.local_processes(processes)):
        distributed = node.process_environment(number, processes, port) if processes > 1 else {}
        environment = {**os.environ, **allocation.trainers_environment(), **distributed}
        yield subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, pass_fds=[lock])  # noqa: S603 - our own


@dataclass(slots=True)
class _StopSignals:
    """Pass signals that ask this process to stop on to the trainers."""

    trainers: list[subprocess.Popen[bytes]]
    is_stopping: bool = False

    def stop(self, *_: object) -> None:
        self.is_stopping = True
        for each in self.trainers:
            with suppress(ProcessLookupError):
                each.send_signal(signal.SIGTERM)


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Exit on SIGTERM while the block runs, in which training has not started.

    Raises:
        UnavailableError: SIGTERM was received.
    """

    def stop(*_: object) -> None:
        raise UnavailableError("training.stopped-before-start", f"stopped before training began; {how_to_continue()}")

    with handle_signals(stop, signal.SIGTERM):
        yield


@contextmanager
def _stop_trainers_on_exit(trainers: list[subprocess.Popen[bytes]]) -> Iterator[_StopSignals]:
    """Forward signals to the trainers while the block runs, and leave none of them running at its end."""
    signals = _StopSignals(trainers)
    try:
        with handle_signals(signals.stop, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            yield signals
    finally:
        for each in trainers:
            if each.stdin is not None:
                each.stdin.close()  # so that the reaper ends its trainer
        for each in trainers:
            each.wait()
