"""Watch a TrainJob: the job's status, and the log of its first node.

Two threads write events into one queue. Both continue after any interruption: a watch that ends or whose resource
version has expired (410), rate limiting (429), a cluster that does not answer, a log stream that breaks, a pod that is
replaced. No log line is reported twice.
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
_WATCHED = 60  # seconds until a watch is restarted
_QUIET = 90.0  # seconds without data after which a connection counts as lost
_FIRST, _LONGEST = 0.5, 30.0  # seconds between attempts
_SLACK = 60  # seconds that clocks may differ
_STAMPED = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?Z ?(.*)")


@dataclass(frozen=True, slots=True)
class JobUpdate:
    """The current state of the job; None if it does not exist any more."""

    job: Manifest | None


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of the first node's log."""

    text: str


@dataclass(frozen=True, slots=True)
class WatchLost:
    """Report that the job cannot be watched any longer."""

    error: GumshoeError


JobEvent = JobUpdate | LogLine | WatchLost


@dataclass(slots=True)
class JobWatch:
    """Watch a TrainJob while the block runs."""

    cluster: Cluster
    name: str
    unreachable: float
    """Seconds without an answer before `WatchLost` is reported."""
    poll: float = 2.0
    """Seconds between two checks of a pod without log output."""
    events: "queue.SimpleQueue[JobEvent]" = field(default_factory=queue.SimpleQueue)
    is_log_read: threading.Event = field(default_factory=threading.Event)
    """Set while the first node's log is read to its end and the container has ended."""
    _ended: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "JobWatch":
        for follow in (self._follow_job, self._follow_log):
            threading.Thread(target=self._retry, args=(follow,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _retry(self, follow: Callable[[Callable[[], None]], None]) -> None:
        """Run `follow` again after each interruption, with growing pauses as long as it makes no progress."""
        answered, pause = time.monotonic(), _FIRST

        def answer() -> None:
            nonlocal answered, pause
            answered, pause = time.monotonic(), _FIRST

        while not self._ended.is_set():
            try:
                follow(answer)
            except ClusterUnavailableError as error:
                if time.monotonic() - answered > self.unreachable:
                    self.events.put(WatchLost(error))
                    return
                self._ended.wait(pause * random.uniform(0.5, 1) if error.pause is None else error.pause)  # noqa: S311
                pause = min(2 * pause, _LONGEST)
            except ClusterError as error:
                self.events.put(WatchLost(error))
                return

    def _follow_job(self, answer: Callable[[], None]) -> None:
        """Report the job's state and then each change, until the watch breaks."""
        listed = self.cluster.call(self.cluster.custom.list_namespaced_custom_object, *self._path, **self._selector)
        answer()
        self.events.put(JobUpdate(next(iter(listed["items"]), None)))
        version = listed["metadata"]["resourceVersion"]
        while version and not self._ended.is_set():
            version = self._watch(version, answer)
            self._ended.wait(_FIRST)

    def _watch(self, version: str, answer: Callable[[], None]) -> str | None:
        """Report all changes after a version. Return the last version seen, or None if it has expired."""
        with self.cluster.translate_errors("a watch"):
            for kind, found in self._stream_changes(version):
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

    def _stream_changes(self, version: str) -> Iterator[tuple[str, Manifest]]:
        from kubernetes import watch
        from kubernetes.client import ApiException

        try:
            answer = self.cluster.custom.list_namespaced_custom_object(
                *self._path,
                **self._selector,
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
    def _path(self) -> tuple[str, str, str, str]:
        return GROUP, VERSION, self.cluster.namespace, PLURAL

    @property
    def _selector(self) -> dict[str, Any]:
        return {"field_selector": f"metadata.name={self.name}"}

    def _follow_log(self, answer: Callable[[], None]) -> None:
        """Report the log of the first node's pod, and of pods that replace it."""
        place = _LogPosition("")
        while not self._ended.is_set():
            pod = self._find_first_node()
            answer()
            if pod is None or pod.status.phase == "Pending":
                self._ended.wait(self.poll)
                continue
            if pod.metadata.uid != place.pod:
                place = _LogPosition(pod.metadata.uid)
                self.is_log_read.clear()
            is_complete = True
            try:
                for text in self._stream_lines(pod.metadata.name, place):
                    answer()
                    self.events.put(LogLine(text))
            except ClusterError as error:  # the container has not started, or the pod was deleted meanwhile
                if error.status in (401, 403):
                    raise
            except ClusterUnavailableError:  # the stream broke; the next request shows if the cluster still answers
                is_complete = False
            if is_complete and pod.status.phase != "Running":
                self.is_log_read.set()
            self._ended.wait(self.poll)

    def _find_first_node(self) -> Any:
        wanted = f"{JOB_LABEL}={self.name},{ROLE_LABEL}=trainer,{NODE_LABEL}=0"
        pods = self.cluster.call(
            self.cluster.core.list_namespaced_pod, self.cluster.namespace, label_selector=wanted
        ).items
        return max(pods, key=lambda pod: pod.metadata.creation_timestamp, default=None)

    def _stream_lines(self, pod: str, place: "_LogPosition") -> Iterator[str]:
        """Yield the new lines of a log as they arrive."""
        since = {} if not place.since else {"since_seconds": place.since}
        with self.cluster.translate_errors(f"a log of {pod}"):
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
            place.restart()
            with closing(answer):
                rest = b""
                for block in answer.stream():
                    *whole, rest = (rest + block).split(b"\n")
                    for line in whole:
                        if (text := place.accept(line.decode(errors="replace"))) is not None:
                            yield text


@dataclass(slots=True)
class _LogPosition:
    """Remember how far a pod's log was read: the last timestamp, and the number of lines with it."""

    pod: str
    _stamp: str = ""
    _count: int = 0
    """Number of lines with that timestamp."""
    _passed: int = 0
    """Number of them seen again since the restart."""

    @property
    def since(self) -> int | None:
        """Number of past seconds to request, so that the last line is included."""
        if not self._stamp:
            return None
        from datetime import UTC, datetime

        last = datetime.fromisoformat(self._stamp[:19]).replace(tzinfo=UTC)
        return max(1, round((datetime.now(UTC) - last).total_seconds()) + _SLACK)

    def restart(self) -> None:
        """Begin to read the requested part of the log."""
        self._passed = 0

    def accept(self, line: str) -> str | None:
        """Return the text of a line, or None if it was already read."""
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
