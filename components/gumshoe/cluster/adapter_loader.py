"""Beside each rollout server: has vLLM serve the newest adapter of a store, whatever fails meanwhile.

What always holds: vLLM is told of an adapter only when every byte of it was verified; what it serves stays as it is
until the next one is loaded; and nothing is remembered that a look at store, disk and vLLM would not tell, so that this
process may be killed at any instant.
"""

import asyncio
import logging
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

import httpx

from gumshoe.artifacts.adapter_layout import ADAPTERS
from gumshoe.artifacts.manifest import MANIFEST, InvalidManifestError, InvalidNameError, Manifest, join_reference
from gumshoe.artifacts.storage import Limits, NotFoundError, StorageError, writable_directory
from gumshoe.artifacts.store import (
    CorruptArtifactError,
    DestinationError,
    Store,
    verify_directory,
)
from gumshoe.errors import UnavailableError
from gumshoe.terminal import quiet

Kind = Literal["store", "server", "corrupt", "refused", "disk"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_KEPT = 2  # adapters in vLLM: episodes may still ask for the one before

_STORE = Limits(connect_timeout=5, read_timeout=20, attempts=3, backoff=2, workers=4, deadline=600)

_log = logging.getLogger("gumshoe.loader")


@dataclass(frozen=True, slots=True)
class PollInterval:
    """How often is looked, and how long is waited. Times are in seconds."""

    look: float = 1.0
    """Between two looks at store and server."""
    backoff: float = 60.0
    """Most between two tries of an adapter that could not be loaded; it is doubled from `look` on."""
    answer: float = 10.0
    """For vLLM to say what it has."""
    load: float = 300.0
    """For vLLM to load an adapter, or to let go of one."""
    store: Limits = _STORE

    @property
    def longest(self) -> float:
        """For any one thing that is waited for, and a little more: without a move for so long, the loop hangs."""
        return max(self.store.deadline, self.load) + 120


@dataclass(frozen=True, slots=True)
class Status:
    """What is known after a look."""

    serving: str | None = None
    """The newest adapter that vLLM has."""
    wanted: str | None = None
    """The newest in the store."""
    since: datetime | None = None
    """When `serving` was first seen in vLLM (UTC)."""
    is_ready: bool = False
    """Whether vLLM is healthy and has the newest adapter, or none was published yet."""
    is_healthy: bool = False
    """Whether vLLM is, and tells what it has."""
    error: str | None = None
    """Why it is not as it should be."""
    kind: Kind | None = None
    """What that is about."""
    refusals: int = 0
    """How often in a row vLLM refused what is wanted."""
    loads: int = 0
    load_seconds: float = 0.0
    """Of the last: from when vLLM was first seen without it to when it had it."""
    failures: Mapping[Kind, int] = field(default_factory=dict)
    """So far, by what they are about."""

    @property
    def is_to_be_found(self) -> bool:
        """Whether clients are to find this server: vLLM is healthy, and either has an adapter, be it an older one, or
        gets none before another is published. The trainer publishes to servers that it finds, and waits for those.
        """
        is_hopeless = self.kind in ("corrupt", "refused")
        return self.is_ready or (self.is_healthy and (self.serving is not None or is_hopeless))

    def described(self) -> dict[str, Any]:
        """As the page `/status` shows it."""
        return {
            "serving": self.serving,
            "wanted": self.wanted,
            "since": self.since.isoformat(timespec="seconds") if self.since else None,
            "ready": self.is_ready,
            "healthy": self.is_healthy,
            "error": self.error,
            "kind": self.kind,
            "refusals": self.refusals,
            "loads": self.loads,
            "load_seconds": round(self.load_seconds, 3),
            "failures": dict(self.failures),
        }


class LoadError(Exception):
    """Something is not as it should be, and is tried again."""

    def __init__(self, kind: Kind, said: str) -> None:
        super().__init__(said)
        self.kind = kind


class AdapterLoader:
    """Follows a store for one vLLM server, as a context manager. One thread looks; any may ask for its `status`.

    Raises:
        UsageError: the directory cannot be written to, or the URI is of a form that is not read.
    """

    def __init__(self, uri: str, server: str, directory: Path, pace: PollInterval | None = None) -> None:
        self._pace = pace or PollInterval()
        self._store = Store(uri, self._pace.store)
        self._vllm = _VllmApi(server, self._pace, self._moves)
        self._directory = writable_directory(str(directory)).absolute()
        self._status = Status()
        self._failures: Counter[Kind] = Counter()
        self._is_store_seen = False
        self._missing_since: float | None = None
        self._told: tuple[Kind | None, str | None] = (None, None)
        self._tries, self._next_try = 0, 0.0
        self._moved = time.monotonic()

    def __enter__(self) -> "AdapterLoader":
        return self

    def __exit__(self, *_: object) -> None:
        self._vllm.close()

    @property
    def status(self) -> Status:
        """As of the last look."""
        return self._status

    def hangs(self) -> bool:
        """Whether nothing has moved for longer than anything is waited for."""
        return time.monotonic() - self._moved > self._pace.longest

    def follow(self, ended: threading.Event) -> None:
        """Look again and again, until it is said to end."""
        while not ended.is_set():
            self.look()
            ended.wait(self._pace.look)

    def look(self) -> Status:
        """Look at the store and at vLLM, and do what is missing: what is known then."""
        troubles: list[LoadError] = []
        has: list[str] | None = None
        with self.record_errors(troubles):
            self._see_wanted()
        with self.record_errors(troubles):
            self._vllm.check_health()
            has = self._held()
            wanted = self._status.wanted
            if wanted is not None and wanted not in has and self._is_due():
                self._load(wanted)
                has = self._held()
            self.evict(has, wanted)
        self.update_status(has, troubles)
        return self._status

    @contextmanager
    def record_errors(self, troubles: list[LoadError]) -> Iterator[None]:
        self._moves()
        try:
            yield
        except LoadError as trouble:
            troubles.append(trouble)
            self._failures[trouble.kind] += 1

    def _moves(self) -> None:
        self._moved = time.monotonic()

    def _see_wanted(self) -> None:
        """What the store names as the newest; what was, where it cannot be asked."""
        try:
            latest = self._store.latest(ADAPTERS)
            if latest is not None:
                join_reference(ADAPTERS, latest)  # it becomes a path
        except (InvalidNameError, InvalidManifestError) as error:
            raise LoadError("corrupt", error.message_with_code) from None
        except (StorageError, UnavailableError) as error:
            raise LoadError("store", error.message_with_code) from None
        self._is_store_seen = True
        if latest is None:  # nothing there yet; or nothing any longer, and what is served stays
            return
        if latest != self._status.wanted:
            self._status = replace(self._status, wanted=latest, refusals=0)
            self._missing_since = None
            self._tries, self._next_try = 0, 0.0

    def _held(self) -> list[str]:
        """The adapters of this directory that vLLM has, in the order in which it got them."""
        return [name for name, root in self._vllm.adapters() if root == str(self._directory / name)]

    def _is_due(self) -> bool:
        return time.monotonic() >= self._next_try

    def _load(self, version: str) -> None:
        """Have vLLM serve an adapter, after every byte of it was verified.

        Raises:
            LoadError: it cannot.
        """
        begun = self._missing_since = self._missing_since or time.monotonic()
        try:
            place = self._fetched(version)
            self._vllm.load(version, place)
        except LoadError as trouble:
            pause = min(self._pace.backoff, self._pace.look * 2.0**self._tries)
            self._tries += 1
            self._next_try = time.monotonic() + pause
            if trouble.kind == "refused":
                self._status = replace(self._status, refusals=self._status.refusals + 1)
            raise
        took, self._missing_since = time.monotonic() - begun, None
        self._tries, self._next_try = 0, 0.0
        self._status = replace(self._status, loads=self._status.loads + 1, load_seconds=took, refusals=0)
        _log.info("Loaded %s after %.1f seconds", version, took)

    def _fetched(self, version: str) -> Path:
        """Where an adapter lies whole; that it was fetched before is enough where the store is away."""
        reference, place = join_reference(ADAPTERS, version), self._directory / version
        try:
            if _is_whole(place, reference):
                return place
            with quiet():
                self._store.fetch(reference, place)
        except (CorruptArtifactError, InvalidManifestError, NotFoundError) as error:
            self._see_wanted()
            if self._status.wanted != version:  # it was removed, since there is a newer one
                raise LoadError("store", f"{version} was replaced while it was fetched") from None
            raise LoadError("corrupt", f"{version} is not loaded: {error.message_with_code}") from None
        except (StorageError, UnavailableError) as error:
            raise LoadError("store", f"{version} cannot be fetched: {error.message_with_code}") from None
        except (DestinationError, OSError) as error:
            raise LoadError("disk", f"{version} cannot be kept: {error}") from None
        self._moves()
        return place

    def evict(self, has: list[str], wanted: str | None) -> None:
        """Let go of all but the newest adapter and the one before it, in vLLM first and then on the disk."""
        if wanted is not None and wanted not in has:
            return  # what is served stays
        older = [name for name in has if name != wanted]
        kept = set(older[len(older) - (_KEPT - 1) :] if wanted is not None else older)
        for name in older:
            if name not in kept:
                self._vllm.unload(name)
                _log.info("Unloaded %s", name)
        kept.update([wanted] if wanted is not None else [])
        try:
            for place in self._directory.iterdir():
                name = place.name.removeprefix(".").removesuffix(".partial")
                if name not in kept and _is_ours(place, name):
                    shutil.rmtree(place)
        except OSError as error:
            raise LoadError("disk", f"what is served no longer cannot be removed: {error}") from None

    def update_status(self, has: list[str] | None, troubles: list[LoadError]) -> None:
        """Put what a look found where others see it, and say what is new of it."""
        before, now = self._status, self._status
        if has is not None:
            serving = now.wanted if now.wanted in has else next(reversed(has), None)
            since = before.since if serving == before.serving else datetime.now(UTC) if serving else None
            now = replace(now, serving=serving, since=since)
        is_served = has is not None and (now.wanted in has if now.wanted else self._is_store_seen)
        trouble = next(iter(troubles), None)
        said, kind = (None, None) if trouble is None else (str(trouble), trouble.kind)
        if trouble is None and not is_served:  # between two tries
            said, kind = before.error, before.kind
        self._status = replace(
            now,
            is_ready=is_served,
            is_healthy=has is not None,
            error=said,
            kind=kind,
            failures=dict(self._failures),
        )
        about = (kind, now.wanted if kind in ("corrupt", "refused") else None)
        if about != self._told:
            self._told = about
            if said is not None:
                _log.warning("%s; going on to try", said)
            else:
                _log.info("All is well: serving %s", now.serving or "the base model alone")


class _VllmApi:
    """vLLM's API of adapters, with a deadline for the whole of each answer. `moves` is called after each."""

    def __init__(self, url: str, pace: PollInterval, moves: Callable[[], None]) -> None:
        self._url, self._pace, self._moves = url.rstrip("/").removesuffix("/v1"), pace, moves
        self._runner = asyncio.Runner()
        self._client = httpx.AsyncClient(timeout=pace.load, trust_env=False)

    def close(self) -> None:
        """Close every connection."""
        self._runner.run(self._client.aclose())
        self._runner.close()

    def check_health(self) -> None:
        """
        Raises:
            LoadError: vLLM is not there, or not healthy.
        """
        answer = self._asked("GET", "/health", self._pace.answer)
        if answer.status_code != httpx.codes.OK:
            raise LoadError("server", f"vLLM at {self._url} is not healthy: it answers {answer.status_code}")

    def adapters(self) -> list[tuple[str, str]]:
        """Name and path of each adapter that vLLM has.

        Raises:
            LoadError: it does not say.
        """
        answer = self._asked("GET", "/v1/models", self._pace.answer)
        try:
            models = answer.raise_for_status().json()["data"]
            return [(each["id"], each.get("root") or "") for each in models if each.get("parent")]
        except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise LoadError("server", f"{self._url} does not answer as vLLM does ({error})") from None

    def load(self, name: str, place: Path) -> None:
        """
        Raises:
            LoadError: vLLM does not take the adapter, has another of that name, or does not answer.
        """
        body = {"lora_name": name, "lora_path": str(place)}
        answer = self._asked("POST", "/v1/load_lora_adapter", self._pace.load, body)
        if answer.status_code != httpx.codes.OK and (name, str(place)) not in self.adapters():
            raise LoadError("refused", f"vLLM refused {name} with {answer.status_code}: {_words(answer)}")

    def unload(self, name: str) -> None:
        """
        Raises:
            LoadError: vLLM has it all the same, or does not answer.
        """
        answer = self._asked("POST", "/v1/unload_lora_adapter", self._pace.load, {"lora_name": name})
        if answer.status_code not in (httpx.codes.OK, httpx.codes.NOT_FOUND):
            raise LoadError("refused", f"vLLM did not unload {name}: {answer.status_code}: {_words(answer)}")

    def _asked(self, method: str, path: str, deadline: float, body: dict[str, str] | None = None) -> httpx.Response:
        async def ask() -> httpx.Response:
            async with asyncio.timeout(deadline):
                return await self._client.request(method, f"{self._url}{path}", json=body)

        try:
            return self._runner.run(ask())
        except TimeoutError:
            said = f"vLLM at {self._url} did not answer {path} in {deadline:g} seconds"
            raise LoadError("server", said) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            said = f"vLLM at {self._url} does not answer ({type(error).__name__}: {error})"
            raise LoadError("server", said) from None
        finally:
            self._moves()


def _words(answer: httpx.Response) -> str:
    """What vLLM says of an error."""
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:500]


def _is_whole(place: Path, reference: str) -> bool:
    """Whether a directory holds an artifact as it was fetched."""
    try:
        manifest, faults = verify_directory(place)
    except (DestinationError, InvalidManifestError):
        return False
    return manifest.reference == reference and not faults


def _is_ours(place: Path, name: str) -> bool:
    """Whether a directory is an adapter's that was fetched here, or begun to be."""
    if place.name == f".{name}.partial":
        return place.is_dir() and {each.name for each in place.iterdir()} <= {"files"}
    path = place / MANIFEST
    try:
        return Manifest.from_json(path.read_bytes(), str(path)).kind == ADAPTERS
    except (OSError, InvalidManifestError):  # somebody else's
        return False
