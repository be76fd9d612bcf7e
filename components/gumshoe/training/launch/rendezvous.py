"""Coordinate the processes of a distributed run: rendezvous, heartbeats, and files shared between machines.

Invariants: the first process decides what the run is and where it resumes, and all others follow it, with its files.
Waits for a missing process, or for one without heartbeats, have a deadline.
"""

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from accelerate.utils import broadcast_object_list
from torch import distributed

from gumshoe.errors import GumshoeError, UnavailableError
from gumshoe.training.launch.distributed_env import RUN_ENDED, SPEC_KEY
from gumshoe.training.run_directory import how_to_continue

_HEARTBEAT = 1.0  # seconds between two heartbeats
_TIMEOUT = 120.0  # seconds without a heartbeat until a process counts as lost

Result = TypeVar("Result")


class StopRequestedError(Exception):
    """The process was asked to stop."""


def run_in_main(accelerator: Any, work: Callable[[], Result]) -> Result:
    """Call `work` in the main process only, and return its result, or raise its error, in all processes."""
    if accelerator.num_processes == 1:
        return work()
    outcome: list[Any] = [None, None]  # result, error
    if accelerator.is_main_process:
        try:
            outcome[0] = work()
        except (GumshoeError, StopRequestedError) as error:
            outcome[1] = error
    broadcast_object_list(outcome)
    if outcome[1] is not None:
        raise outcome[1]
    result: Result = outcome[0]
    return result


class Rendezvous:
    """Connect the processes of a distributed run, and watch their heartbeats.

    A process exits with status 75 if the heartbeats of a process that it depends on stop. Connecting happens in the
    constructor; use the object as a context manager for the heartbeats.

    Attributes:
        spec: the specification of the run, from the first process.

    Raises:
        UnavailableError: not all processes connected within this number of seconds.
    """

    def __init__(self, seconds: float, spec: str) -> None:
        self._rank, self._world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._timeout = min(_TIMEOUT, seconds)
        self._over = threading.Event()
        loops = {"heartbeats": self._exchange_heartbeats, "store watch": self._watch_store}
        self._threads = [threading.Thread(target=each, name=name, daemon=True) for name, each in loops.items()]
        self._answered = 0.0
        try:
            self._store = self._connect(seconds, is_master=self._rank == 0)
            if self._rank == 0:
                self._store.set(SPEC_KEY, spec)
            self.spec = self._store.get(SPEC_KEY).decode()
            if self.spec == RUN_ENDED:
                self._store.set(f"{RUN_ENDED}/{self._rank}", "")  # the first machine ends once all have replied
                return
            if self._rank:
                self._store.set(f"here/{self._rank}", "")
            else:
                self._store.wait([f"here/{rank}" for rank in range(1, self._world)])
            self._own = self._connect(self._timeout, is_master=False)  # separate connection for heartbeats
        except (distributed.DistNetworkError, distributed.DistStoreError) as error:
            raise UnavailableError(
                "training.trainers-missing",
                f"not all {self._world} trainers connected to {os.environ['MASTER_ADDR']} within {seconds:g} seconds: "
                f"{str(error).splitlines()[0]}; check that all machines are up and reach that port",
            ) from None

    def _connect(self, seconds: float, *, is_master: bool) -> Any:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        timeout = timedelta(seconds=seconds)
        store: Any = distributed.TCPStore  # type: ignore[attr-defined]
        return store(host, port, is_master=is_master, timeout=timeout, wait_for_workers=False)

    def __enter__(self) -> "Rendezvous":
        self._answered = time.monotonic()
        for each in self._threads:
            each.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        for each in self._threads:
            each.join(2 * _HEARTBEAT)

    def _exchange_heartbeats(self) -> None:
        """Send heartbeats and check those of others: the first process checks all, and all others check the first."""
        others = range(1, self._world) if self._rank == 0 else [0]
        seen = {other: (b"", time.monotonic()) for other in others}
        beat = 0
        while not self._over.wait(_HEARTBEAT):
            self._answered = time.monotonic()
            beat += 1
            try:
                self._own.set(f"alive/{self._rank}", str(beat))
                for other in others:
                    now = self._own.get(f"alive/{other}")
                    if now != seen[other][0]:
                        seen[other] = now, time.monotonic()
            except RuntimeError:  # the first process, which has the store, is lost; or one never sent a heartbeat
                self._end("the other trainers do not answer")
            late = [str(other) for other, (_, since) in seen.items() if time.monotonic() - since > self._timeout]
            if late:
                self._end(f"trainer {', '.join(late)} sent no heartbeat for {self._timeout:g} seconds")

    def _watch_store(self) -> None:
        """Check that the store still answers: a request to it never returns if its machine hangs."""
        while not self._over.wait(_HEARTBEAT):
            if time.monotonic() - self._answered > self._timeout + 2 * _HEARTBEAT:
                self._end("the other trainers do not answer")

    def _end(self, why: str) -> None:
        if self._over.wait(2 * _HEARTBEAT):  # the run was ending anyway
            return
        error = UnavailableError("training.trainer-lost", f"{why}; {how_to_continue()}")
        os.write(2, f"error: {error.message_with_code}\n".encode())
        os._exit(UnavailableError.exit_status)


def share_files(place: Path, accelerator: Any) -> None:
    """Copy the files of a directory, with subdirectories, from the first machine to all others."""
    found = run_in_main(accelerator, lambda: _files(place))
    for name in found:
        data = run_in_main(accelerator, (place / name).read_bytes)
        if accelerator.is_local_main_process and not accelerator.is_main_process:
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(data)
    accelerator.wait_for_everyone()


def collect_files(place: Path, accelerator: Any) -> None:
    """Move the files that other machines have in a directory to the first machine."""
    here = int(os.environ["LOCAL_WORLD_SIZE"])
    for sender in range(here, accelerator.num_processes, here):
        is_sender = accelerator.process_index == sender
        found: list[Any] = [[(name, (place / name).read_bytes()) for name in _files(place)] if is_sender else None]
        broadcast_object_list(found, from_process=sender)
        if accelerator.is_main_process:
            for name, data in found[0]:
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                (place / name).write_bytes(data)
        if is_sender:
            shutil.rmtree(place)


def _files(place: Path) -> list[str]:
    return sorted(str(each.relative_to(place)) for each in place.rglob("*") if each.is_file())


@contextmanager
def join_run(seconds: float, spec: str) -> Iterator[str]:
    """Join the other trainers of a run while the block runs, and yield the first trainer's specification.

    Raises:
        UnavailableError: not all trainers connected within this number of seconds.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield spec
        return
    rendezvous = Rendezvous(seconds, spec)
    with nullcontext() if rendezvous.spec == RUN_ENDED else rendezvous:
        yield rendezvous.spec
