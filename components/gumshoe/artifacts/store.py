"""Publish, fetch, list and verify artifacts.

In a store, an artifact is `<kind>/<version>/manifest.json` and, beside it, its files under
`sha256-<content>/`. `<kind>/latest.json` names the newest version of a kind.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from io import BufferedReader
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

from tenacity import Retrying, retry_if_result, wait_random

from gumshoe.artifacts.manifest import (
    LATEST,
    MANIFEST,
    FileEntry,
    ForeignManifestError,
    InvalidManifestError,
    Manifest,
    check_kind,
    code_hash,
    content_digest,
    describe_files,
    file_digest,
    find_artifact_files,
    find_damaged_files,
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
    explain_os_errors,
    lock_directory,
    open_storage,
)
from gumshoe.errors import GumshoeError, UnavailableError, UsageError
from gumshoe.json_text import load_json
from gumshoe.redaction import redact_json
from gumshoe.terminal import progress

PRUNED = "pruned.json"  # stays where an artifact was, so that its version is not used again
_MARKER = ".conditional-writes"
ABANDONED_AFTER = timedelta(days=1)  # `prune` deletes leftovers of unfinished publications after this time
_RESUMABLE_FOR = ABANDONED_AFTER / 2  # older files may soon be pruned, so they are sent again
_DOWNLOAD_ATTEMPTS = 3  # of one file, if its bytes arrive damaged
_Identity = tuple[int, int, int] | None  # inode, bytes and time of modification of a file, if it exists


class VersionTakenError(UsageError):
    """Another artifact was published under this version. Versions are used once."""


class DestinationError(UsageError):
    """The directory to fetch into contains something else."""


class CorruptArtifactError(GumshoeError):
    """The stored bytes are not those that were published."""


@dataclass(frozen=True, slots=True)
class PublishResult:
    """An artifact that is in the store. `created` is True if this call published it."""

    manifest: Manifest
    created: bool


@dataclass(frozen=True, slots=True)
class FetchResult:
    """A verified artifact in a local directory, and the number of bytes that were downloaded."""

    manifest: Manifest
    directory: Path
    downloaded: int


@dataclass(frozen=True, slots=True)
class ArtifactLineage:
    """The artifacts that an artifact was made from. `manifest` is None if the store does not have it."""

    reference: str
    manifest: Manifest | None
    made_from: tuple["ArtifactLineage", ...] = ()


class Store:
    """Publish, fetch, list and verify the artifacts below a `file://` or `s3://` URI. Thread-safe."""

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
        may_differ: Collection[str] = (),
    ) -> PublishResult:
        """Publish a directory's files as `kind/version`, completely or not at all.

        Publishing the same content under the same version again changes nothing. An interrupted publication is resumed.
        With `latest`, the version becomes the newest of its kind. Files at the paths `may_differ` are not compared with
        those that were published before under this version, which stay.

        Raises:
            UsageError: if the name or the directory is invalid; nothing was sent.
            VersionTakenError: if the version has other content.
            GumshoeError: if a file changed meanwhile, or the store failed; nothing became visible.
        """
        deadline = Deadline(self.limits.deadline)
        reference = join_reference(kind, version)
        with explain_os_errors(directory):
            files = find_artifact_files(directory)
            before = {inside: _file_identity(path) for inside, path in files.items()}
            size = sum(path.stat().st_size for path in files.values())
            with progress("Hashing", total=size, in_bytes=True) as advance:
                entries = describe_files(files, advance)
        manifest = Manifest(
            kind=kind,
            version=version,
            created=now(),
            content=content_digest(entries),
            files=entries,
            made_from=tuple(made_from),
            code=code_hash(),
            image=image,
            settings=redact_json(settings or {}),
        )
        existing = self.find(reference)
        if existing is None and any(self.storage.entries(f"{reference}/{PRUNED}")):
            raise VersionTakenError(
                "artifacts.version-pruned",
                f"{self.uri}: {reference} was published before and pruned; a version is used once, so choose another",
            )
        if existing is None:
            self._require_conditional_writes()
            try:
                self._upload(manifest, files, deadline)
            finally:  # a changed file may be why the upload failed
                self._refuse_changed(manifest, files, before, directory)
            existing = self._make_visible(manifest)
        ours, theirs = ([file for file in each.files if file.path not in may_differ] for each in (manifest, existing))
        if content_digest(ours) != content_digest(theirs):
            raise VersionTakenError(
                "artifacts.version-taken",
                f"{self.uri}: {reference} was published before with other content; a version is used once, so choose "
                "another",
            )
        if latest:
            self._update_latest(existing, deadline)
        return PublishResult(existing, created=existing.publication == manifest.publication)

    def _upload(self, manifest: Manifest, files: dict[str, Path], deadline: Deadline) -> None:
        """Upload the files that are missing, then check that all of them are there."""
        folder = f"{manifest.reference}/{manifest.data}/"
        fresh = now() - _RESUMABLE_FOR
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

    def _refuse_changed(
        self, manifest: Manifest, files: dict[str, Path], before: dict[str, _Identity], directory: Path
    ) -> None:
        """Raise an error if a file has another identity than before; delete what was uploaded of it."""
        if changed := [inside for inside, path in files.items() if _file_identity(path) != before[inside]]:
            # The uploaded bytes may not match their digest, and the next publisher would not send them again.
            self.storage.delete(f"{manifest.reference}/{manifest.data}/{inside}" for inside in changed)
            raise GumshoeError(
                "artifacts.changed-while-publishing",
                f"{directory} changed while it was published: {changed[0]}; publish it again",
            )

    def _make_visible(self, manifest: Manifest) -> Manifest:
        """Write the manifest last, and return the visible one, which may be another publisher's."""
        if self.storage.create(f"{manifest.reference}/{MANIFEST}", manifest.to_json()):
            return manifest
        winner = self.find(manifest.reference)  # our own, if only the response to the write was lost
        if winner is None:
            raise StorageError(
                "artifacts.removed-while-publishing",
                f"{self.uri}: {manifest.reference} was removed while it was published; publish it again",
            )
        return winner

    def _require_conditional_writes(self) -> None:
        """Raise an error if the store ignores the condition of a conditional write: two publishers could both win."""
        for _ in range(2):
            if not self.storage.create(_MARKER, b"This store honours conditional writes.\n"):
                return
        raise GumshoeError(
            "store.no-conditional-writes",
            f"{self.uri} ignores If-None-Match, so a published version could be overwritten; use a store with "
            "conditional writes (AWS S3, MinIO since 2024-11, Ceph since Squid)",
        )

    def _update_latest(self, manifest: Manifest, deadline: Deadline) -> None:
        """Make `latest.json` name this version unless it names a newer one."""
        retrying = Retrying(
            retry=retry_if_result(lambda is_done: not is_done),
            wait=wait_random(0.05, 0.5),
            before_sleep=lambda _: deadline.check(),
        )
        retrying(self._try_update_latest, manifest)

    def _try_update_latest(self, manifest: Manifest) -> bool:
        """Update `latest.json` once. Return False if another publisher was faster."""
        key = f"{manifest.kind}/{LATEST}"
        pointer = json.dumps({"version": manifest.version, "created": manifest.created.isoformat()}).encode()
        try:
            current, tag = self.storage.read(key)
        except NotFoundError:
            return self.storage.create(key, pointer)
        with suppress(ValueError, KeyError, TypeError):  # a damaged file is replaced
            if datetime.fromisoformat(load_json(current)["created"]) >= manifest.created:
                return True
        return self.storage.swap(key, pointer, tag)

    def repoint_latest(self, kind: str) -> None:
        """Point `kind/latest` to the newest version that is left. Do nothing if the version that it names exists.

        Use it after the latest version was deleted. If no version is left, the pointer is deleted.
        """
        latest = self.latest(kind)
        if latest is not None and self.find(f"{kind}/{latest}") is not None:
            return
        self.storage.delete([f"{kind}/{LATEST}"])
        newest = max(self.list(kind), key=lambda each: each.created, default=None)
        if newest is not None:
            self._update_latest(newest, Deadline(self.limits.deadline))

    def manifest(self, reference: str) -> Manifest:
        """Return the manifest of `kind/version`, or of the newest version of a kind for `kind/latest`.

        Raises:
            NotFoundError: if no such artifact was published.
            InvalidManifestError: if the manifest is damaged.
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
        """Return the manifest of `kind/version`, or None if it does not exist.

        Raises:
            InvalidManifestError: if the manifest is damaged.
        """
        key = f"{reference}/{MANIFEST}"
        try:
            text, _ = self.storage.read(key)
        except NotFoundError:
            return None
        manifest = Manifest.from_json(text, f"{self.uri}/{key}")
        return manifest if manifest.reference == reference else manifest.rebase(reference, f"{self.uri}/{key}")

    def _find_unless_foreign(self, reference: str) -> Manifest | None:
        try:
            return self.find(reference)
        except ForeignManifestError:  # other programs may store files in the same place
            return None

    def latest(self, kind: str) -> str | None:
        """Return the newest version of a kind, or None if the kind has no versions."""
        try:
            text, _ = self.storage.read(f"{check_kind(kind)}/{LATEST}")
            return str(load_json(text)["version"])
        except NotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            raise InvalidManifestError(
                "artifacts.damaged-latest", f"{self.uri}/{kind}/{LATEST} is damaged; publish a version again"
            ) from None

    def list(self, kind: str | None = None) -> list[Manifest]:
        """Return the manifests of all artifacts, or of one kind, oldest first."""
        keys = [entry.key for entry in self.storage.entries("" if kind is None else f"{check_kind(kind)}/")]
        references = [
            reference
            for reference, _, name in (key.rpartition("/") for key in keys)
            if name == MANIFEST and is_reference(reference) and kind in {None, reference.rpartition("/")[0]}
        ]
        with ThreadPoolExecutor(self.limits.workers) as pool:
            found = [manifest for manifest in pool.map(self._find_unless_foreign, references) if manifest]
        return sorted(found, key=lambda manifest: manifest.created)

    def lineage(self, reference: str) -> ArtifactLineage:
        """Return the artifacts that an artifact was made from, recursively, as far as this store knows them.

        Raises:
            NotFoundError: if no such artifact was published.
        """

        def trace(manifest: Manifest, below: tuple[str, ...]) -> ArtifactLineage:
            parents = []
            below = (*below, manifest.reference)
            for parent in manifest.made_from:
                found = self.find(parent)
                is_circular = parent in below
                parents.append(trace(found, below) if found and not is_circular else ArtifactLineage(parent, found))
            return ArtifactLineage(manifest.reference, manifest, tuple(parents))

        return trace(self.manifest(reference), ())

    def verify(self, reference: str) -> dict[str, str]:
        """Read every byte of a stored artifact, and return each damaged file's path with the reason."""
        deadline = Deadline(self.limits.deadline)
        manifest = self.manifest(reference)

        def check(entry: FileEntry) -> str | None:
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
            try:
                faults = list(pool.map(check, manifest.files))
            except (KeyboardInterrupt, SystemExit):
                deadline.stop()
                raise
        return {entry.path: reason for entry, reason in zip(manifest.files, faults, strict=True) if reason}

    def read_file(self, manifest: Manifest, path: str) -> bytes | None:
        """Return the content of a small file of an artifact, or None if the artifact has no such file.

        Raises:
            NotFoundError: if the artifact was removed meanwhile.
            CorruptArtifactError: if the stored bytes are not those that were published.
        """
        entry = next((each for each in manifest.files if each.path == path), None)
        if entry is None:
            return None
        key = f"{manifest.reference}/{manifest.data}/{path}"
        data, _ = self.storage.read(key)
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise CorruptArtifactError(
                "artifacts.damaged-in-store", f"{self.uri}/{key} is damaged; restore it, or remove the artifact"
            )
        return data

    def fetch(self, reference: str, directory: Path) -> FetchResult:
        """Fetch an artifact into `directory`, verify every byte, and show it completely or not at all.

        Nothing is downloaded if the directory already contains the undamaged artifact. An interrupted fetch is resumed,
        and damaged files are fetched again.

        Raises:
            NotFoundError: if no such artifact was published.
            DestinationError: if the directory contains something else.
            CorruptArtifactError: if the stored bytes are not those that were published.
            StorageError, UnavailableError: if the store failed.
        """
        deadline = Deadline(self.limits.deadline)
        manifest = self.manifest(reference)
        directory = directory.absolute()
        if not directory.name:
            raise DestinationError(
                "artifacts.destination-is-root",
                f"cannot fetch into {directory}: it is the root of the file system; choose a directory below it",
            )
        with suppress(DestinationError, FileNotFoundError):  # another process may be writing there: see below
            if _is_intact(directory, manifest):
                return FetchResult(manifest, directory, downloaded=0)
        partial = directory.with_name(f".{directory.name}.partial")
        with explain_os_errors(directory), lock_directory(partial, wait=deadline):
            try:
                downloaded = (
                    0 if _is_intact(directory, manifest) else self._replace(directory, partial, manifest, deadline)
                )
            except DestinationError:
                with suppress(OSError):  # it contains files of an interrupted fetch
                    partial.rmdir()
                raise
            shutil.rmtree(partial)
        return FetchResult(manifest, directory, downloaded)

    def _replace(self, directory: Path, partial: Path, manifest: Manifest, deadline: Deadline) -> int:
        """Put the artifact in place of nothing or of a damaged copy, and return the number of bytes downloaded."""
        files = partial / "files"
        if directory.exists() and not files.exists():
            directory.rename(files)  # its undamaged files are used again
        downloaded = self._download(manifest, files, deadline)
        (files / MANIFEST).write_bytes(manifest.to_json())
        if directory.exists():
            shutil.rmtree(directory)
        files.rename(directory)
        return downloaded

    def _download(self, manifest: Manifest, directory: Path, deadline: Deadline) -> int:
        """Make a directory contain the artifact's files and nothing else, and return the number of bytes downloaded."""
        directory.mkdir(exist_ok=True)
        for path in _find_foreign_files(directory, manifest):
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
                deadline.check()  # the last attempt of a request may end after the deadline
                raise
            except (KeyboardInterrupt, SystemExit):
                deadline.stop()
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
        for _ in range(_DOWNLOAD_ATTEMPTS):
            existing_size = path.stat().st_size if path.exists() else 0
            if existing_size > entry.size:
                path.unlink()
                existing_size = 0
            if existing_size < entry.size or not path.exists():
                with self.storage.open(key, existing_size) as source, path.open("ab") as target:
                    with suppress(DamagedError):  # the digest is checked below
                        _copy(source, target, deadline, advance)
                    target.flush()
                    os.fsync(target.fileno())
                downloaded += path.stat().st_size - existing_size
            if path.stat().st_size == entry.size and file_digest(path) == entry.sha256:
                return downloaded
            path.unlink()
        raise CorruptArtifactError(
            "artifacts.damaged-in-store",
            f"{self.uri}/{key} is damaged: {_DOWNLOAD_ATTEMPTS} downloads differ from what was published; publish it "
            "again under a new version",
        )


@contextmanager
def fetch_directory(place: str, store: str | None, *, verify: bool = False) -> Iterator[Path]:
    """Yield a local directory: `place` itself, or an artifact `KIND/VERSION` fetched while the block runs.

    With `verify`, a local directory that has a manifest is checked completely first. A fetched artifact is always
    verified.

    Raises:
        UsageError: if it is neither a directory nor an artifact.
        GumshoeError: if it is damaged, or the store does not answer.
    """
    directory = Path(place)
    if directory.is_dir():
        if verify and (directory / MANIFEST).exists():
            _, damaged = verify_directory(directory)
            if damaged:
                faults = ", ".join(f"{path}: {reason}" for path, reason in damaged.items())
                raise GumshoeError("artifacts.damaged-directory", f"{directory} is damaged: {faults}; fetch it again")
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
    """Return the manifest of a fetched artifact, and each damaged file's path with the reason.

    Raises:
        DestinationError: if the directory contains no artifact.
    """
    path = directory / MANIFEST
    if not path.is_file():
        raise DestinationError(
            "artifacts.not-an-artifact",
            f"{directory} contains no {MANIFEST}; name a directory that `gumshoe artifacts fetch` created",
        )
    manifest = Manifest.from_json(path.read_bytes(), str(path))
    with progress("Verifying", total=manifest.size, in_bytes=True) as advance:
        return manifest, find_damaged_files(directory, manifest, advance)


def _is_intact(directory: Path, wanted: Manifest) -> bool:
    """Return True if the directory contains the undamaged artifact.

    Raises:
        DestinationError: if it contains something else.
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
    if faults and (
        foreign := [path for path in _find_foreign_files(directory, manifest) if path != directory / MANIFEST]
    ):
        raise DestinationError(
            "artifacts.destination-has-other-files",
            f"{directory} is damaged and cannot be repaired while it contains {foreign[0]}, which is not part of the "
            "artifact; move that file elsewhere",
        )
    return not faults


def _find_foreign_files(directory: Path, manifest: Manifest) -> list[Path]:
    """Return the paths in a directory that are neither folders nor files of the artifact."""
    expected = {directory / entry.path for entry in manifest.files}
    return [path for path in directory.rglob("*") if path not in expected and not path.is_dir()]


def _file_identity(path: Path) -> _Identity:
    if not path.exists():
        return None
    stat = path.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _copy(source: BufferedReader, target: BinaryIO | None, deadline: Deadline, advance: Callable[[int], object]) -> str:
    """Read a stream to its end, write it to `target` if given, and return its SHA-256."""
    digest = hashlib.sha256()
    while block := source.read1(1 << 20):  # returns what has arrived, so that a slow stream cannot exceed the deadline
        deadline.check()
        digest.update(block)
        advance(len(block))
        if target:
            target.write(block)
    return digest.hexdigest()
