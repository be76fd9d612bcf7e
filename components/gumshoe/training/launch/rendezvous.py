"""The processes of a run that has several: how they meet, notice that one is gone, and share files between machines.

What always holds: the first of them says what the run is and where it goes on, and all others take it from there, files
too; nobody waits longer than a deadline for one that does not come, or gives no sign of life any longer.
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
from gumshoe.training.launch.distributed_env import OVER, TOLD

_BEAT = 1.0  # seconds between two signs of life
_GONE = 120.0  # seconds without one

Result = TypeVar("Result")


class StopRequestedError(Exception):
    """The process was asked to end."""


def in_main(accelerator: Any, work: Callable[[], Result]) -> Result:
    """Do something in the main process alone; what came of it, or went wrong with it, comes of it in all of them."""
    if accelerator.num_processes == 1:
        return work()
    came: list[Any] = [None, None]
    if accelerator.is_main_process:
        try:
            came[0] = work()
        except (GumshoeError, StopRequestedError) as error:
            came[1] = error
    broadcast_object_list(came)
    if came[1] is not None:
        raise came[1]
    result: Result = came[0]
    return result


class Rendezvous:
    """The processes of a run that has several, from their first word to their last: each gives signs of life, and ends
    with status 75 where one that it waits for gives none. Use as a context manager once what is said is heard.

    Raises:
        UnavailableError: not all have come in so many seconds.
    """

    def __init__(self, seconds: float, said: str) -> None:
        self._rank, self._world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._gone = min(_GONE, seconds)
        self._over = threading.Event()
        works = {"signs of life": self._watch, "answers": self._watch_answers}
        self._threads = [threading.Thread(target=each, name=name, daemon=True) for name, each in works.items()]
        self._answered = 0.0
        try:
            self._store = self._opened(seconds, is_master=self._rank == 0)
            if self._rank == 0:
                self._store.set(TOLD, said)
            self.said = self._store.get(TOLD).decode()
            """What the first of them says."""
            if self.said == OVER:
                self._store.set(f"{OVER}/{self._rank}", "")  # the first machine ends once all have said so
                return
            if self._rank:
                self._store.set(f"here/{self._rank}", "")
            else:
                self._store.wait([f"here/{rank}" for rank in range(1, self._world)])
            self._own = self._opened(self._gone, is_master=False)  # a connection of its own, for signs of life
        except (distributed.DistNetworkError, distributed.DistStoreError) as error:
            raise UnavailableError(
                "training.trainers-missing",
                f"not all {self._world} trainers connected to {os.environ['MASTER_ADDR']} within {seconds:g} seconds: "
                f"{str(error).splitlines()[0]}; check that all machines are up and reach that port",
            ) from None

    def _opened(self, seconds: float, *, is_master: bool) -> Any:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        late = timedelta(seconds=seconds)
        store: Any = distributed.TCPStore  # type: ignore[attr-defined]
        return store(host, port, is_master=is_master, timeout=late, wait_for_workers=False)

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
            each.join(2 * _BEAT)

    def _watch(self) -> None:
        """Give signs of life, and look for those of others: the first process looks for all, and all for the first."""
        others = range(1, self._world) if self._rank == 0 else [0]
        seen = {other: (b"", time.monotonic()) for other in others}
        beat = 0
        while not self._over.wait(_BEAT):
            self._answered = time.monotonic()
            beat += 1
            try:
                self._own.set(f"alive/{self._rank}", str(beat))
                for other in others:
                    now = self._own.get(f"alive/{other}")
                    if now != seen[other][0]:
                        seen[other] = now, time.monotonic()
            except RuntimeError:  # the first is gone, whose store it is, or one has never said anything
                self._end("the other trainers do not answer")
            late = [str(other) for other, (_, since) in seen.items() if time.monotonic() - since > self._gone]
            if late:
                self._end(f"trainer {', '.join(late)} gave no sign of life for {self._gone:g} seconds")

    def _watch_answers(self) -> None:
        """Look whether the store still answers: where its machine hangs, asking it does not come back at all."""
        while not self._over.wait(_BEAT):
            if time.monotonic() - self._answered > self._gone + 2 * _BEAT:
                self._end("the other trainers do not answer")

    def _end(self, why: str) -> None:
        if self._over.wait(2 * _BEAT):  # it was ending anyway
            return
        error = UnavailableError("training.trainer-lost", f"{why}; continue with --resume")
        os.write(2, f"error: {error.message_with_code}\n".encode())
        os._exit(UnavailableError.exit_status)


def share_files(place: Path, accelerator: Any) -> None:
    """Give all machines the first one's files of a directory, below which there may be others."""
    found = in_main(accelerator, lambda: _files(place))
    for name in found:
        data = in_main(accelerator, (place / name).read_bytes)
        if accelerator.is_local_main_process and not accelerator.is_main_process:
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(data)
    accelerator.wait_for_everyone()


def collect_files(place: Path, accelerator: Any) -> None:
    """Give the first machine what the others have in a directory, which they remove."""
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
def together(seconds: float, said: str) -> Iterator[str]:
    """Do the work of the block with the other trainers of a run, where it has several; what the first of them said.

    Raises:
        UnavailableError: not all have come in so many seconds.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield said
        return
    meeting = Rendezvous(seconds, said)
    with nullcontext() if meeting.said == OVER else meeting:
        yield meeting.said
