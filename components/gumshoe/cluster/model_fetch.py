"""Fetch the files of models and adapters into a directory, and verify them.

An init container of vLLM's pods runs this where KServe's storage initializer cannot be used.
"""

import hashlib
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gumshoe.artifacts.manifest import join_reference
from gumshoe.artifacts.storage import (
    Deadline,
    Entry,
    Limits,
    NotFoundError,
    Storage,
    explain_os_errors,
    open_storage,
    write_atomically,
)
from gumshoe.artifacts.store import CorruptArtifactError, Store
from gumshoe.errors import GumshoeError, UnavailableError, UsageError
from gumshoe.terminal import progress

HUB = "hf://"
_ARTIFACT = re.compile(r"(?P<root>.+)/(?P<kind>[^/]+)/(?P<version>[^/]+)/(?P<data>sha256-[0-9a-f]+)")
_OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".h5", ".msgpack", ".ot", ".onnx", ".gguf")
"""Formats that vLLM does not read if a repository also has safetensors."""


@dataclass(frozen=True, slots=True)
class FetchedFiles:
    """Number of files in a directory, and of those whose digest was verified. Sizes are always verified."""

    files: int
    verified: int


def fetch_model_files(uri: str, directory: Path, limits: Limits | None = None) -> FetchedFiles:
    """Fetch all files at a URI into a directory. Files of an interrupted fetch are reused.

    Digests are verified for `hf://OWNER/NAME[:REVISION]` (those of the hub) and for artifacts of a store,
    e.g. `s3://bucket/project/adapters/v1/sha256-…/` (those of the manifest). Other files at `s3://` and `file://` URIs
    have no digests.

    Raises:
        UsageError: if the URI has another form, or the hub denies access to the repository or does not have it.
        NotFoundError: if there are no files.
        GumshoeError: if files are damaged, or cannot be written.
        UnavailableError: if the server does not answer or fails.
    """
    if uri.startswith(HUB):
        return _fetch_from_hub(uri, directory)
    artifact = _ARTIFACT.fullmatch(uri.rstrip("/"))
    if artifact:
        return _fetch_artifact(uri, artifact, directory, limits or Limits())
    return _fetch_folder(uri, directory, limits or Limits())


def _fetch_artifact(uri: str, artifact: re.Match[str], directory: Path, limits: Limits) -> FetchedFiles:
    store, reference = Store(artifact["root"], limits), join_reference(artifact["kind"], artifact["version"])
    manifest = store.manifest(reference)
    if manifest.data != artifact["data"]:
        raise CorruptArtifactError(
            "model-fetch.other-content",
            f"{uri} is not the content of {reference}, which is {manifest.data}; use the URI that `gumshoe artifacts "
            f"show {reference}` prints",
        )
    fetched = store.fetch(reference, directory)
    return FetchedFiles(len(fetched.manifest.files), len(fetched.manifest.files))


def _fetch_folder(uri: str, directory: Path, limits: Limits) -> FetchedFiles:
    storage, deadline = open_storage(uri.rstrip("/"), limits), Deadline(limits.deadline)
    entries = [entry for entry in storage.entries() if not entry.key.endswith("/")]
    if not entries:
        raise NotFoundError("store.not-found", f"{uri} contains no files; check the path")
    for entry in entries:
        _check_name(entry.key, uri)
    with (
        explain_os_errors(directory),
        progress("Fetching", total=sum(entry.size for entry in entries), in_bytes=True) as advance,
        ThreadPoolExecutor(limits.workers) as pool,
    ):
        tasks = [pool.submit(_copy_file, storage, entry, directory / entry.key, deadline) for entry in entries]
        for task, entry in zip(tasks, entries, strict=True):
            task.result()
            advance(entry.size)
    return FetchedFiles(len(entries), verified=0)


def _check_name(name: str, uri: str) -> None:
    """Raise an error if a file's name would lead out of the directory."""
    if name.startswith("/") or any(part in ("", ".", "..") for part in name.split("/")):
        raise UsageError("model-fetch.unsafe-name", f"{uri} contains a file named {name!r}; remove or rename it")


def _copy_file(storage: Storage, entry: Entry, path: Path, deadline: Deadline) -> None:
    deadline.check()
    if path.is_file() and path.stat().st_size == entry.size and path.stat().st_mtime > entry.modified.timestamp():
        return  # fetched before the container was restarted
    path.parent.mkdir(parents=True, exist_ok=True)
    with storage.open(entry.key) as source:
        write_atomically(path, source, lambda _: deadline.check())
    if path.stat().st_size != entry.size:
        path.unlink()
        raise UnavailableError(
            "model-fetch.changed", f"{storage.uri}/{entry.key} changed while it was fetched; fetch it again"
        )


def _fetch_from_hub(uri: str, directory: Path) -> FetchedFiles:
    from huggingface_hub import HfApi, constants, snapshot_download

    name, _, revision = uri.removeprefix(HUB).rstrip("/").partition(":")
    with _explain_hub_errors(uri):
        found = HfApi().model_info(
            name, revision=revision or None, files_metadata=True, timeout=constants.HF_HUB_ETAG_TIMEOUT
        )
        files = _select_files(found.siblings or [])
        for file in files:
            _check_name(file.rfilename, uri)
        snapshot_download(
            name, revision=found.sha, local_dir=directory, allow_patterns=[_escape(file.rfilename) for file in files]
        )
        with explain_os_errors(directory):
            verified = sum(_verify(file, directory / file.rfilename, uri) for file in files)
            shutil.rmtree(directory / ".cache", ignore_errors=True)
    if not files:
        raise NotFoundError("store.not-found", f"{uri} contains no files; check the name")
    return FetchedFiles(len(files), verified)


def _select_files(siblings: list[Any]) -> list[Any]:
    """Return the files that vLLM needs: without a second copy of the weights in another format."""
    if not any(file.rfilename.endswith(".safetensors") for file in siblings):
        return siblings
    return [file for file in siblings if not file.rfilename.endswith(_OTHER_WEIGHTS)]


def _escape(name: str) -> str:
    """Return a pattern of `fnmatch` that matches this name only."""
    return re.sub(r"([*?[])", r"[\1]", name)


def _verify(file: Any, path: Path, uri: str) -> bool:
    """Compare a file with the digest that the hub states. Return False if it states none.

    Raises:
        GumshoeError: if they differ; the file is deleted.
    """
    with path.open("rb") as content:
        if file.lfs is not None:
            expected, actual = file.lfs.sha256, hashlib.file_digest(content, "sha256").hexdigest()
        elif file.blob_id:
            head = f"blob {path.stat().st_size}\0".encode()  # a blob of git is named by the digest of both
            expected, actual = file.blob_id, hashlib.sha1(head + content.read(), usedforsecurity=False).hexdigest()
        else:
            return False
    if actual != expected:
        path.unlink()
        raise GumshoeError(
            "model-fetch.damaged",
            f"{uri}: {file.rfilename} is damaged: it has digest {actual}, the hub states {expected}; fetch it again",
        )
    return True


@contextmanager
def _explain_hub_errors(uri: str) -> Iterator[None]:
    """Turn errors of the hub's library into a GumshoeError."""
    import httpx
    from huggingface_hub.errors import HFValidationError, OfflineModeIsEnabled

    try:
        yield
    except (OSError, ValueError, httpx.HTTPError) as error:
        reason = str(error).strip().partition("\n")[0]
        answer = getattr(error, "response", None)
        status = getattr(answer, "status_code", None)
        if isinstance(error, OfflineModeIsEnabled):
            raise UsageError("model-fetch.offline", f"{uri}: HF_HUB_OFFLINE is set; unset it, or use s3://") from error
        if isinstance(error, HFValidationError):
            raise UsageError(
                "model-fetch.not-found", f"{uri}: {reason}; use hf://OWNER/NAME or hf://OWNER/NAME:REVISION"
            ) from error
        if status in (401, 403):
            raise UsageError(
                "model-fetch.access-denied",
                f"{uri}: the hub denies access ({status}): {reason}; check the name, request access if the repository "
                "is gated, and set HF_TOKEN",
            ) from error
        if status is None and isinstance(error, OSError) and error.errno is not None:
            raise GumshoeError(
                "model-fetch.not-written", f"{uri}: cannot write its files: {error}; check the free space"
            ) from error
        if isinstance(error, httpx.TransportError) or status is None or status >= 500 or status == 429:
            raise UnavailableError(
                "model-fetch.hub-unavailable",
                f"{uri}: the hub did not answer or failed: {reason}; check HF_ENDPOINT, the proxy and the network, "
                "then try again",
            ) from error
        raise UsageError(
            "model-fetch.not-found", f"{uri}: the hub does not provide it ({status}): {reason}; check its name"
        ) from error
