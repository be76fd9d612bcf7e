"""Publish, fetch, list and verify artifacts.

In a store, an artifact is `<kind>/<version>/manifest.json` and, beside it, its files under
`sha256-<content>/`. `<kind>/latest.json` names the newest version of a kind.
"""

import hashlib
import json
import os
import random
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from io import BufferedReader
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

from gumshoe.artifacts.manifest import (
    LATEST,
    MANIFEST,
    FileEntry,
    ForeignManifestError,
    InvalidManifestError,
    Manifest,
    artifact_files,
    check_kind,
    code_hash,
    content_digest,
    damaged_files,
    describe,
    file_digest,
    is_reference,
    join_reference,
    now,
    split_reference,
)
from gumshoe.artifacts.storage import (
    DamagedError,
    Deadline,
    Limits,
    NotFoundError,
    StorageError,
    directory_lock,
    explain_os_errors,
    open_storage,
)
from gumshoe.errors import GumshoeError, UnavailableError, UsageError
from gumshoe.terminal import progress

PRUNED = "pruned.json"  # stays where an artifact was, so that its version is not used again
_MARKER = ".conditional-writes"
ABANDONED_AFTER = timedelta(days=1)  # what `prune` takes for a leftover at the earliest
_RESUMED_WITHIN = ABANDONED_AFTER / 2  # older files may be about to go, and are sent again
_DOWNLOADS = 3  # tries of a file whose bytes arrive wrong


class VersionTakenError(UsageError):
    """Another artifact was published under this version; versions are used once."""


class DestinationError(UsageError):
    """The directory to fetch into holds something else."""


class CorruptArtifactError(GumshoeError):
    """Stored bytes are not those that were published."""


@dataclass(frozen=True, slots=True)
class Published:
    """An artifact that is in the store, and whether this call put it there."""

    manifest: Manifest
    created: bool


@dataclass(frozen=True, slots=True)
class Fetched:
    """An artifact in a local directory, verified, and the bytes that had to be downloaded for it."""

    manifest: Manifest
    directory: Path
    downloaded: int


@dataclass(frozen=True, slots=True)
class ArtifactLineage:
    """What an artifact was made from. `manifest` is None where the store no longer, or never, had it."""

    reference: str
    manifest: Manifest | None
    made_from: tuple["ArtifactLineage", ...] = ()


class Store:
    """The artifacts below a `file://` or `s3://` URI. May be used from several threads."""

    def __init__(self, uri: str, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.storage = open_storage(uri, self.limits)
        self.uri = self.storage.uri

    def publish(
        self,
        directory: Path,
        kind: str,
        version: str,
        *,
        made_from: Iterable[str] = (),
        settings: dict[str, Any] | None = None,
        image: str | None = None,
        latest: bool = True,
    ) -> Published:
        """Publish a directory's files as `kind/version`, whole or not at all.

        Publishing the same content under the same version again changes nothing; a publication that was
        interrupted is taken up where it ended. With `latest`, the kind's newest version is noted.

        Raises:
            UsageError: the name or the directory is invalid; nothing was sent.
            VersionTakenError: the version has other content.
            GumshoeError: a file changed meanwhile, or the store failed; nothing became visible.
        """
        deadline = Deadline(self.limits.deadline)
        reference = join_reference(kind, version)
        with explain_os_errors(directory):
            files = artifact_files(directory)
            before = {inside: _identity(path) for inside, path in files.items()}
            size = sum(path.stat().st_size for path in files.values())
            with progress("Hashing", total=size, in_bytes=True) as advance:
                entries = describe(files, advance)
        manifest = Manifest(
            kind=kind,
            version=version,
            created=now(),
            content=content_digest(entries),
            files=entries,
            made_from=tuple(made_from),
            code=code_hash(),
            image=image,
            settings=settings or {},
        )
        existing = self.find(reference)
        if existing is None and any(self.storage.entries(f"{reference}/{PRUNED}")):
            raise VersionTakenError(
                "artifacts.version-pruned",
                f"{self.uri}: {reference} was published before and pruned; a version is used once, so choose another",
            )
        if existing is None:
            self._require_conditional_writes()
            self._upload(manifest, files, deadline)
            if changed := [inside for inside, path in files.items() if _identity(path) != before[inside]]:
                # What was sent may differ from its digest, and would be taken for sent by the next publisher.
                self.storage.delete(f"{reference}/{manifest.data}/{inside}" for inside in changed)
                raise GumshoeError(
                    "artifacts.changed-while-publishing",
                    f"{directory} changed while it was published: {changed[0]}; publish it again",
                )
            existing = self._make_visible(manifest)
        if existing.content != manifest.content:
            raise VersionTakenError(
                "artifacts.version-taken",
                f"{self.uri}: {reference} was published before with other content; a version is used once, so choose "
                "another",
            )
        if latest:
            self._note_latest(existing, deadline)
        return Published(existing, created=existing.publication == manifest.publication)

    def _upload(self, manifest: Manifest, files: dict[str, Path], deadline: Deadline) -> None:
        """Send the files that are not there yet, then see that all of them are."""
        folder = f"{manifest.reference}/{manifest.data}/"
        fresh = now() - _RESUMED_WITHIN
        there = {entry.key: entry.size for entry in self.storage.entries(folder) if entry.modified > fresh}
        missing = {
            folder + entry.path: files[entry.path]
            for entry in manifest.files
            if there.get(folder + entry.path) != entry.size
        }
        with progress("Uploading", total=manifest.size, in_bytes=True) as advance:
            advance(sum(entry.size for entry in manifest.files if folder + entry.path not in missing))
            self.storage.upload(missing, deadline, advance)
        there = {entry.key: entry.size for entry in self.storage.entries(folder)}
        for entry in manifest.files:
            if there.get(folder + entry.path) != entry.size:
                raise GumshoeError(
                    "artifacts.incomplete-upload",
                    f"{self.uri}/{folder}{entry.path} is incomplete after the upload; publish it again",
                )

    def _make_visible(self, manifest: Manifest) -> Manifest:
        """The last write. Returns the manifest that is visible now, which another publisher may have won."""
        if self.storage.create(f"{manifest.reference}/{MANIFEST}", manifest.to_json()):
            return manifest
        winner = self.find(manifest.reference)  # ours, where only the answer to the write was lost
        if winner is None:
            raise StorageError(
                "artifacts.removed-while-publishing",
                f"{self.uri}: {manifest.reference} was removed while it was published; publish it again",
            )
        return winner

    def _require_conditional_writes(self) -> None:
        """Refuse a store that ignores the condition of a conditional write: two publishers could both win."""
        for _ in range(2):
            if not self.storage.create(_MARKER, b"This store honours conditional writes.\n"):
                return
        raise GumshoeError(
            "store.no-conditional-writes",
            f"{self.uri} ignores If-None-Match, so a published version could be overwritten; use a store with "
            "conditional writes (AWS S3, MinIO since 2024-11, Ceph since Squid)",
        )

    def _note_latest(self, manifest: Manifest, deadline: Deadline) -> None:
        """Let `latest.json` name this version unless it names a newer one."""
        key = f"{manifest.kind}/{LATEST}"
        pointer = json.dumps({"version": manifest.version, "created": manifest.created.isoformat()}).encode()
        while True:
            try:
                current, tag = self.storage.read(key)
            except NotFoundError:
                done = self.storage.create(key, pointer)
            else:
                with suppress(ValueError, KeyError, TypeError):  # a damaged one is replaced
                    if datetime.fromisoformat(json.loads(current)["created"]) >= manifest.created:
                        return
                done = self.storage.swap(key, pointer, tag)
            if done:
                return
            deadline.check()
            time.sleep(random.uniform(0.05, 0.5))  # noqa: S311 - another publisher was quicker

    def manifest(self, reference: str) -> Manifest:
        """The manifest of `kind/version`, or of the newest of a kind with `kind/latest`.

        Raises:
            NotFoundError: no such artifact was published.
            InvalidManifestError: what lies there is not its manifest.
        """
        kind, version = split_reference(reference)
        if version == "latest":
            latest = self.latest(kind)
            if latest is None:
                raise NotFoundError(
                    "artifacts.nothing-published",
                    f"{self.uri} contains no {kind}; publish one, or run `gumshoe artifacts list`",
                )
            version = latest
        found = self.find(f"{kind}/{version}")
        if found is None:
            raise NotFoundError(
                "artifacts.not-found", f"{self.uri} contains no {kind}/{version}; run `gumshoe artifacts list`"
            )
        return found

    def find(self, reference: str) -> Manifest | None:
        """The manifest of `kind/version`, or None where there is none.

        Raises:
            InvalidManifestError: what lies there is damaged.
        """
        key = f"{reference}/{MANIFEST}"
        try:
            text, _ = self.storage.read(key)
        except NotFoundError:
            return None
        manifest = Manifest.from_json(text, f"{self.uri}/{key}")
        return manifest if manifest.reference == reference else manifest.within(reference, f"{self.uri}/{key}")

    def _find_ours(self, reference: str) -> Manifest | None:
        try:
            return self.find(reference)
        except ForeignManifestError:  # other programs keep files in the same place
            return None

    def latest(self, kind: str) -> str | None:
        """The newest version of a kind, or None where there is none."""
        try:
            text, _ = self.storage.read(f"{check_kind(kind)}/{LATEST}")
            return str(json.loads(text)["version"])
        except NotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            raise InvalidManifestError(
                "artifacts.damaged-latest", f"{self.uri}/{kind}/{LATEST} is damaged; publish a version again"
            ) from None

    def list(self, kind: str | None = None) -> list[Manifest]:
        """Everything published, or everything of a kind, the oldest first."""
        keys = [entry.key for entry in self.storage.entries("" if kind is None else f"{check_kind(kind)}/")]
        references = [
            reference
            for reference, _, name in (key.rpartition("/") for key in keys)
            if name == MANIFEST and is_reference(reference) and kind in {None, reference.rpartition("/")[0]}
        ]
        with ThreadPoolExecutor(self.limits.workers) as pool:
            found = [manifest for manifest in pool.map(self._find_ours, references) if manifest]
        return sorted(found, key=lambda manifest: manifest.created)

    def lineage(self, reference: str) -> ArtifactLineage:
        """What an artifact was made from, and those from what, as far as this store knows.

        Raises:
            NotFoundError: no such artifact was published.
        """

        def trace(manifest: Manifest, below: tuple[str, ...]) -> ArtifactLineage:
            parents = []
            below = (*below, manifest.reference)
            for parent in manifest.made_from:
                found = self.find(parent)
                circle = parent in below
                parents.append(trace(found, below) if found and not circle else ArtifactLineage(parent, found))
            return ArtifactLineage(manifest.reference, manifest, tuple(parents))

        return trace(self.manifest(reference), ())

    def verify(self, reference: str) -> dict[str, str]:
        """Read every byte of a stored artifact: each damaged file's path and what is wrong with it."""
        deadline = Deadline(self.limits.deadline)
        manifest = self.manifest(reference)

        def fault(entry: FileEntry) -> str | None:
            key = f"{manifest.reference}/{manifest.data}/{entry.path}"
            try:
                with self.storage.open(key) as source:
                    digest = _copy(source, None, deadline, advance)
            except NotFoundError:
                return "missing"
            except DamagedError:
                return "its SHA-256 differs"
            return None if digest == entry.sha256 else "its SHA-256 differs"

        with (
            progress("Verifying", total=manifest.size, in_bytes=True) as advance,
            ThreadPoolExecutor(self.limits.workers) as pool,
        ):
            faults = list(pool.map(fault, manifest.files))
        return {entry.path: reason for entry, reason in zip(manifest.files, faults, strict=True) if reason}

    def fetch(self, reference: str, directory: Path) -> Fetched:
        """Bring an artifact into `directory`, every byte verified, whole or not at all.

        Where it is there already and undamaged, nothing is done. An interrupted fetch is taken up where it
        ended, and damaged files are fetched again.

        Raises:
            NotFoundError: no such artifact was published.
            DestinationError: the directory holds something else.
            CorruptArtifactError: the stored bytes are not those that were published.
            StorageError, UnavailableError: the store failed.
        """
        deadline = Deadline(self.limits.deadline)
        manifest = self.manifest(reference)
        directory = directory.absolute()
        if not directory.name:
            raise DestinationError(
                "artifacts.destination-is-root",
                f"cannot fetch into {directory}: it is the root of the file system; choose a directory below it",
            )
        with suppress(DestinationError, FileNotFoundError):  # another process may be at work there: see below
            if _is_whole(directory, manifest):
                return Fetched(manifest, directory, downloaded=0)
        partial = directory.with_name(f".{directory.name}.partial")
        with explain_os_errors(directory), directory_lock(partial, wait=deadline):
            try:
                downloaded = (
                    0 if _is_whole(directory, manifest) else self._replace(directory, partial, manifest, deadline)
                )
            except DestinationError:
                with suppress(OSError):  # it holds what an interrupted fetch left
                    partial.rmdir()
                raise
            shutil.rmtree(partial)
        return Fetched(manifest, directory, downloaded)

    def _replace(self, directory: Path, partial: Path, manifest: Manifest, deadline: Deadline) -> int:
        """Put the artifact where nothing, or a damaged copy, is: how many bytes had to come."""
        files = partial / "files"
        if directory.exists() and not files.exists():
            directory.rename(files)  # its undamaged files serve the new fetch
        downloaded = self._download(manifest, files, deadline)
        (files / MANIFEST).write_bytes(manifest.to_json())
        if directory.exists():
            shutil.rmtree(directory)
        files.rename(directory)
        return downloaded

    def _download(self, manifest: Manifest, directory: Path, deadline: Deadline) -> int:
        """Make a directory hold the artifact's files and nothing else: how many bytes had to come."""
        directory.mkdir(exist_ok=True)
        for path in _foreign_files(directory, manifest):
            path.unlink()
        for entry in manifest.files:
            if (directory / entry.path).is_dir():  # another artifact's folder, left by its interrupted fetch
                shutil.rmtree(directory / entry.path)
        with (
            progress("Fetching", total=manifest.size, in_bytes=True) as advance,
            ThreadPoolExecutor(self.limits.workers) as pool,
        ):
            tasks = [
                pool.submit(self._download_file, manifest, entry, directory, deadline, advance)
                for entry in manifest.files
            ]
            try:
                return sum(task.result() for task in tasks)
            except UnavailableError:
                deadline.check()  # the last try of a request may end after it
                raise
            finally:
                pool.shutdown(cancel_futures=True)

    def _download_file(
        self,
        manifest: Manifest,
        entry: FileEntry,
        directory: Path,
        deadline: Deadline,
        advance: Callable[[int], object],
    ) -> int:
        path = directory / entry.path
        path.parent.mkdir(parents=True, exist_ok=True)
        key = f"{manifest.reference}/{manifest.data}/{entry.path}"
        downloaded = 0
        for _ in range(_DOWNLOADS):
            have = path.stat().st_size if path.exists() else 0
            if have > entry.size:
                path.unlink()
                have = 0
            if have < entry.size or not path.exists():
                with self.storage.open(key, have) as source, path.open("ab") as target:
                    with suppress(DamagedError):  # the digest tells
                        _copy(source, target, deadline, advance)
                    target.flush()
                    os.fsync(target.fileno())
                downloaded += path.stat().st_size - have
            if path.stat().st_size == entry.size and file_digest(path) == entry.sha256:
                return downloaded
            path.unlink()
        raise CorruptArtifactError(
            "artifacts.damaged-in-store",
            f"{self.uri}/{key} is damaged: {_DOWNLOADS} downloads differ from what was published; publish it again "
            "under a new version",
        )


@contextmanager
def fetched_directory(place: str, store: str | None, *, verify: bool = False) -> Iterator[Path]:
    """A directory as it is, or `KIND/VERSION` of a store, fetched for as long as the block runs. With `verify` a
    directory is read wholly first, where a manifest says what it holds; what is fetched is verified anyway.

    Raises:
        UsageError: it is neither.
        GumshoeError: it is damaged, or the store does not answer.
    """
    directory = Path(place)
    if directory.is_dir():
        if verify and (directory / MANIFEST).exists():
            _, damaged = verify_directory(directory)
            if damaged:
                told = ", ".join(f"{path}: {reason}" for path, reason in damaged.items())
                raise GumshoeError("artifacts.damaged-directory", f"{directory} is damaged: {told}; fetch it again")
        yield directory
        return
    if store is None or not is_reference(place):
        raise UsageError(
            "artifacts.no-such-directory",
            f"the directory {place} does not exist; name another, or KIND/VERSION with --store",
        )
    with TemporaryDirectory(prefix="gumshoe-fetched-") as scratch:
        yield Store(store).fetch(place, Path(scratch) / "files").directory


def verify_directory(directory: Path) -> tuple[Manifest, dict[str, str]]:
    """The manifest of a fetched artifact, and each damaged file's path and what is wrong with it.

    Raises:
        DestinationError: the directory holds no artifact.
    """
    path = directory / MANIFEST
    if not path.is_file():
        raise DestinationError(
            "artifacts.not-an-artifact",
            f"{directory} contains no {MANIFEST}; name a directory that `gumshoe artifacts fetch` created",
        )
    manifest = Manifest.from_json(path.read_bytes(), str(path))
    with progress("Verifying", total=manifest.size, in_bytes=True) as advance:
        return manifest, damaged_files(directory, manifest, advance)


def _is_whole(directory: Path, wanted: Manifest) -> bool:
    """Whether the directory holds the artifact undamaged.

    Raises:
        DestinationError: it holds something else.
    """
    if not directory.exists():
        return False
    if directory.is_dir() and not any(directory.iterdir()):
        return False
    if not (directory / MANIFEST).is_file():
        raise DestinationError(
            "artifacts.destination-exists",
            f"{directory} exists already and is not an artifact; choose another directory",
        )
    manifest, faults = verify_directory(directory)
    if manifest.content != wanted.content or manifest.reference != wanted.reference:
        raise DestinationError(
            "artifacts.destination-is-another-artifact",
            f"{directory} contains {manifest.reference}; choose another directory, or remove this one",
        )
    if faults and (foreign := [path for path in _foreign_files(directory, manifest) if path != directory / MANIFEST]):
        raise DestinationError(
            "artifacts.destination-has-other-files",
            f"{directory} is damaged and cannot be repaired while it contains {foreign[0]}, which is not part of the "
            "artifact; move that file elsewhere",
        )
    return not faults


def _foreign_files(directory: Path, manifest: Manifest) -> list[Path]:
    """Whatever in a directory is neither a folder nor one of the artifact's files."""
    expected = {directory / entry.path for entry in manifest.files}
    return [path for path in directory.rglob("*") if path not in expected and not path.is_dir()]


def _identity(path: Path) -> tuple[int, int, int] | None:
    if not path.exists():
        return None
    stat = path.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _copy(source: BufferedReader, target: BinaryIO | None, deadline: Deadline, advance: Callable[[int], object]) -> str:
    """Read a stream to its end, into `target` where there is one: the SHA-256 of what came."""
    digest = hashlib.sha256()
    while block := source.read1(1 << 20):  # what has come, so that a trickle does not outlast the deadline
        deadline.check()
        digest.update(block)
        advance(len(block))
        if target:
            target.write(block)
    return digest.hexdigest()
