"""Upload a run's checkpoints to a store while it trains, and restore them from there on another machine.

A warm start is kept in the same way, with the verdicts on its episodes; before its first step, these are a checkpoint.
Nothing here deletes its last one: a pod may be lost after the last step and before its adapter is uploaded.

Invariants: training continues during uploads; a checkpoint in the store is complete; and a restored run finds its last
checkpoint, or its end.
"""

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gumshoe.artifacts.manifest import MANIFEST, Manifest
from gumshoe.artifacts.pruning import remove_artifact
from gumshoe.artifacts.storage import NotFoundError
from gumshoe.artifacts.store import PRUNED, CorruptArtifactError, Store, VersionTakenError
from gumshoe.errors import GumshoeError, UnavailableError, UsageError
from gumshoe.evaluation.proof.proof_models import PROOF
from gumshoe.terminal import err, hide_progress, printable
from gumshoe.training.run_directory import ATTEMPT_CLAIMS, how_to_continue
from gumshoe.training.run_spec import (
    ATTEMPTS,
    BASELINE,
    BEST,
    EPISODES,
    FINAL,
    METADATA,
    METRICS,
    SPEC,
    VERDICTS,
    find_best,
    find_checkpoints,
    step_of,
)

CHECKPOINTS = "checkpoints"
INCOMING, OUTGOING = ".incoming", ".outgoing"
"""Copies in the run's directory: of a checkpoint that is restored, and with hard links of one that is uploaded."""
_POLL = 2.0  # seconds
_RETRY_DELAY = 30.0  # seconds after a failed upload
_END = "end"


class CheckpointStore:
    """Keep the checkpoints of one run under a `file://` or `s3://` URI that no other run uses.

    Warm starts with the same inputs share a URI: each of them can continue the others.
    """

    def __init__(self, uri: str, limit: int) -> None:
        self._store = Store(uri)
        self._limit = limit
        self._uploaded: tuple[int, bool] | None = None  # step of the last checkpoint, and True if it ends the run

    def check_free(self) -> None:
        """Check that the store contains no checkpoints.

        Raises:
            UsageError: the store contains checkpoints of a run.
        """
        if self._store.list(CHECKPOINTS):
            raise UsageError(
                "training.checkpoints-exist",
                f"{self._store.uri} already contains checkpoints of a run; continue that run with --resume, or set "
                "another output.checkpoints",
            )

    def restore(self, directory: Path, *, may_begin_again: bool = False) -> None:
        """Fetch the run's last checkpoint into a directory without a run; do nothing if the store has no checkpoint.

        Call it with the lock of the directory. A fetch that was interrupted is continued. With `may_begin_again`, a
        checkpoint that was pruned, replaced during the fetch, or is damaged counts as none.

        Raises:
            UsageError: the run's checkpoints were pruned.
            StorageError, UnavailableError, CorruptArtifactError: the checkpoint cannot be fetched.
        """
        found = max(self._store.list(CHECKPOINTS), key=_parse_version, default=None)
        incoming = directory / INCOMING
        if (directory / SPEC).exists():
            shutil.rmtree(incoming, ignore_errors=True)  # left by a restore that was killed at its end
            return
        if found is None:
            if not may_begin_again and any(
                each.key.endswith(f"/{PRUNED}") for each in self._store.storage.entries(f"{CHECKPOINTS}/")
            ):
                raise UsageError(
                    "training.checkpoints-pruned",
                    f"the checkpoints of the run in {self._store.uri} were pruned, and a version is never reused; "
                    "start a run with another id",
                )
            return
        incoming.mkdir(parents=True, exist_ok=True)
        place = incoming / found.version
        try:
            self._store.fetch(found.reference, place)
        except (CorruptArtifactError, NotFoundError) as error:
            if not may_begin_again:
                raise
            shutil.rmtree(incoming)
            _warn(error)
            err.print("Beginning again without this checkpoint.")
            return
        names = sorted((each.name for each in place.iterdir()), key=lambda name: name == SPEC)
        for name in names:  # the specification last: without it, the directory has no run
            if name == MANIFEST:  # with it, a restore that is killed here fetches only what is missing
                continue
            if (directory / name).is_dir():  # left by a restore that was killed
                shutil.rmtree(directory / name)
            (place / name).replace(directory / name)
        shutil.rmtree(incoming)
        _, step, is_over = _parse_version(found)
        self._uploaded = step, is_over
        err.print(f"Restored {found.reference} from {printable(self._store.uri)}", soft_wrap=True)

    def has_last(self, directory: Path) -> bool:
        """Return True if the store has the last checkpoint of a run's directory, or the directory has none.

        Raises:
            StorageError, UnavailableError: the store failed.
        """
        newest = next(reversed(find_checkpoints(directory)), None)
        return newest is None or step_of(newest) in {_parse_version(each)[1] for each in self._store.list(CHECKPOINTS)}

    def claim_attempt(self, attempt: int) -> int:
        """Reserve the first unused attempt number from `attempt` on, and return it; names of policies contain it.

        Raises:
            StorageError, UnavailableError: the store failed.
        """
        while not self._store.storage.create(f"{ATTEMPT_CLAIMS}/{attempt:03}", b""):
            attempt += 1
        return attempt

    @contextmanager
    def uploading(self, directory: Path, attempt: int) -> Iterator[None]:
        """Upload new checkpoints of the run's directory while the block runs, and the last one at its end.

        Raises:
            UnavailableError: the last checkpoint could not be uploaded, and the block raised no error.
        """
        ended = threading.Event()

        def keep_uploading() -> None:
            while not ended.wait(_POLL):
                try:
                    self._upload(directory, attempt, is_last=False)
                except (GumshoeError, OSError) as error:
                    _warn(_upload_error(f"could not upload a checkpoint, will retry: {error}"))
                    ended.wait(_RETRY_DELAY)

        sender = threading.Thread(target=keep_uploading, name="checkpoints", daemon=True)
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
                self._upload(directory, attempt, is_last=True)
            except (GumshoeError, OSError) as error:
                last = _upload_error(
                    f"the run's last checkpoint is in {directory} but not in the store: {error}; {how_to_continue()}"
                )
                if not failed:
                    raise last from None
                _warn(last)

    def _upload(self, directory: Path, attempt: int, *, is_last: bool) -> None:
        newest = next(reversed(find_checkpoints(directory)), None)
        if newest is None and not (is_last and (directory / VERDICTS).exists()):
            return
        step = 0 if newest is None else step_of(newest)
        # The proof is written after the final adapter, and belongs to the end of the run.
        is_over = (directory / FINAL / METADATA).exists() and (is_last or (directory / PROOF).exists())
        if newest is not None and (step, is_over) == self._uploaded:
            return
        outgoing = directory / OUTGOING
        shutil.rmtree(outgoing, ignore_errors=True)
        outgoing.mkdir()
        try:
            saved = [] if newest is None else [newest.name]
            _link_directories(directory, outgoing, *saved, *[FINAL] * is_over)
            if best := find_best(directory):
                shutil.copytree(best, outgoing / BEST, copy_function=_link_or_copy)
            for name in (SPEC, METRICS, EPISODES, ATTEMPTS, BASELINE, PROOF, VERDICTS):  # these change, so copy them
                if (directory / name).exists():
                    shutil.copyfile(directory / name, outgoing / name)
            with hide_progress():
                self._store.publish(outgoing, CHECKPOINTS, _version(step, attempt, is_over=is_over))
        except VersionTakenError:
            if not is_over:  # else: the end was uploaded before, and may have been pruned since
                raise
        except OSError:
            if newest is None or newest.exists():
                raise
            return  # the run has deleted it, because there are newer ones
        finally:
            shutil.rmtree(outgoing, ignore_errors=True)
        self._uploaded = step, is_over
        for old in sorted(self._store.list(CHECKPOINTS), key=_parse_version)[: -self._limit]:
            remove_artifact(self._store, old)


def _upload_error(message: str) -> UnavailableError:
    return UnavailableError("training.checkpoint-not-uploaded", message)


def _warn(error: GumshoeError) -> None:
    err.print(f"[bold yellow]warning:[/] {printable(error.message_with_code)}", soft_wrap=True)


def _version(step: int, attempt: int, *, is_over: bool) -> str:
    return f"{attempt:03}-{step:06}" + (f"-{_END}" if is_over else "")


def _parse_version(manifest: Manifest) -> tuple[int, int, bool]:
    """Return the attempt and the step of a checkpoint, and True if it ends the run; the largest is the newest."""
    attempt, step, *end = manifest.version.split("-")
    return int(attempt), int(step), bool(end)


def _link_directories(source: Path, target: Path, *names: str) -> None:
    """Hard-link the files of some directories to a place where the run does not delete them."""
    for name in names:
        if (source / name).exists():
            shutil.copytree(source / name, target / name, copy_function=_link_or_copy)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # file systems without links
        shutil.copyfile(source, target)
