"""Wrap the work of a trainer process: its output, and its exit status."""

import errno
import logging
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from gumshoe.errors import GumshoeError, UnavailableError
from gumshoe.inference.cpu_memory import keep_freed_memory
from gumshoe.terminal import err, printable
from gumshoe.training.run_directory import how_to_continue

_MIN_FREE = 16 << 20  # bytes; with less, a failure is taken for a full disk


def run_with_exit_status(work: Callable[[], object], directory: Path) -> None:
    """Do a trainer's work; if it fails, print the error and exit with its status.

    A full disk of the directory is reported as a reason to try again (status 75).
    """
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.getLogger("trl").setLevel(logging.ERROR)
    keep_freed_memory()
    try:
        work()
    except GumshoeError as error:
        _print_error(error)
        sys.exit(error.exit_status)
    except Exception as error:
        if _is_lost_peer(error):
            lost = f"another trainer ended, or does not answer: {error}; {how_to_continue()}"
            _print_error(UnavailableError("training.trainer-lost", lost))
            sys.exit(UnavailableError.exit_status)
        free = shutil.disk_usage(directory).free
        if free > _MIN_FREE and not _is_disk_full(error):
            raise
        full = (
            f"the disk of {directory} is full ({free >> 10:,} KiB free): {type(error).__name__}: {error}; free space, "
            f"then {how_to_continue()}"
        )
        _print_error(UnavailableError("training.disk-full", full))
        sys.exit(UnavailableError.exit_status)


def _print_error(error: GumshoeError) -> None:
    if os.environ.get("LOCAL_RANK", "0") == "0":  # all processes have the same error
        err.print(f"[bold red]error:[/] {printable(error.message_with_code)}", soft_wrap=True)


def _is_lost_peer(error: Exception) -> bool:
    """Return True if an error means that another trainer failed; gloo has no class for that."""
    from torch.distributed import DistError

    return isinstance(error, DistError) or (type(error) is RuntimeError and "gloo" in str(error))


def _is_disk_full(error: BaseException | None) -> bool:
    """Return True if a full disk caused an error, according to the operating system; libraries often hide that."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__ or error.__context__
    return False
