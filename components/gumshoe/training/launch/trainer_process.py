"""What a trainer's process does round its work: what it says, and the status it ends with."""

import errno
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from gumshoe.errors import GumshoeError, UnavailableError
from gumshoe.inference.cpu_memory import keep_freed_memory
from gumshoe.terminal import err, printable

_FULL = 16 << 20  # bytes: what is free when a checkpoint did not fit


def run_with_exit_status(work: Callable[[], object], directory: Path) -> None:
    """Do a trainer's work; where it fails, say why and end this process with the status of that.

    A disk without room for what is written into the directory is a reason to try again.
    """
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.getLogger("trl").setLevel(logging.ERROR)
    keep_freed_memory()
    try:
        work()
    except GumshoeError as error:
        _say_error(error)
        sys.exit(error.exit_status)
    except Exception as error:
        if _is_of_another(error):
            lost = f"another trainer ended, or does not answer: {error}; continue with --resume"
            _say_error(UnavailableError("training.trainer-lost", lost))
            sys.exit(UnavailableError.exit_status)
        free = shutil.disk_usage(directory).free
        if free > _FULL and not _is_for_want_of_room(error):
            raise
        full = (
            f"the disk of {directory} is full ({free >> 10:,} KiB free): {type(error).__name__}: {error}; free space, "
            "then continue with --resume"
        )
        _say_error(UnavailableError("training.disk-full", full))
        sys.exit(UnavailableError.exit_status)


def _say_error(error: GumshoeError) -> None:
    if os.environ.get("LOCAL_RANK", "0") == "0":  # all processes have it
        err.print(f"[bold red]error:[/] {printable(error.message_with_code)}", soft_wrap=True)


def _is_of_another(error: Exception) -> bool:
    """Whether a process failed because another that it works with did; gloo has no class for that."""
    from torch.distributed import DistError

    return isinstance(error, DistError) or (type(error) is RuntimeError and "gloo" in str(error))


def _is_for_want_of_room(error: BaseException | None) -> bool:
    """By the operating system's word; libraries that write often have only words of their own."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def on_signal(number: int, handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Have a signal handled in another way while the block runs."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)
