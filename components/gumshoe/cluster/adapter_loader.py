"""Make a vLLM rollout server serve the newest adapter of a store. Runs beside each server and retries all failures.

Invariants: vLLM loads an adapter only after every byte of it was verified. The adapters in service stay loaded until
the next one is. Adapters that this loader did not load are unloaded and reported. The state is derived from the store,
the disk and vLLM, so the process may be killed at any time.
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
from gumshoe.artifacts.storage import Limits, NotFoundError, StorageError, make_writable_directory
from gumshoe.artifacts.store import (
    CorruptArtifactError,
    DestinationError,
    Store,
    verify_directory,
)
from gumshoe.errors import UnavailableError
from gumshoe.inference.http_options import key_headers
from gumshoe.terminal import hide_progress

Kind = Literal["store", "server", "corrupt", "refused", "disk", "foreign"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_LOADED = 2  # adapters that stay loaded: running episodes may still use the previous one

_STORE = Limits(connect_timeout=5, read_timeout=20, attempts=3, backoff=2, workers=4, deadline=600)

_log = logging.getLogger("gumshoe.loader")


@dataclass(frozen=True, slots=True)
class PollInterval:
    """Intervals and timeouts of the loader, in seconds."""

    interval: float = 1.0
    """Time between two checks of the store and the server."""
    max_backoff: float = 60.0
    """Longest pause between two attempts to load an adapter. The pause starts at `interval` and doubles."""
    request_timeout: float = 10.0
    """Deadline for health checks and model lists."""
    load_timeout: float = 300.0
    """Deadline for loading or unloading an adapter."""
    store_limits: Limits = _STORE

    @property
    def stall_timeout(self) -> float:
        """Time without activity after which the loop counts as stalled: longer than any one operation may take."""
        return max(self.store_limits.deadline, self.load_timeout) + 120


@dataclass(frozen=True, slots=True)
class Status:
    """The state of the loader after a check."""

    serving: str | None = None
    """The newest adapter that vLLM has loaded."""
    wanted: str | None = None
    """The newest adapter in the store."""
    since: datetime | None = None
    """When `serving` was first seen in vLLM (UTC)."""
    is_ready: bool = False
    """True if vLLM is healthy and serves the newest adapter, or no adapter was published yet."""
    is_healthy: bool = False
    """True if vLLM is healthy and lists its models."""
    error: str | None = None
    """The current problem, if any."""
    kind: Kind | None = None
    """The category of `error`."""
    refusals: int = 0
    """Number of consecutive refusals of vLLM to load `wanted`."""
    loads: int = 0
    load_seconds: float = 0.0
    """Duration of the last load: from the first check that found the adapter missing until it was loaded."""
    failures: Mapping[Kind, int] = field(default_factory=dict)
    """Number of failures so far, by category."""

    @property
    def is_discoverable(self) -> bool:
        """True if clients should find this server.

        vLLM must be healthy, and either serve an adapter (an older one counts), or have no adapter to serve before the
        next one is published. The trainer publishes to the servers it finds, and waits for them.
        """
        is_hopeless = self.kind in ("corrupt", "refused")
        return self.is_ready or (self.is_healthy and (self.serving is not None or is_hopeless))

    def to_dict(self) -> dict[str, Any]:
        """Return the content of the `/status` page."""
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
    """Report a failure that is retried."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class AdapterLoader:
    """Follow a store for one vLLM server, as a context manager.

    One thread calls `run` or `reconcile`; `status` may be read from any thread.

    Raises:
        UsageError: if the directory is not writable or the URI has an unknown scheme.
    """

    def __init__(self, uri: str, server: str, directory: Path, pace: PollInterval | None = None) -> None:
        self._pace = pace or PollInterval()
        self._store = Store(uri, self._pace.store_limits)
        self._vllm = _VllmApi(server, self._pace, self._record_activity)
        self._directory = make_writable_directory(str(directory)).absolute()
        self._status = Status()
        self._failures: Counter[Kind] = Counter()
        self._is_store_seen = False
        self._missing_since: float | None = None
        self._last_logged: tuple[Kind | None, str | None] = (None, None)
        self._pause, self._next_try = self._pace.interval, 0.0
        self._last_activity = time.monotonic()

    def __enter__(self) -> "AdapterLoader":
        return self

    def __exit__(self, *_: object) -> None:
        self._vllm.close()

    @property
    def status(self) -> Status:
        """The status after the last check."""
        return self._status

    def is_stalled(self) -> bool:
        """Return True if the loop has made no progress for longer than any single operation may take."""
        return time.monotonic() - self._last_activity > self._pace.stall_timeout

    def run(self, stop: threading.Event) -> None:
        """Reconcile again and again until `stop` is set."""
        while not stop.is_set():
            self.reconcile()
            stop.wait(self._pace.interval)

    def reconcile(self) -> Status:
        """Check the store and vLLM once, load the newest adapter if it is missing, and return the new status."""
        errors: list[LoadError] = []
        loaded: list[str] | None = None
        with self.record_errors(errors):
            self._update_wanted()
        with self.record_errors(errors):
            self._vllm.check_health()
            with self.record_errors(errors):
                self._unload_foreign()
            loaded = self._list_loaded()
            wanted = self._status.wanted
            if wanted is not None and wanted not in loaded and self._is_due():
                self._load(wanted)
                loaded = self._list_loaded()
            self.evict(loaded, wanted)
        self.update_status(loaded, errors)
        return self._status

    @contextmanager
    def record_errors(self, errors: list[LoadError]) -> Iterator[None]:
        """Catch a `LoadError` of the block, append it to `errors` and count it."""
        self._record_activity()
        try:
            yield
        except LoadError as error:
            errors.append(error)
            self._failures[error.kind] += 1

    def _record_activity(self) -> None:
        self._last_activity = time.monotonic()

    def _update_wanted(self) -> None:
        """Read the newest version from the store. The last known one stays if the store is unavailable."""
        try:
            latest = self._store.latest(ADAPTERS)
            if latest is not None:
                join_reference(ADAPTERS, latest)  # checks the name, which becomes a path
        except (InvalidNameError, InvalidManifestError) as error:
            raise LoadError("corrupt", error.message_with_code) from None
        except (StorageError, UnavailableError) as error:
            raise LoadError("store", error.message_with_code) from None
        self._is_store_seen = True
        if latest is None:  # nothing published yet, or everything removed: what is served stays
            return
        if latest != self._status.wanted:
            self._status = replace(self._status, wanted=latest, refusals=0)
            self._missing_since = None
            self._pause, self._next_try = self._pace.interval, 0.0

    def _unload_foreign(self) -> None:
        """Unload adapters that come from another directory: somebody else has loaded them.

        Raises:
            LoadError: if there were any.
        """
        adapters = self._vllm.list_adapters()
        foreign = [(name, root) for name, root in adapters if not self._is_own(name, root)]
        for name, _ in foreign:
            self._vllm.unload(name)
        if foreign:
            listed = ", ".join(f"{name} from {root or 'unknown'}" for name, root in foreign)
            raise LoadError("foreign", f"unloaded adapters that this loader did not load: {listed}")

    def _list_loaded(self) -> list[str]:
        """Return the adapters of this directory that vLLM has loaded, in the order they were loaded."""
        return [name for name, root in self._vllm.list_adapters() if self._is_own(name, root)]

    def _is_own(self, name: str, root: str) -> bool:
        """Return True if an adapter comes from this directory. A name may be a path, e.g. `../NAME` or `/tmp/NAME`."""
        place = Path(root)
        return place.parent == self._directory and place.name == name

    def _is_due(self) -> bool:
        return time.monotonic() >= self._next_try

    def _load(self, version: str) -> None:
        """Verify an adapter and load it into vLLM.

        Raises:
            LoadError: if that fails.
        """
        started = self._missing_since = self._missing_since or time.monotonic()
        try:
            place = self._fetch(version)
            self._vllm.load(version, place)
        except LoadError as error:
            self._next_try = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, self._pace.max_backoff)
            if error.kind == "refused":
                self._status = replace(self._status, refusals=self._status.refusals + 1)
            raise
        took, self._missing_since = time.monotonic() - started, None
        self._pause, self._next_try = self._pace.interval, 0.0
        self._status = replace(self._status, loads=self._status.loads + 1, load_seconds=took, refusals=0)
        _log.info("Loaded %s after %.1f seconds", version, took)

    def _fetch(self, version: str) -> Path:
        """Return the directory of a verified adapter. A copy from an earlier fetch works even without the store."""
        reference, place = join_reference(ADAPTERS, version), self._directory / version
        try:
            if _is_complete(place, reference):
                return place
            with hide_progress():
                self._store.fetch(reference, place)
        except (CorruptArtifactError, InvalidManifestError, NotFoundError) as error:
            self._update_wanted()
            if self._status.wanted != version:  # a newer one was published and this one was pruned
                raise LoadError("store", f"{version} was replaced during the download") from None
            raise LoadError("corrupt", f"{version} is damaged: {error.message_with_code}") from None
        except (StorageError, UnavailableError) as error:
            raise LoadError("store", f"cannot fetch {version}: {error.message_with_code}") from None
        except (DestinationError, OSError) as error:
            raise LoadError("disk", f"cannot write {version} to disk: {error}") from None
        self._record_activity()
        return place

    def evict(self, loaded: list[str], wanted: str | None) -> None:
        """Unload all adapters but the newest and the previous one, and delete their files."""
        if wanted is not None and wanted not in loaded:
            return  # what is served stays
        older = [name for name in loaded if name != wanted]
        kept = set(older[len(older) - (_LOADED - 1) :] if wanted is not None else older)
        for name in older:
            if name not in kept:
                self._vllm.unload(name)
                _log.info("Unloaded %s", name)
        kept.update([wanted] if wanted is not None else [])
        try:
            for place in self._directory.iterdir():
                name = place.name.removeprefix(".").removesuffix(".partial")
                if name not in kept and _is_adapter_directory(place, name):
                    shutil.rmtree(place)
        except OSError as error:
            raise LoadError("disk", f"cannot delete old adapters: {error}") from None

    def update_status(self, loaded: list[str] | None, errors: list[LoadError]) -> None:
        """Publish the result of a check as the new status, and log what has changed."""
        before, now = self._status, self._status
        if loaded is not None:
            serving = now.wanted if now.wanted in loaded else next(reversed(loaded), None)
            since = before.since if serving == before.serving else datetime.now(UTC) if serving else None
            now = replace(now, serving=serving, since=since)
        is_served = loaded is not None and (now.wanted in loaded if now.wanted else self._is_store_seen)
        error = next(iter(errors), None)
        message, kind = (None, None) if error is None else (str(error), error.kind)
        if error is None and not is_served:  # between two attempts
            message, kind = before.error, before.kind
        self._status = replace(
            now,
            is_ready=is_served,
            is_healthy=loaded is not None,
            error=message,
            kind=kind,
            failures=dict(self._failures),
        )
        problem = (kind, now.wanted if kind in ("corrupt", "refused") else None)
        if problem != self._last_logged:
            self._last_logged = problem
            if message is not None:
                _log.warning("%s; retrying", message)
            else:
                _log.info("Healthy: serving %s", now.serving or "the base model without an adapter")


class _VllmApi:
    """Call vLLM's API for adapters, with a deadline for each whole response."""

    def __init__(self, url: str, pace: PollInterval, record_activity: Callable[[], None]) -> None:
        self._url, self._pace, self._record_activity = url.rstrip("/").removesuffix("/v1"), pace, record_activity
        self._runner = asyncio.Runner()
        self._client = httpx.AsyncClient(timeout=pace.load_timeout, trust_env=False, headers=key_headers())

    def close(self) -> None:
        """Close all connections."""
        self._runner.run(self._client.aclose())
        self._runner.close()

    def check_health(self) -> None:
        """Check that vLLM is healthy.

        Raises:
            LoadError: if vLLM is unreachable or not healthy.
        """
        answer = self._request("GET", "/health", self._pace.request_timeout)
        if answer.status_code != httpx.codes.OK:
            raise LoadError("server", f"vLLM at {self._url} is not healthy: {answer.status_code}")

    def list_adapters(self) -> list[tuple[str, str]]:
        """Return the name and the path of each loaded adapter.

        Raises:
            LoadError: if vLLM does not answer, or not as expected.
        """
        answer = self._request("GET", "/v1/models", self._pace.request_timeout)
        try:
            models = answer.raise_for_status().json()["data"]
            return [(each["id"], each.get("root") or "") for each in models if each.get("parent")]
        except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise LoadError("server", f"{self._url} did not answer like vLLM: {error}") from None

    def load(self, name: str, place: Path) -> None:
        """Load an adapter.

        Raises:
            LoadError: if vLLM rejects the adapter, has another one of that name, or does not answer.
        """
        body = {"lora_name": name, "lora_path": str(place)}
        answer = self._request("POST", "/v1/load_lora_adapter", self._pace.load_timeout, body)
        if answer.status_code != httpx.codes.OK and (name, str(place)) not in self.list_adapters():
            raise LoadError("refused", f"vLLM refused {name} with {answer.status_code}: {_error_message(answer)}")

    def unload(self, name: str) -> None:
        """Unload an adapter.

        Raises:
            LoadError: if vLLM keeps it, or does not answer.
        """
        answer = self._request("POST", "/v1/unload_lora_adapter", self._pace.load_timeout, {"lora_name": name})
        if answer.status_code not in (httpx.codes.OK, httpx.codes.NOT_FOUND):
            raise LoadError("refused", f"vLLM did not unload {name}: {answer.status_code}: {_error_message(answer)}")

    def _request(self, method: str, path: str, deadline: float, body: dict[str, str] | None = None) -> httpx.Response:
        async def ask() -> httpx.Response:
            async with asyncio.timeout(deadline):
                return await self._client.request(method, f"{self._url}{path}", json=body)

        try:
            return self._runner.run(ask())
        except TimeoutError:
            message = f"vLLM at {self._url} did not answer {path} within {deadline:g} seconds"
            raise LoadError("server", message) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            message = f"vLLM at {self._url} does not answer ({type(error).__name__}: {error})"
            raise LoadError("server", message) from None
        finally:
            self._record_activity()


def _error_message(answer: httpx.Response) -> str:
    """Return the error message in a response of vLLM."""
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:500]


def _is_complete(place: Path, reference: str) -> bool:
    """Return True if a directory contains the artifact, complete and undamaged."""
    try:
        manifest, faults = verify_directory(place)
    except (DestinationError, InvalidManifestError):
        return False
    return manifest.reference == reference and not faults


def _is_adapter_directory(place: Path, name: str) -> bool:
    """Return True if a directory contains an adapter that the loader fetched, or began to fetch."""
    if place.name == f".{name}.partial":
        return place.is_dir() and {each.name for each in place.iterdir()} <= {"files"}
    path = place / MANIFEST
    try:
        return Manifest.from_json(path.read_bytes(), str(path)).kind == ADAPTERS
    except (OSError, InvalidManifestError):  # not written by the loader
        return False
