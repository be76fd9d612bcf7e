"""Helpers: directories of files, real processes, and bytes written into a store without its checks."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any, TypeVar

from gumshoe.artifacts.storage import Deadline
from gumshoe.artifacts.store import Store
from tests.warm_processes import WarmProcess, start_gumshoe

T = TypeVar("T")

SMALL: dict[str, bytes] = {
    "adapter.safetensors": bytes(range(256)) * 40,
    "config/adapter.json": b'{"rank": 16}\n',
    "config/empty": b"",
    "notes.txt": b"Trained on three mailboxes.\n",
}


def write_files(directory: Path, files: Mapping[str, bytes]) -> Path:
    """Create a directory with these files."""
    for name, data in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(data)
    return directory


def read_files(directory: Path, *, manifest: bool = False) -> dict[str, bytes]:
    """Return all files below a directory, without the artifact's own manifest unless requested."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and (manifest or path != directory / "manifest.json")
    }


def find_bytes(directory: Path, *needles: str) -> set[str]:
    """Return which texts occur in a file below a directory, in any case."""
    contents = [path.read_bytes().lower() for path in directory.rglob("*") if path.is_file()]
    return {each for each in needles if any(each.lower().encode() in content for content in contents)}


def noise(size: int, seed: int = 0) -> bytes:
    """Return pseudorandom bytes, the same for the same seed."""
    return hashlib.shake_256(seed.to_bytes(4)).digest(size)


def stored_key(store: Store, reference: str, name: str) -> str:
    """Return the key of a published artifact's file."""
    manifest = store.manifest(reference)
    return f"{manifest.reference}/{manifest.data}/{name}"


def overwrite(store: Store, key: str, data: bytes, scratch: Path) -> None:
    """Write bytes into a store without its checks."""
    source = scratch / "overwrite.bin"
    source.write_bytes(data)
    store.storage.upload({key: source}, Deadline(60), lambda _: None)
    source.unlink()


def manifest_text(reference: str, files: Iterable[tuple[str, bytes]], **changes: Any) -> bytes:
    """Return a manifest that is valid except for the changes, whatever paths it names."""
    kind, _, version = reference.rpartition("/")
    entries = [{"path": path, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for path, data in files]
    digest = hashlib.sha256()
    for entry in sorted(entries, key=lambda entry: str(entry["path"])):
        digest.update(f"{entry['path']}\0{entry['size']}\0{entry['sha256']}\n".encode())
    document: dict[str, Any] = {
        "format": "gumshoe.artifact/1",
        "kind": kind,
        "version": version,
        "created": "2026-01-01T00:00:00Z",
        "content": digest.hexdigest(),
        "files": entries,
    }
    return json.dumps(document | changes).encode()


def plant(store: Store, reference: str, files: Iterable[tuple[str, bytes]], scratch: Path, **changes: Any) -> None:
    """Write a handmade manifest into a store, with the files that it lists."""
    files = list(files)
    text = manifest_text(reference, files, **changes)
    data = f"sha256-{json.loads(text)['content'][:32]}"
    for path, content in files:
        if ".." not in path and not path.startswith("/"):
            overwrite(store, f"{reference}/{data}/{path}", content, scratch)
    assert store.storage.create(f"{reference}/manifest.json", text)


def run_concurrently(calls: Iterable[Callable[[], T]]) -> list[T | Exception]:
    """Return what each call returns or raises. All calls start at the same moment, in threads."""
    calls = list(calls)
    barrier = Barrier(len(calls))

    def begin(call: Callable[[], T]) -> T | Exception:
        barrier.wait()
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - the test looks at every one
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(begin, calls))


def gumshoe(*arguments: str | Path) -> WarmProcess:
    """Start `gumshoe artifacts ...` in a process."""
    return start_gumshoe("artifacts", *arguments)
