"""Run a training on several nodes: create its objects, follow it to its end, and delete them.

The objects are deleted when the training ends, successfully or not; when it makes no progress; and when this process
gets SIGTERM, because it is unknown if the step will be repeated. The run then continues from its last checkpoint. If
the cluster does not answer, the training is left alone: the step fails, and its next attempt finds the training again.
The same holds if this process is killed. Finally, Kubernetes deletes all objects together with the step's pod, which
owns them.
"""

import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from queue import Empty
from typing import Any

from gumshoe.cluster.job_watch import JobUpdate, JobWatch, LogLine, WatchLost
from gumshoe.cluster.kubernetes_api import Cluster, ClusterError, ClusterUnavailableError, shorten
from gumshoe.cluster.object_client import ObjectClient, Timeouts, find_own_pod
from gumshoe.cluster.pod_problems import ProblemLog
from gumshoe.cluster.trainjob import Manifest, TrainingJob
from gumshoe.cluster.trainjob_problems import TrainJobProblems
from gumshoe.errors import GumshoeError, UnavailableError
from gumshoe.signals import handle_signals

_LINES = 20  # log lines in the error message of a failed training
_POLL = 2.0  # seconds between two checks of a log without output
_TICK = 1.0  # seconds without events before timeouts are checked
_REPORTED_PREFIXES = ("Step ", "Evaluation after ")  # prefixes of the log lines that are reported
_ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"  # JobSet's label: number of restarts of all nodes


def run_trainjob(
    training: TrainingJob,
    cluster: Cluster,
    report: Callable[[str], object],
    timeouts: Timeouts | None = None,
    owner: Manifest | None = None,
) -> None:
    """Run a training to its end. Its progress, and what it waits for, is passed to `report`.

    `owner` is the pod that all created objects belong to; by default the pod of this step.

    Raises:
        GumshoeError: if the training failed; the message ends with its last log lines.
        UnavailableError: if it makes no progress or was interrupted; another run continues from the last checkpoint.
        ClusterError: if the cluster rejects a request.
        ClusterUnavailableError: if the cluster does not answer; the training is left alone.
    """
    termination = _TerminationRequest()
    objects = ObjectClient(cluster, timeouts or Timeouts(), owner or find_own_pod(), termination.check)
    with handle_signals(termination.record, signal.SIGTERM):
        try:
            _TrainJobRun(training, objects, report).run()
        except ClusterUnavailableError:
            raise
        except BaseException:
            with suppress(GumshoeError):
                _delete_objects(training, objects, report)
            raise
        _delete_objects(training, objects, report)


@dataclass(slots=True)
class _TerminationRequest:
    """Remember that SIGTERM was received, without interrupting anything: that might leave a lock held."""

    is_requested: bool = False

    def record(self, *_: object) -> None:
        """Remember the signal."""
        self.is_requested = True

    def check(self) -> None:
        """Raise an error if SIGTERM was received.

        Raises:
            UnavailableError: if it was.
        """
        if self.is_requested:
            raise UnavailableError(
                "trainjob.interrupted",
                "the step received SIGTERM and stopped the training; run it again to continue from the last checkpoint",
            )


def _delete_objects(training: TrainingJob, objects: ObjectClient, report: Callable[[str], object]) -> None:
    """Delete all objects of a training, even after SIGTERM. Kubernetes deletes the rest with the step's pod."""
    objects = replace(objects, check=lambda: None)
    for each in reversed(training.manifests):
        try:
            objects.remove(each["kind"], each["metadata"]["name"])
        except GumshoeError as error:
            what = f"{each['kind']} {each['metadata']['name']}"
            report(f"{what} could not be deleted ({error.message_with_code}); Kubernetes deletes it with this pod")


@dataclass(slots=True)
class _TrainJobRun:
    """Run one training, and track its state."""

    training: TrainingJob
    objects: ObjectClient
    report: Callable[[str], object]
    _uid: str = ""
    _is_suspended: bool | None = None
    _has_run: bool = False
    """True if its first node has logged anything since the job was last suspended."""
    _deadline: float = float("inf")
    """End of the time limit. It restarts with each admission, as in Kubeflow Trainer."""
    _last_activity: float = field(default_factory=time.monotonic)
    """Time of the last progress."""
    _status: Any = None
    _percent: int | None = None
    _last_lines: "deque[str]" = field(default_factory=lambda: deque(maxlen=_LINES))
    _reported: dict[str, str] = field(default_factory=dict)
    """The last reason for waiting, by what waits."""
    _log: ProblemLog = field(default_factory=ProblemLog)
    _problems: TrainJobProblems = field(init=False)
    """Set when the TrainJob exists."""

    @property
    def _cluster(self) -> Cluster:
        return self.objects.cluster

    @property
    def _timeouts(self) -> Timeouts:
        return self.objects.timeouts

    def run(self) -> None:
        """Create the missing objects and follow the training to its end."""
        for wanted in self.training.manifests:
            if wanted["kind"] in ("Secret", "Service"):
                self.objects.ensure(wanted)
        job = next(each for each in self.training.manifests if each["kind"] == "TrainJob")
        meta = self.objects.ensure(job, is_over=_has_failed)["metadata"]
        self._uid, created = meta["uid"], datetime.fromisoformat(meta["creationTimestamp"])
        self._problems = TrainJobProblems(self._cluster, self.training, self._uid, created)
        self.report(
            f"Training on {self.training.nodes} nodes of {self.training.gpus} GPUs: TrainJob {self.training.name}"
        )
        last_check = float("-inf")
        poll = min(_POLL, self._timeouts.poll_interval)
        with JobWatch(self._cluster, self.training.name, self._timeouts.unreachable, poll) as watch:
            while True:
                self.objects.check()
                with suppress(Empty):
                    if self._handle_event(watch):
                        self._drain_log(watch)
                        return
                now = time.monotonic()
                self._check_progress(now)
                if now - last_check >= self._timeouts.poll_interval:
                    last_check = now
                    self._check_pods()

    def _handle_event(self, watch: JobWatch) -> bool:
        """Handle the next event. Return True if the training has succeeded.

        Raises:
            Empty: if there is no event.
        """
        event = watch.events.get(timeout=min(_TICK, self._timeouts.poll_interval))
        if isinstance(event, WatchLost):
            raise event.error
        if isinstance(event, LogLine):
            self._handle_line(event.text)
            return False
        if event.job is None or event.job["metadata"]["uid"] != self._uid:
            raise UnavailableError(
                "trainjob.deleted",
                f"TrainJob {self.training.name} was deleted by another user or program; run the step again to continue "
                "from the last checkpoint",
            )
        return self._handle_update(event)

    def _handle_update(self, event: JobUpdate) -> bool:
        job = event.job or {}
        status = job.get("status") or {}
        if status != self._status:
            self._status, self._last_activity = status, time.monotonic()
        if _has_condition(job, "Complete"):
            return True
        if _has_failed(job):
            raise self._build_error(job)
        is_suspended = bool(job["spec"].get("suspend")) or _has_condition(job, "Suspended")
        if is_suspended != self._is_suspended:
            self._is_suspended, self._last_activity, self._status = is_suspended, time.monotonic(), status
            self._update_servers(is_suspended=is_suspended)
        self._report_progress(status.get("trainerStatus") or {})
        return False

    def _update_servers(self, *, is_suspended: bool) -> None:
        """Run the rollout servers only while the trainers run, so that others can use their GPUs meanwhile."""
        wanted = next((each for each in self.training.manifests if each["kind"] == "Deployment"), None)
        if is_suspended:
            was_running, self._has_run = self._has_run, False
            self._report_wait("job", self._problems.explain_suspension(was_running=was_running))
            if wanted:
                self.objects.remove("Deployment", wanted["metadata"]["name"])
            return
        self._forget("job")
        self._deadline = time.monotonic() + self.training.seconds
        if wanted:
            self.objects.ensure(wanted)

    def _report_progress(self, trainer: Manifest) -> None:
        percent, left = trainer.get("progressPercentage"), trainer.get("estimatedRemainingSeconds")
        if percent is None or percent == self._percent:
            return
        self._percent = percent
        self.report(f"Progress: {percent} %" + (f", about {left / 60:.0f} minutes left" if left else ""))

    def _handle_line(self, text: str) -> None:
        self._last_activity, self._has_run = time.monotonic(), True
        self._last_lines.append(text)
        if text.startswith(_REPORTED_PREFIXES):
            self.report(text)

    def _drain_log(self, watch: JobWatch) -> None:
        """Handle the rest of the first node's log after the training has ended."""
        until = time.monotonic() + self._timeouts.log_drain
        while time.monotonic() < until:
            is_read = watch.is_log_read.is_set()
            try:
                event = watch.events.get(timeout=0.2)
            except Empty:
                if is_read:
                    return
                continue
            if isinstance(event, WatchLost):
                return
            if isinstance(event, LogLine):
                self._handle_line(event.text)

    def _check_progress(self, now: float) -> None:
        """Check the time limit and the stall timeouts.

        Raises:
            UnavailableError: if one of them has passed.
        """
        if now > self.training.ends:
            raise UnavailableError(
                "trainjob.step-time-limit",
                f"TrainJob {self.training.name} did not finish before the time limit of its pipeline step, and was "
                "deleted; submit the run again with the same ID to continue from the last checkpoint",
            )
        if self._is_suspended in (True, None):
            return
        if now > self._deadline:
            raise UnavailableError(
                "trainjob.time-limit",
                f"TrainJob {self.training.name} did not finish within {self.training.seconds / 3600:g} hours and was "
                "deleted; run the step again to continue from the last checkpoint",
            )
        most = self._timeouts.stall if self._has_run else self._timeouts.start
        if now - self._last_activity > most:
            what = "made no progress" if self._has_run else "did not start"
            reasons = "; ".join(f"{who}: {why}" for who, why in self._reported.items())
            raise UnavailableError(
                "trainjob.stalled" if self._has_run else "trainjob.not-started",
                f"TrainJob {self.training.name} {what} within {most / 60:g} minutes and was deleted"
                + (f" ({reasons})" if reasons else "")
                + "; run the step again to continue from the last checkpoint",
            )

    def _check_pods(self) -> None:
        """Report each problem that keeps pods from running once."""
        if self._is_suspended:
            was_running = self._reported.get("job", "").startswith("it was")
            self._report_wait("job", self._problems.explain_suspension(was_running=was_running))
            return
        try:
            problems = self._problems.find()
        except (ClusterError, ClusterUnavailableError) as error:
            self._report_wait("pods", f"cannot check them ({error.message_with_code})")
            return
        self._forget("pods")
        for role in ("trainer", "rollout"):
            if role in problems:
                self._report_wait(role, problems[role])
            else:
                self._forget(role)

    def _report_wait(self, who: str, why: str) -> None:
        """Report a reason for waiting, unless it was reported before."""
        if self._log.is_news(who, why):
            self.report(f"Waiting for {who}: {why}")
        self._reported[who] = why

    def _forget(self, who: str) -> None:
        """Forget the reason for waiting."""
        self._reported.pop(who, None)
        self._log.forget(who)

    def _build_error(self, job: Manifest) -> GumshoeError:
        """Build the error of a failed training, with the last log lines of the node that failed."""
        reason = next((each.get("message") for each in _conditions(job) if each["type"] == "Failed"), "") or ""
        pod, code = "its first node", None
        lines = list(self._last_lines)
        with suppress(ClusterError, ClusterUnavailableError):
            failed = [(each, found) for each in self._problems.list_pods("trainer") if (found := _exit_code(each))]
            if failed:
                # Of the last attempt. Nodes that lose contact with a failed one exit with 75 themselves.
                first, code = max(failed, key=lambda each: (_attempt(each[0]), each[1] != UnavailableError.exit_status))
                pod = first.metadata.name
                lines = self._read_log_tail(pod) or lines
        status = f" with exit status {code}" if code else ""
        message = f"the training failed{status} ({shorten(reason)}); the last lines of {pod}:\n" + "\n".join(lines)
        if code == UnavailableError.exit_status:
            return UnavailableError("trainjob.temporary-failure", message)
        return GumshoeError("trainjob.failed", message)

    def _read_log_tail(self, pod: str) -> list[str]:
        log = self._cluster.core.read_namespaced_pod_log
        text = self._cluster.call(log, pod, self._cluster.namespace, container="node", tail_lines=_LINES, what="a log")
        return str(text).splitlines()


def _attempt(pod: Any) -> int:
    """Return the number of a pod's attempt. Pods of the previous attempt may still exist."""
    return int((pod.metadata.labels or {}).get(_ATTEMPT, 0))


def _exit_code(pod: Any) -> int | None:
    """Return the exit code of a pod's trainer, if it failed."""
    for each in pod.status.container_statuses or []:
        for state in (each.state, each.last_state):
            if each.name == "node" and state and state.terminated and state.terminated.exit_code:
                return int(state.terminated.exit_code)
    return None


def _conditions(job: Manifest) -> list[Manifest]:
    return list((job.get("status") or {}).get("conditions") or [])


def _has_condition(job: Manifest, condition: str) -> bool:
    return any(each["type"] == condition and each["status"] == "True" for each in _conditions(job))


def _has_failed(job: Manifest) -> bool:
    return _has_condition(job, "Failed")
