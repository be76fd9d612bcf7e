"""A training on several nodes: made, followed to its end, and removed.

What it made is removed when the training has ended, well or not; when it makes no progress; and when this process is
asked to end, since nobody can know whether a step that is ended will be tried again: the run goes on from its last
checkpoint then. Only where the cluster does not answer is the training left alone: the step fails, and its next try
takes it up where it is. A process that is killed leaves it, too. In the end all of it goes with the step's pod, which
owns it.
"""

import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from queue import Empty
from typing import Any

from gumshoe.cluster.job_watch import JobUpdate, JobWatch, LogLine, WatchLost
from gumshoe.cluster.kubernetes_api import Cluster, ClusterError, ClusterUnavailableError, short
from gumshoe.cluster.object_client import ObjectClient, Timeouts, own_pod
from gumshoe.cluster.pod_problems import PodRemedies, pod_problem
from gumshoe.cluster.trainjob import JOB_LABEL, ROLE_LABEL, Manifest, TrainingJob
from gumshoe.errors import GumshoeError, UnavailableError

_LINES = 20  # of a log, that are told of a training that failed
_POLL = 2.0  # seconds until a log without lines is looked for again
_TICK = 1.0  # seconds that nothing may happen until the clock is looked at
_MARKS = ("Step ", "Evaluation after ")  # how the lines begin that are handed on
_KUEUE = ("kueue.x-k8s.io", "v1beta2", "workloads")
_OF_JOB = "kueue.x-k8s.io/job-uid"  # Kueue's own label, of what it made of a job
_ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"  # JobSet's own label: how often all nodes were started anew
_KNOBS = PodRemedies(
    images="trainer_image",
    place="gpus, node_selector, tolerations, and job's cpus and memory",
    memory="make model.max_context or the batch smaller, or give it more (job's memory)",
    ended="another comes, and goes on from the last checkpoint",
)


def run_trainjob(
    asked: TrainingJob,
    cluster: Cluster,
    say: Callable[[str], object],
    patience: Timeouts | None = None,
    owner: Manifest | None = None,
) -> None:
    """Have a training carried out, to its end. What it says of its progress, and what it waits for, is handed on.

    `owner` is what everything that is made goes with, the pod of this step unless given.

    Raises:
        GumshoeError: the training failed; the message has its last words.
        UnavailableError: it makes no progress, or is to be tried again for other reasons; it goes on from its last
            checkpoint then.
        ClusterError: the cluster refuses.
        ClusterUnavailableError: the cluster does not answer; the training is left alone.
    """
    ending = _StopSignals()
    objects = ObjectClient(cluster, patience or Timeouts(), owner or own_pod(), ending.check)
    with ending.heard():
        try:
            _TrainJobRun(asked, objects, say).carry_out()
        except ClusterUnavailableError:
            raise
        except BaseException:
            with suppress(GumshoeError):
                _remove(asked, objects, say)
            raise
        _remove(asked, objects, say)


@dataclass(slots=True)
class _StopSignals:
    """Whether this process was asked to end. Its signal breaks off nothing, which might leave a lock that is held."""

    is_asked: bool = False

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Meanwhile it does not end this process."""

        def ask(*_: object) -> None:
            self.is_asked = True

        before = signal.signal(signal.SIGTERM, ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def check(self) -> None:
        """
        Raises:
            UnavailableError: it was.
        """
        if self.is_asked:
            raise UnavailableError(
                "trainjob.interrupted",
                "the step received SIGTERM and stopped the training; run it again to continue from the last checkpoint",
            )


def _remove(asked: TrainingJob, objects: ObjectClient, say: Callable[[str], object]) -> None:
    """Leave nothing of it, whoever asks this process to end. What cannot be removed goes with the step's pod."""
    objects = replace(objects, check=lambda: None)
    for each in reversed(asked.manifests):
        try:
            objects.remove(each["kind"], each["metadata"]["name"])
        except GumshoeError as error:
            what = f"{each['kind']} {each['metadata']['name']}"
            say(f"{what} could not be removed ({error.message_with_code}); it goes with this pod")


@dataclass(slots=True)
class _TrainJobRun:
    """One training, and what is known of it so far."""

    asked: TrainingJob
    objects: ObjectClient
    say: Callable[[str], object]
    _uid: str = ""
    _is_suspended: bool | None = None
    _has_run: bool = False
    """Whether its first node has said anything since it was last suspended."""
    _until: float = float("inf")
    """When it is to be at its end; counted anew each time that it is admitted, as Trainer does."""
    _moved: float = field(default_factory=time.monotonic)
    """When something last went on."""
    _status: Any = None
    _percent: int | None = None
    _last: "deque[str]" = field(default_factory=lambda: deque(maxlen=_LINES))
    _told: dict[str, str] = field(default_factory=dict)
    """What was last said to be waited for, by what waits."""

    @property
    def _cluster(self) -> Cluster:
        return self.objects.cluster

    @property
    def _patience(self) -> Timeouts:
        return self.objects.patience

    def carry_out(self) -> None:
        """Make what is missing, and follow it to its end."""
        for wanted in self.asked.manifests:
            if wanted["kind"] == "Service":
                self.objects.make(wanted)
        job = next(each for each in self.asked.manifests if each["kind"] == "TrainJob")
        self._uid = self.objects.make(job, is_over=_has_failed)["metadata"]["uid"]
        self.say(f"Training on {self.asked.nodes} nodes of {self.asked.gpus} GPUs: TrainJob {self.asked.name}")
        looked = float("-inf")
        poll = min(_POLL, self._patience.look)
        with JobWatch(self._cluster, self.asked.name, self._patience.silence, poll) as following:
            while True:
                self.objects.check()
                with suppress(Empty):
                    if self._take(following):
                        self._hear_out(following)
                        return
                now = time.monotonic()
                self._check_progress(now)
                if now - looked >= self._patience.look:
                    looked = now
                    self._look()

    def _take(self, following: JobWatch) -> bool:
        """Take what happens next; whether it is that the training has come to its end.

        Raises:
            Empty: nothing happens.
        """
        event = following.events.get(timeout=min(_TICK, self._patience.look))
        if isinstance(event, WatchLost):
            raise event.error
        if isinstance(event, LogLine):
            self._hear(event.text)
            return False
        if event.job is None or event.job["metadata"]["uid"] != self._uid:
            raise UnavailableError(
                "trainjob.deleted",
                f"TrainJob {self.asked.name} was deleted by another user or program; run the step again to continue "
                "from the last checkpoint",
            )
        return self._see(event)

    def _see(self, event: JobUpdate) -> bool:
        job = event.job or {}
        status = job.get("status") or {}
        if status != self._status:
            self._status, self._moved = status, time.monotonic()
        if _is(job, "Complete"):
            return True
        if _has_failed(job):
            raise self._failure(job)
        is_suspended = bool(job["spec"].get("suspend")) or _is(job, "Suspended")
        if is_suspended != self._is_suspended:
            self._is_suspended, self._moved, self._status = is_suspended, time.monotonic(), status
            self._share_with_servers(is_suspended=is_suspended)
        self._tell_progress(status.get("trainerStatus") or {})
        return False

    def _share_with_servers(self, *, is_suspended: bool) -> None:
        """Have the servers there while the trainers are, and leave their GPUs to others while these wait."""
        wanted = next((each for each in self.asked.manifests if each["kind"] == "Deployment"), None)
        if is_suspended:
            was_running, self._has_run = self._has_run, False
            self._tell("job", self._why_suspended(was_running=was_running))
            if wanted:
                self.objects.remove("Deployment", wanted["metadata"]["name"])
            return
        self._told.pop("job", None)
        self._until = time.monotonic() + self.asked.seconds
        if wanted:
            self.objects.make(wanted)

    def _why_suspended(self, *, was_running: bool) -> str:
        """What Kueue says, where it is Kueue's doing."""
        what = "it was suspended, and goes on from its last checkpoint" if was_running else "it is suspended"
        if not self.asked.job.queue:
            return f"{what} (kubectl get trainjob {self.asked.name} -o yaml says by whom)"
        group, version, plural = _KUEUE
        try:
            found = self._cluster.ask(
                self._cluster.custom.list_namespaced_custom_object,
                group,
                version,
                self._cluster.namespace,
                plural,
                label_selector=f"{_OF_JOB}={self._uid}",
            )["items"]
        except (ClusterError, ClusterUnavailableError):  # it is only for the reason
            found = []
        conditions = [each for load in found for each in (load.get("status") or {}).get("conditions") or []]
        why = [
            each
            for each in conditions
            if (each["type"] == "Evicted" and each["status"] == "True" and was_running)
            or (each["type"] == "QuotaReserved" and each["status"] == "False")
        ]
        told = "; ".join(dict.fromkeys(short(each.get("message") or each.get("reason")) for each in why))
        return f"{what} until queue {self.asked.job.queue} admits it" + (f" ({told})" if told else "")

    def _tell_progress(self, trainer: Manifest) -> None:
        percent, left = trainer.get("progressPercentage"), trainer.get("estimatedRemainingSeconds")
        if percent is None or percent == self._percent:
            return
        self._percent = percent
        self.say(f"Progress: {percent} %" + (f", about {left / 60:.0f} minutes to go" if left else ""))

    def _hear(self, text: str) -> None:
        self._moved, self._has_run = time.monotonic(), True
        self._last.append(text)
        if text.startswith(_MARKS):
            self.say(text)

    def _hear_out(self, following: JobWatch) -> None:
        """What the first node has still said, once the training has come to its end."""
        until = time.monotonic() + self._patience.last_words
        while time.monotonic() < until:
            is_read = following.is_read.is_set()
            try:
                event = following.events.get(timeout=0.2)
            except Empty:
                if is_read:
                    return
                continue
            if isinstance(event, WatchLost):
                return
            if isinstance(event, LogLine):
                self._hear(event.text)

    def _check_progress(self, now: float) -> None:
        """
        Raises:
            UnavailableError: there is none, or it takes longer than it may.
        """
        if self._is_suspended in (True, None):
            return
        if now > self._until:
            raise UnavailableError(
                "trainjob.time-limit",
                f"TrainJob {self.asked.name} did not finish within {self.asked.seconds / 3600:g} hours and was "
                "deleted; run the step again to continue from the last checkpoint",
            )
        most = self._patience.stalled if self._has_run else self._patience.starting
        if now - self._moved > most:
            what = "made no progress" if self._has_run else "did not start"
            waited = "; ".join(f"{who}: {why}" for who, why in self._told.items())
            raise UnavailableError(
                "trainjob.stalled" if self._has_run else "trainjob.not-started",
                f"TrainJob {self.asked.name} {what} within {most / 60:g} minutes and was deleted"
                + (f" ({waited})" if waited else "")
                + "; run the step again to continue from the last checkpoint",
            )

    def _look(self) -> None:
        """Say once what keeps pods from running."""
        if self._is_suspended:
            self._tell("job", self._why_suspended(was_running=self._told.get("job", "").startswith("it was")))
            return
        try:
            troubles = self._troubles()
        except (ClusterError, ClusterUnavailableError) as error:
            self._tell("pods", f"they cannot be looked at ({error.message_with_code})")
            return
        self._told.pop("pods", None)
        for role in ("trainer", "rollout"):
            if role in troubles:
                self._tell(role, troubles[role])
            else:
                self._told.pop(role, None)

    def _troubles(self) -> dict[str, str]:
        """What keeps a pod from running, by its role; of several pods, the first's."""
        found: dict[str, str] = {}
        for pod in self._pods():
            role = (pod.metadata.labels or {}).get(ROLE_LABEL, "pod")
            if role not in found and pod.status.phase in ("Pending", "Running"):
                trouble = pod_problem(pod, self._cluster, _KNOBS)
                if trouble:
                    found[role] = f"{pod.metadata.name}: {trouble}"
        return found

    def _pods(self, role: str | None = None) -> list[Any]:
        wanted = f"{JOB_LABEL}={self.asked.name}" + (f",{ROLE_LABEL}={role}" if role else "")
        pods = self._cluster.core.list_namespaced_pod
        found = self._cluster.ask(pods, self._cluster.namespace, label_selector=wanted).items
        return sorted((each for each in found if not each.metadata.deletion_timestamp), key=_name)

    def _tell(self, who: str, why: str) -> None:
        """Say what is waited for, unless that was said."""
        kind = why.partition("(")[0]  # without what Kubernetes counts anew each time
        if self._told.get(who, "").partition("(")[0] != kind:
            self.say(f"Waiting for {who}: {why}")
        self._told[who] = why

    def _failure(self, job: Manifest) -> GumshoeError:
        """What became of it, in the words of the node that failed."""
        said = next((each.get("message") for each in _conditions(job) if each["type"] == "Failed"), "") or ""
        pod, code = "its first node", None
        words = list(self._last)
        with suppress(ClusterError, ClusterUnavailableError):
            failed = [(each, found) for each in self._pods("trainer") if (found := _exit_code(each))]
            if failed:
                # of the last attempt; 75 is what the others end with too, which miss one that failed
                first, code = max(failed, key=lambda each: (_attempt(each[0]), each[1] != UnavailableError.exit_status))
                pod = first.metadata.name
                words = self._words(pod) or words
        status = f" with exit status {code}" if code else ""
        told = f"the training failed{status} ({short(said)}); the last lines of {pod}:\n" + "\n".join(words)
        if code == UnavailableError.exit_status:
            return UnavailableError("trainjob.temporary-failure", told)
        return GumshoeError("trainjob.failed", told)

    def _words(self, pod: str) -> list[str]:
        log = self._cluster.core.read_namespaced_pod_log
        text = self._cluster.ask(log, pod, self._cluster.namespace, container="node", tail_lines=_LINES, what="a log")
        return str(text).splitlines()


def _name(pod: Any) -> str:
    return str(pod.metadata.name)


def _attempt(pod: Any) -> int:
    """Which one it is of; pods of the one before may be on their way out."""
    return int((pod.metadata.labels or {}).get(_ATTEMPT, 0))


def _exit_code(pod: Any) -> int | None:
    """That of its trainer, where it failed."""
    for each in pod.status.container_statuses or []:
        for state in (each.state, each.last_state):
            if each.name == "node" and state and state.terminated and state.terminated.exit_code:
                return int(state.terminated.exit_code)
    return None


def _conditions(job: Manifest) -> list[Manifest]:
    return list((job.get("status") or {}).get("conditions") or [])


def _is(job: Manifest, condition: str) -> bool:
    return any(each["type"] == condition and each["status"] == "True" for each in _conditions(job))


def _has_failed(job: Manifest) -> bool:
    return _is(job, "Failed")
