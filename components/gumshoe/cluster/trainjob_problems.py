"""Find out what a training on several nodes waits for: its queue, pods that do not start, and pods that are refused."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gumshoe.cluster.kubernetes_api import Cluster, ClusterError, ClusterUnavailableError, shorten
from gumshoe.cluster.pod_problems import PodHints, find_pod_problem, list_invalid_images
from gumshoe.cluster.pod_refusals import find_deployment_refusal, find_refusals
from gumshoe.cluster.trainjob import JOB_LABEL, ROLE_LABEL, Manifest, TrainingJob
from gumshoe.errors import GumshoeError

_KUEUE = ("kueue.x-k8s.io", "v1beta2", "workloads")
_KUEUE_SECONDS = 30.0  # time for Kueue to create a Workload
_JOB_UID_LABEL = "kueue.x-k8s.io/job-uid"  # Kueue's label on the workload of a job
_TRAINER_KINDS = ("TrainJob", "JobSet", "Job")  # of the objects that lead to the trainers' pods
_HINTS = PodHints(
    images="trainer_image",
    scheduling="gpus, node_selector, tolerations, cpus_per_gpu, memory_per_gpu, and job's cpus and memory",
    memory="reduce model.max_context or the batch size, or increase memory_per_gpu or job.memory",
    after_loss="Kubernetes starts a new pod, which continues from the last checkpoint",
)


@dataclass(frozen=True, slots=True)
class TrainJobProblems:
    """Look for the problems of one training. The methods raise like `Cluster.call`, except where they say otherwise."""

    cluster: Cluster
    training: TrainingJob
    uid: str
    """UID of the TrainJob."""
    created: datetime
    """When the TrainJob was created, by the cluster's clock."""
    _since: float = field(default_factory=time.monotonic)

    def explain_suspension(self, *, was_running: bool) -> str:
        """Explain why the job is suspended, with Kueue's reason if Kueue suspended it. Raise nothing."""
        what = "it was suspended" if was_running else "it is suspended"
        then = ", and will then continue from its last checkpoint" if was_running else ""
        if not self.training.job.queue:
            name = self.training.name
            return f"{what} until it is resumed{then} (kubectl get trainjob {name} -o yaml shows who changed it)"
        try:
            reasons = "; ".join(dict.fromkeys(map(shorten, self._list_queue_reasons(was_running=was_running))))
        except (ClusterError, ClusterUnavailableError):  # only the reason is missing then
            reasons = ""
        return f"{what} until queue {self.training.job.queue} admits it{then}" + (f" ({reasons})" if reasons else "")

    def _list_queue_reasons(self, *, was_running: bool) -> Iterator[str]:
        """Yield why Kueue does not admit the job: its quota, and the admission checks that it has not passed."""
        group, version, plural = _KUEUE
        loads = self.cluster.call(
            self.cluster.custom.list_namespaced_custom_object,
            group,
            version,
            self.cluster.namespace,
            plural,
            label_selector=f"{_JOB_UID_LABEL}={self.uid}",
        )["items"]
        if not loads and time.monotonic() - self._since > _KUEUE_SECONDS:
            yield "Kueue has no Workload for it: check that Kueue runs and manages TrainJobs"
        for status in (load.get("status") or {} for load in loads):
            for each in status.get("conditions") or []:
                is_evicted = each["type"] == "Evicted" and each["status"] == "True" and was_running
                if is_evicted or (each["type"] == "QuotaReserved" and each["status"] == "False"):
                    yield each.get("message") or each.get("reason") or each["type"]
            for each in status.get("admissionChecks") or []:
                if each["state"] != "Ready":
                    message = each.get("message") or "no reason given"
                    yield f"admission check {each['name']} is {each['state']}: {message}"

    def find(self) -> dict[str, str]:
        """Return what keeps pods from running or from being created, by role. Only the first pod of each role counts.

        Raises:
            GumshoeError: if a pod can never start.
        """
        found: dict[str, str] = {}
        pods = self.list_pods()
        roles = [(pod.metadata.labels or {}).get(ROLE_LABEL, "pod") for pod in pods]
        for role, pod in zip(roles, pods, strict=True):
            if role not in found and pod.status.phase in ("Pending", "Running"):
                problem = find_pod_problem(pod, self.cluster, _HINTS)
                if problem:
                    found[role] = f"{pod.metadata.name}: {problem}"
                self._check_images(pod, problem)
        if "trainer" not in found and roles.count("trainer") < self.training.nodes:
            found |= self._find_trainer_refusal()
        if "rollout" not in found:
            found |= self._find_server_refusal(roles.count("rollout"))
        return found

    def list_pods(self, role: str | None = None) -> list[Any]:
        """Return the pods of the training, or of one role, sorted by name."""
        wanted = f"{JOB_LABEL}={self.training.name}" + (f",{ROLE_LABEL}={role}" if role else "")
        pods = self.cluster.core.list_namespaced_pod
        found = self.cluster.call(pods, self.cluster.namespace, label_selector=wanted).items
        return sorted((each for each in found if not each.metadata.deletion_timestamp), key=_pod_name)

    def _check_images(self, pod: Any, problem: str) -> None:
        """Check that the names of a pod's images are valid.

        Raises:
            GumshoeError: if one is not: the pod can never start.
        """
        images = ", ".join(list_invalid_images(pod))
        if images:
            raise GumshoeError(
                "trainjob.invalid-image",
                f"pod {pod.metadata.name} in namespace {self.cluster.namespace} can never start: {problem}, got "
                f"{images}; correct it and run the step again",
            )

    def _find_trainer_refusal(self) -> dict[str, str]:
        """Return why the trainers' pods were refused: the newest warning about the TrainJob, its JobSet or a Job."""
        refusals = find_refusals(self.cluster, self.training.name, self.created)
        first = next((each for each in refusals if each.kind in _TRAINER_KINDS), None)
        space = self.cluster.namespace
        return {"trainer": f"{first.kind} {first.name} in namespace {space}: {first.text}"} if first else {}

    def _find_server_refusal(self, running: int) -> dict[str, str]:
        """Return why the rollout servers' pods were refused."""
        wanted: Manifest | None = next((each for each in self.training.manifests if each["kind"] == "Deployment"), None)
        if wanted is None or running >= wanted["spec"]["replicas"]:
            return {}
        name = wanted["metadata"]["name"]
        read = self.cluster.apps.read_namespaced_deployment
        found = self.cluster.find(read, name=name, namespace=self.cluster.namespace)
        refusal = find_deployment_refusal(found) if found else ""
        space = self.cluster.namespace
        return {"rollout": f"Deployment {name} in namespace {space}: {refusal}"} if refusal else {}


def _pod_name(pod: Any) -> str:
    return str(pod.metadata.name)
