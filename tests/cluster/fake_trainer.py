"""Play Kubeflow Trainer, Kueue and the pods of a training, for a `FakeKubernetes`."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from gumshoe.cluster import job_watch, object_client, trainjob_runner
from gumshoe.cluster.trainjob import NODE_LABEL, QUEUE_LABEL
from tests.cluster.fake_kubernetes import FakeKubernetes, Object

NAMESPACE = "agents"


def condition(kind: str, status: str, message: str = "because", reason: str = "Because") -> Object:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2024-01-01T00:00:00Z",
    }


def check_trainjob(job: Object) -> None:
    """Check that Kubeflow's own model of a TrainJob accepts it, and has a place for each of its fields.

    Its webhook also rejects patches of containers that the runtime does not have, and of the environment of `node`.
    """
    from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob

    model = TrainerV1alpha1TrainJob.from_dict(job)
    assert model is not None
    assert set(_list_fields(model.to_dict())) == set(_list_fields(job))
    for patch in job["spec"]["runtimePatches"]:
        for each in patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]:
            assert each["name"] == "node"
            for container in each["template"]["spec"]["template"]["spec"].get("containers", []):
                assert container["name"] == "node"
                assert not container.get("env"), "set trainer.env"


def _list_fields(data: Any, path: str = "") -> Iterator[str]:
    """Yield the path of each value."""
    inner = dict(enumerate(data)) if isinstance(data, list) else data
    if not isinstance(inner, dict) or not inner:
        yield path
        return
    for name, each in inner.items():
        yield from _list_fields(each, f"{path}.{name}")


@dataclass
class Trainer:
    """Play the controllers of TrainJobs. Set `cluster.settle` to its `settle`."""

    fake: FakeKubernetes
    phase: str = "Running"
    """Phase of new pods."""
    reason: str = "ImagePullBackOff"
    """Why pods of phase Pending do not start."""
    refusals: dict[str, str] = field(default_factory=dict)
    """Why the API server refuses new pods, by role: trainer or rollout."""
    started: Callable[[Object, int, Object], None] = lambda *_: None
    """Called for each new pod with the TrainJob, the number of the node, and the pod."""
    _pods: int = 0
    _known: set[str] = field(default_factory=set)

    def settle(self, made: Object) -> None:
        """Check a TrainJob and its status. Start a new one, or suspend it if it has a queue."""
        if made["kind"] == "Deployment":
            self._report_server_refusal(made)
        if made["kind"] != "TrainJob":
            return
        check_trainjob(made)
        if made["metadata"]["uid"] in self._known:
            return
        self._known.add(made["metadata"]["uid"])
        if QUEUE_LABEL in made["metadata"]["labels"]:
            made["spec"]["suspend"] = True
            made["status"] = {"conditions": [condition("Suspended", "True")]}
        else:
            self._start(made)

    def admit(self, name: str) -> None:
        """Admit a TrainJob, like Kueue."""
        job = self.fake.objects["trainjobs", NAMESPACE, name]
        spec = {**job["spec"], "suspend": False}
        self.fake.change(
            "trainjobs", NAMESPACE, name, spec=spec, status={"conditions": [condition("Suspended", "False")]}
        )
        self._start(job)

    def evict(self, name: str) -> None:
        """Suspend a TrainJob and delete its pods, like Kueue."""
        job = self.fake.objects["trainjobs", NAMESPACE, name]
        spec = {**job["spec"], "suspend": True}
        for pod in self.pods(name):
            self.fake.delete("pods", NAMESPACE, pod)
        self.fake.change(
            "trainjobs", NAMESPACE, name, spec=spec, status={"conditions": [condition("Suspended", "True")]}
        )

    def end(self, name: str, *codes: int) -> None:
        """End the pods of a TrainJob, with these exit codes in order and 0 for the rest."""
        for number, pod in enumerate(self.pods(name)):
            own = codes[number] if number < len(codes) else 0
            state = {"terminated": {"exitCode": own, "reason": "Error" if own else "Completed"}}
            phase = "Failed" if own else "Succeeded"
            self.fake.change("pods", NAMESPACE, pod, status={"phase": phase, "containerStatuses": [_status(state)]})
        kind = "Failed" if any(codes) else "Complete"
        message = "jobset failed due to one or more job failures" if any(codes) else "jobset completed successfully"
        self.fake.change("trainjobs", NAMESPACE, name, status={"conditions": [condition(kind, "True", message)]})

    def accept(self, name: str) -> None:
        """Accept the pods that were refused."""
        self.refusals.clear()
        self._start(self.fake.objects["trainjobs", NAMESPACE, name])
        for each in self.fake.of("Deployment"):
            self._report_server_refusal(each)

    def report_progress(self, name: str, percent: int, seconds: int) -> None:
        """Report the progress of a TrainJob, like its trainer."""
        status = {"progressPercentage": percent, "estimatedRemainingSeconds": seconds, "lastUpdatedTime": "2024-01-01"}
        self.fake.change("trainjobs", NAMESPACE, name, status={"trainerStatus": status})

    def pods(self, name: str) -> list[str]:
        """Return the pods of a TrainJob, sorted by node."""
        return sorted(each for plural, _, each in self.fake.objects if plural == "pods" and f"{name}-node-" in each)

    def _report_server_refusal(self, made: Object) -> None:
        """Report refused pods as the controllers of Deployments do: in the status."""
        text = f'pods "{made["metadata"]["name"]}-5d8f-x" is forbidden: {self.refusals.get("rollout")}'
        failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": text}
        made["status"] = {"conditions": [failure] if "rollout" in self.refusals else []}

    def _report_trainer_refusal(self, job: Object) -> None:
        """Report refused pods as the controller of Jobs does: in an event, whose numbers grow."""
        name = f"{job['metadata']['name']}-node-0"
        known = self.fake.objects.get(("events", NAMESPACE, name), {"count": 0})
        text = f'Error creating: pods "{name}-0-x{known["count"]}" is forbidden: {self.refusals["trainer"]}'
        about = {"kind": "Job", "apiVersion": "batch/v1", "name": name, "namespace": NAMESPACE}
        event = {"type": "Warning", "reason": "FailedCreate", "message": text, "involvedObject": about}
        meta = {"name": name, "namespace": NAMESPACE}
        seen = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.fake.put({"kind": "Event", "metadata": meta, **event, "count": known["count"] + 1, "lastTimestamp": seen})

    def _start(self, job: Object) -> None:
        if "trainer" in self.refusals:
            self._report_trainer_refusal(job)
            return
        (patch,) = job["spec"]["runtimePatches"]
        (node,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
        template = node["template"]["spec"]["template"]
        for number in range(job["spec"]["trainer"]["numNodes"]):
            self._pods += 1
            name = f"{job['metadata']['name']}-node-0-{number}-{self._pods:05}"
            labels = {**template["metadata"]["labels"], NODE_LABEL: str(number)}
            owner = {"apiVersion": "v1", "kind": "TrainJob", "name": job["metadata"]["name"]}
            about = {"name": name, "namespace": NAMESPACE, "labels": labels}
            waits = {"waiting": {"reason": self.reason, "message": "no such image"}}
            state = {"running": {}} if self.phase == "Running" else waits
            pod = {
                "kind": "Pod",
                "apiVersion": "v1",
                "metadata": {**about, "ownerReferences": [{**owner, "uid": job["metadata"]["uid"]}]},
                "spec": {"containers": [{"name": "node", "image": "x"}]},
                "status": {"phase": self.phase, "containerStatuses": [_status(state)]},
            }
            self.started(job, number, self.fake.put(pod))


def _status(state: Object) -> Object:
    return {"name": "node", "image": "x", "imageID": "x", "ready": True, "restartCount": 0, "state": state}


def shorten_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pauses between polls and between retries."""
    monkeypatch.setattr(job_watch, "_FIRST", 0.01)
    monkeypatch.setattr(trainjob_runner, "_POLL", 0.01)
    monkeypatch.setattr(trainjob_runner, "_TICK", 0.01)
    monkeypatch.setattr(object_client, "_FIRST", 0.01)
    monkeypatch.setattr(object_client, "_LOOK", 0.01)


@contextmanager
def meanwhile(*steps: Callable[[], Any]) -> Iterator[None]:
    """Run these steps in order while the block runs. Each is repeated until it succeeds.

    A step fails if it returns False, or if an object that it needs does not exist yet.
    """
    failed: list[BaseException] = []
    ended = threading.Event()

    def work() -> None:
        for step in steps:
            while not ended.is_set():
                try:
                    if step() is not False:
                        break
                except (KeyError, IndexError):  # it does not exist yet
                    pass
                except AssertionError as error:
                    failed.append(error)
                    return
                ended.wait(0.01)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert not failed, failed
