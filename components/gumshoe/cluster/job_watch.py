"""What goes on with a TrainJob, as it happens: the job itself, and what its first node says.

Two threads put it into one queue. Each goes on after whatever interrupts it: a watch that ends, or whose place in
history is forgotten (410); a cluster that wants to be left alone (429), or does not answer; a log that breaks off, or
whose pod is replaced. No line of a log comes twice.
"""

import json
import queue
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from gumshoe.cluster.kubernetes_api import Cluster, ClusterError, ClusterUnavailableError
from gumshoe.cluster.trainjob import GROUP, JOB_LABEL, NODE_LABEL, PLURAL, ROLE_LABEL, VERSION, Manifest
from gumshoe.errors import GumshoeError

_CONNECT = 20.0  # seconds
_WATCHED = 60  # seconds until a watch is begun anew
_QUIET = 90.0  # seconds without a byte after which a connection is taken for lost
_FIRST, _LONGEST = 0.5, 30.0  # seconds between tries
_SLACK = 60  # seconds that clocks may differ
_STAMPED = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?Z ?(.*)")


@dataclass(frozen=True, slots=True)
class JobUpdate:
    """The job as it is now; None where it is gone."""

    job: Manifest | None


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of the first node's log."""

    text: str


@dataclass(frozen=True, slots=True)
class WatchLost:
    """The job can be followed no longer."""

    error: GumshoeError


JobEvent = JobUpdate | LogLine | WatchLost


@dataclass(slots=True)
class JobWatch:
    """A TrainJob that is followed, while the block runs."""

    cluster: Cluster
    name: str
    silence: float
    """Seconds without an answer after which it is `WatchLost`."""
    poll: float = 2.0
    """Seconds until a pod that says nothing is looked at again."""
    events: "queue.SimpleQueue[JobEvent]" = field(default_factory=queue.SimpleQueue)
    is_read: threading.Event = field(default_factory=threading.Event)
    """Set while there is nothing more in the first node's log, whose container has ended."""
    _ended: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "JobWatch":
        for follow in (self._follow_job, self._follow_log):
            threading.Thread(target=self._kept_up, args=(follow,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _kept_up(self, follow: Callable[[Callable[[], None]], None]) -> None:
        """Follow again after what interrupts it; with longer and longer pauses where nothing comes of it."""
        answered, pause = time.monotonic(), _FIRST

        def answer() -> None:
            nonlocal answered, pause
            answered, pause = time.monotonic(), _FIRST

        while not self._ended.is_set():
            try:
                follow(answer)
            except ClusterUnavailableError as error:
                if time.monotonic() - answered > self.silence:
                    self.events.put(WatchLost(error))
                    return
                self._ended.wait(pause * random.uniform(0.5, 1) if error.pause is None else error.pause)  # noqa: S311
                pause = min(2 * pause, _LONGEST)
            except ClusterError as error:
                self.events.put(WatchLost(error))
                return

    def _follow_job(self, answer: Callable[[], None]) -> None:
        """The job as it is, and then each change of it, until the watch breaks off."""
        listed = self.cluster.ask(self.cluster.custom.list_namespaced_custom_object, *self._place, **self._only)
        answer()
        self.events.put(JobUpdate(next(iter(listed["items"]), None)))
        version = listed["metadata"]["resourceVersion"]
        while version and not self._ended.is_set():
            version = self._watch(version, answer)
            self._ended.wait(_FIRST)

    def _watch(self, version: str, answer: Callable[[], None]) -> str | None:
        """Take what comes after a version; the version that it came to, or None where that is forgotten."""
        with self.cluster.explained("a watch"):
            for kind, found in self._changes(version):
                answer()
                if kind == "ERROR":
                    if found.get("code") == 410:
                        return None
                    raise ClusterUnavailableError(
                        "cluster.watch-failed", f"Kubernetes ended a watch: {found.get('message')}; try again"
                    )
                version = found["metadata"]["resourceVersion"]
                if kind != "BOOKMARK":
                    self.events.put(JobUpdate(None if kind == "DELETED" else found))
                if self._ended.is_set():
                    break
        return version

    def _changes(self, version: str) -> Iterator[tuple[str, Manifest]]:
        from kubernetes import watch
        from kubernetes.client import ApiException

        try:
            answer = self.cluster.custom.list_namespaced_custom_object(
                *self._place,
                **self._only,
                watch=True,
                resource_version=version,
                allow_watch_bookmarks=True,
                timeout_seconds=_WATCHED,
                _preload_content=False,
                _request_timeout=(_CONNECT, _QUIET),
            )
        except ApiException as error:
            if error.status != 410:
                raise
            yield "ERROR", {"code": 410}
            return
        with closing(answer):
            for line in watch.watch.iter_resp_lines(answer):
                event = json.loads(line)
                yield event["type"], event["object"]

    @property
    def _place(self) -> tuple[str, str, str, str]:
        return GROUP, VERSION, self.cluster.namespace, PLURAL

    @property
    def _only(self) -> dict[str, Any]:
        return {"field_selector": f"metadata.name={self.name}"}

    def _follow_log(self, answer: Callable[[], None]) -> None:
        """The log of the first node's pod, and of that which takes its place."""
        place = _Place("")
        while not self._ended.is_set():
            pod = self._first_node()
            answer()
            if pod is None or pod.status.phase == "Pending":
                self._ended.wait(self.poll)
                continue
            if pod.metadata.uid != place.pod:
                place = _Place(pod.metadata.uid)
                self.is_read.clear()
            is_whole = True
            try:
                for text in self._lines(pod.metadata.name, place):
                    answer()
                    self.events.put(LogLine(text))
            except ClusterError as error:  # its container has not begun, or the pod has gone meanwhile
                if error.status in (401, 403):
                    raise
            except ClusterUnavailableError:  # it broke off; whether the cluster is there, the next look at the pod says
                is_whole = False
            if is_whole and pod.status.phase != "Running":
                self.is_read.set()
            self._ended.wait(self.poll)

    def _first_node(self) -> Any:
        wanted = f"{JOB_LABEL}={self.name},{ROLE_LABEL}=trainer,{NODE_LABEL}=0"
        pods = self.cluster.ask(
            self.cluster.core.list_namespaced_pod, self.cluster.namespace, label_selector=wanted
        ).items
        return max(pods, key=lambda pod: pod.metadata.creation_timestamp, default=None)

    def _lines(self, pod: str, place: "_Place") -> Iterator[str]:
        """What is new in a log, as it comes."""
        since = {} if not place.since else {"since_seconds": place.since}
        with self.cluster.explained(f"a log of {pod}"):
            answer = self.cluster.core.read_namespaced_pod_log(
                pod,
                self.cluster.namespace,
                container="node",
                follow=True,
                timestamps=True,
                _preload_content=False,
                _request_timeout=(_CONNECT, _QUIET),
                **since,
            )
            place.begin()
            with closing(answer):
                rest = b""
                for block in answer.stream():
                    *whole, rest = (rest + block).split(b"\n")
                    for line in whole:
                        if (text := place.take(line.decode(errors="replace"))) is not None:
                            yield text


@dataclass(slots=True)
class _Place:
    """How far the log of a pod was read: to which line of those with the last time."""

    pod: str
    _stamp: str = ""
    _count: int = 0
    """Lines with that time."""
    _passed: int = 0
    """Of them, those that came again."""

    @property
    def since(self) -> int | None:
        """The seconds of the past to ask for, in which the last line is."""
        if not self._stamp:
            return None
        from datetime import UTC, datetime

        last = datetime.fromisoformat(self._stamp[:19]).replace(tzinfo=UTC)
        return max(1, round((datetime.now(UTC) - last).total_seconds()) + _SLACK)

    def begin(self) -> None:
        """Read it from the beginning of what was asked for."""
        self._passed = 0

    def take(self, line: str) -> str | None:
        """The text of a line; None where it came before."""
        found = _STAMPED.fullmatch(line)
        if found is None:
            return line
        stamp = f"{found[1]}.{(found[2] or '').ljust(9, '0')}"
        if stamp < self._stamp:
            return None
        if stamp > self._stamp:
            self._stamp, self._count, self._passed = stamp, 1, 1
            return found[3]
        self._passed += 1
        if self._passed <= self._count:
            return None
        self._count = self._passed
        return found[3]
