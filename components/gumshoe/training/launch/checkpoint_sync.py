"""A run's checkpoints in a store: sent as they are made, and taken up from there on another machine.

What always holds: the run goes on while they are sent; a checkpoint is in the store whole or not at all; and whoever
takes the run up finds its last one, or its end.
"""

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from gumshoe.artifacts.manifest import Manifest
from gumshoe.artifacts.pruning import remove
from gumshoe.artifacts.store import PRUNED, Store, VersionTakenError
from gumshoe.errors import GumshoeError, UnavailableError, UsageError
from gumshoe.terminal import err, printable, quiet
from gumshoe.training.run_spec import BASELINE, BEST, FINAL, METADATA, METRICS, SPEC, checkpoints, step_of

KIND = "checkpoints"
_ATTEMPTS = "attempts"  # an empty object for each
_OUTGOING = ".outgoing"  # in the run's directory, so that links to its files can be made
_LOOK = 2.0  # seconds
_PATIENCE = 30.0  # seconds until a store that failed is tried again
_END = "end"


class CheckpointStore:
    """The checkpoints of one run below a `file://` or `s3://` URI, which no other run has."""

    def __init__(self, uri: str, kept: int) -> None:
        self._store = Store(uri)
        self._kept = kept
        self._sent: tuple[int, bool] | None = None  # the last checkpoint's step, and whether it was the end

    def check_free(self) -> None:
        """
        Raises:
            UsageError: a run has sent its checkpoints there.
        """
        if self._store.list(KIND):
            raise UsageError(
                "training.checkpoints-exist",
                f"{self._store.uri} already contains checkpoints of a run; continue that run with --resume, or set "
                "another output.checkpoints",
            )

    def restore(self, directory: Path) -> None:
        """Put the run's last checkpoint where nothing is, if there is one.

        Raises:
            UsageError: the run's checkpoints were pruned.
            StorageError, UnavailableError, CorruptArtifactError: it cannot be had.
        """
        found = max(self._store.list(KIND), key=_order, default=None)
        if (directory / SPEC).exists():
            return
        if found is None:
            if any(each.key.endswith(f"/{PRUNED}") for each in self._store.storage.entries(f"{KIND}/")):
                raise UsageError(
                    "training.checkpoints-pruned",
                    f"the checkpoints of the run in {self._store.uri} were pruned, and a version is never reused; "
                    "start a run with another id",
                )
            return
        with TemporaryDirectory(prefix=".incoming-", dir=directory) as incoming:
            place = Path(incoming) / "files"
            self._store.fetch(found.reference, place)
            (place / "manifest.json").unlink()
            names = sorted((each.name for each in place.iterdir()), key=lambda name: name == SPEC)
            for name in names:  # the specification last: without it there is no run
                if (directory / name).is_dir():  # of a restore that was killed
                    shutil.rmtree(directory / name)
                (place / name).replace(directory / name)
        _, step, is_over = _order(found)
        self._sent = step, is_over
        err.print(f"Took up {printable(self._store.uri)}: {found.reference}", soft_wrap=True)

    def claim(self, attempt: int) -> int:
        """The number of an attempt that nobody has had, from the one given on: policies are named by it.

        Raises:
            StorageError, UnavailableError: the store failed.
        """
        while not self._store.storage.create(f"{_ATTEMPTS}/{attempt:03}", b""):
            attempt += 1
        return attempt

    @contextmanager
    def uploading(self, directory: Path, attempt: int) -> Iterator[None]:
        """Send what is new in the run's directory while the block runs, and what is left of it at its end.

        Raises:
            UnavailableError: the last of it could not be sent, and nothing else went wrong.
        """
        ended = threading.Event()

        def keep_sending() -> None:
            while not ended.wait(_LOOK):
                try:
                    self._upload(directory, attempt)
                except (GumshoeError, OSError) as error:
                    _warn(_not_uploaded(f"a checkpoint is not in the store yet: {error}"))
                    ended.wait(_PATIENCE)

        sender = threading.Thread(target=keep_sending, name="checkpoints", daemon=True)
        sender.start()
        failed = False
        try:
            yield
        except BaseException:
            failed = True
            raise
        finally:
            ended.set()
            sender.join()
            try:
                self._upload(directory, attempt)
            except (GumshoeError, OSError) as error:
                last = _not_uploaded(
                    f"the run's last checkpoint is in {directory} but not in the store: {error}; continue with --resume"
                )
                if not failed:
                    raise last from None
                _warn(last)

    def _upload(self, directory: Path, attempt: int) -> None:
        newest = next(reversed(checkpoints(directory)), None)
        if newest is None:
            return
        is_over = (directory / FINAL / METADATA).exists()
        if (step_of(newest), is_over) == self._sent:
            return
        outgoing = directory / _OUTGOING
        shutil.rmtree(outgoing, ignore_errors=True)
        outgoing.mkdir()
        try:
            _link(directory, outgoing, newest.name, BEST, *[FINAL] * is_over)
            for name in (SPEC, METRICS, BASELINE):  # which grow, or are written anew
                if (directory / name).exists():
                    shutil.copyfile(directory / name, outgoing / name)
            with quiet():
                self._store.publish(outgoing, KIND, _version(step_of(newest), attempt, is_over=is_over))
        except VersionTakenError:
            if not is_over:  # the end was sent before, and may have been pruned since
                raise
        except OSError:
            if newest.exists():
                raise
            return  # it was the oldest meanwhile, and is gone; there is a newer one
        finally:
            shutil.rmtree(outgoing, ignore_errors=True)
        self._sent = step_of(newest), is_over
        for old in sorted(self._store.list(KIND), key=_order)[: -self._kept]:
            remove(self._store, old)


def _not_uploaded(message: str) -> UnavailableError:
    return UnavailableError("training.checkpoint-not-uploaded", message)


def _warn(error: GumshoeError) -> None:
    err.print(f"[bold yellow]warning:[/] {printable(error.message_with_code)}", soft_wrap=True)


def _version(step: int, attempt: int, *, is_over: bool) -> str:
    return f"{attempt:03}-{step:06}" + (f"-{_END}" if is_over else "")


def _order(manifest: Manifest) -> tuple[int, int, bool]:
    """Its attempt, its step, and whether it is the run's end: the last is what to go on from."""
    attempt, step, *end = manifest.version.split("-")
    return int(attempt), int(step), bool(end)


def _link(source: Path, target: Path, *names: str) -> None:
    """The files of some directories, in a place where the run does not remove them."""
    for name in names:
        if (source / name).exists():
            shutil.copytree(source / name, target / name, copy_function=_linked)


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # file systems without links
        shutil.copyfile(source, target)
