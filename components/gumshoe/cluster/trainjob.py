"""Build the Kubernetes manifests of a training on several nodes: a Kubeflow `TrainJob` and its vLLM rollout servers.

The servers are a Deployment with a headless Service, whose DNS name resolves to the addresses of the ready pods. All
object names are derived from the run, so that a repeated step finds the objects of its previous attempt. A digest in an
annotation shows if an object was created from the same manifest.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field, field_validator

from gumshoe.artifacts.adapter_layout import LOADER_PORT
from gumshoe.errors import UsageError
from gumshoe.model_validation import ParameterModel, to_int_if_whole, validate_model

Manifest = dict[str, Any]
GROUP, VERSION, PLURAL = "trainer.kubeflow.org", "v1alpha1", "trainjobs"
SECRET_KEYS = {
    "gumshoe-s3": (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_ENDPOINT_URL",
        "AWS_REGION",
    ),
    "gumshoe-models": ("HF_TOKEN", "OPENAI_API_KEY", "OPENAI_BASE_URL", "WANDB_API_KEY", "MLFLOW_TRACKING_URI"),
}
"""Secrets of the pipeline's steps and their pods. All are optional. The keys become environment variables."""
DIGEST = "gumshoe.dev/digest"
"""Annotation with the digest of the manifest that an object was created from."""
JOB_LABEL, ROLE_LABEL = "gumshoe.dev/job", "gumshoe.dev/role"
"""Labels of all pods of a training: the name of its TrainJob, and `trainer` or `rollout`."""
NODE_LABEL = "batch.kubernetes.io/job-completion-index"
"""Kubernetes' label with the index of a TrainJob's node, from 0."""
QUEUE_LABEL, PRIORITY_LABEL = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
SERVER_PORT = 8000
ADAPTERS = "/adapters"
"""Directory where the adapter loader puts adapters for the server in the same pod."""
_NODE = "node"  # Kubeflow Trainer's name for the trainers' replicated job and its container
_MANAGER = "gumshoe.dev/pipeline"  # owner of the runtime patch
CPUS, GIBIBYTES = 4, 32
"""Default CPUs and memory per GPU; a pod without GPUs gets them once."""
_STARTUP = 30 * 60  # seconds for a server to load its model
_CACHE = "/cache"  # same path as in the trainers
_GRACE = 120  # seconds for trainers to save and upload a checkpoint
_LEAVES = 5  # seconds that a server keeps answering after its address was removed from the Service
_SLUG = 24  # characters of the run ID in names; Kubernetes adds up to 25 to a pod's name
_USER = 10001  # user ID in the images
_RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
_WRITABLE = {"home": "/home/gumshoe", "tmp": "/tmp"}  # noqa: S108 - in the pod
_MOUNTS = [{"name": name, "mountPath": place} for name, place in _WRITABLE.items()]
_NAME = re.compile(r"([a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?)?")
_MEMORY = re.compile(r"(\d+(\.\d+)?[KMGT]i?)?")


class TrainJobSpec(ParameterModel):
    """Configure how a pipeline trains on several nodes: its parameter `job`."""

    rollout_servers: int = Field(1, ge=0)
    """Number of vLLM rollout servers; 0 if rollouts.engine is transformers, or rollouts.servers names other servers."""
    rollout_gpus: int | None = Field(None, ge=0)
    """GPUs per server for tensor parallelism, a power of two. Default: 1 if the nodes have GPUs."""
    queue: str = ""
    """Kueue LocalQueue. Without one the pods start right away."""
    priority: str = ""
    """Kueue WorkloadPriorityClass."""
    cpus: int | None = Field(None, ge=1)
    """CPUs per node and per server. Default: 4 per GPU."""
    memory: str = ""
    """Memory per node and per server, e.g. 256Gi. Default: 32Gi per GPU."""
    cache: str = ""
    """PersistentVolumeClaim for the servers' models. Default: each server downloads its own copy. The trainers' cache
    is set in the runtime.
    """
    runtime: str = "gumshoe"
    """Name of the ClusterTrainingRuntime."""

    def count_server_gpus(self, gpus: int) -> int:
        """Return the number of GPUs per server, if a node has `gpus` GPUs."""
        return min(1, gpus) if self.rollout_gpus is None else self.rollout_gpus

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> "TrainJobSpec":
        """Parse the pipeline parameter `job`.

        Raises:
            UsageError: if it has an unknown key, or an invalid value.
        """
        return validate_model(cls, parameters, "trainjob.invalid-job", "invalid job")

    @field_validator("rollout_gpus")
    @classmethod
    def _check_rollout_gpus(cls, gpus: int | None) -> int | None:
        if gpus and gpus & (gpus - 1):
            raise UsageError(
                "trainjob.gpus-not-a-power-of-two",
                f"rollout_gpus must be a power of two (1, 2, 4, 8), over which vLLM splits a model, got {gpus}",
            )
        return gpus

    @field_validator("queue", "priority", "cache", "runtime")
    @classmethod
    def _check_object_name(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"must be a Kubernetes name, got {name!r}; use at most 63 lower-case letters, digits, dots and dashes"
            )
        return name

    @field_validator("memory")
    @classmethod
    def _check_memory(cls, memory: str) -> str:
        if not _MEMORY.fullmatch(memory):
            raise ValueError(f"must be a Kubernetes quantity, got {memory!r}; write e.g. 256Gi")
        return memory


@dataclass(frozen=True, slots=True)
class Rollout:
    """The commands of a rollout server's containers."""

    server: tuple[str, ...]
    """Command of the vLLM server, which listens on `SERVER_PORT`."""
    loader: tuple[str, ...]
    """Command of the adapter loader, which listens on `LOADER_PORT`."""


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """Describe a training on several nodes."""

    name: str
    nodes: int
    gpus: int
    """GPUs per node."""
    image: str
    command: tuple[str, ...]
    """Command of each node. It starts one process per GPU."""
    job: TrainJobSpec = field(default_factory=TrainJobSpec)
    rollout: Rollout | None = None
    env: tuple[Manifest, ...] = ()
    """Environment variables of all containers, as in Kubernetes manifests."""
    labels: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Manifest, ...] = ()
    seconds: int = 48 * 3600
    """Time limit, not counting the time when the job is suspended."""

    @property
    def manifests(self) -> list[Manifest]:
        """All objects of the training, in the order of creation."""
        rollout = [] if self.rollout is None else [_build_service(self), _build_deployment(self, self.rollout)]
        return [_add_digest(each) for each in (*rollout[:1], _build_train_job(self), *rollout[1:])]


def build_job_name(run: str) -> str:
    """Return the name for the objects of a run, given the URI of its state: a DNS label that begins with a letter."""
    run_id = run.rstrip("/").rpartition("/runs/")[2] or run
    slug = re.sub(r"[^a-z0-9]+", "-", run_id.lower())[-_SLUG:].strip("-")
    return "-".join(filter(None, ("gumshoe", slug, hashlib.sha256(run.rstrip("/").encode()).hexdigest()[:8])))


def rollout_name(name: str) -> str:
    """Return the name of the rollout servers' Deployment and Service."""
    return f"{name}-rollout"


def rollout_address(name: str) -> str:
    """Return the URL of the rollout servers."""
    return f"http://{rollout_name(name)}:{SERVER_PORT}"


def set_owner(manifest: Manifest, owner: Manifest | None) -> Manifest:
    """Return a manifest with an owner: Kubernetes deletes the object together with its owner, the pod of a step."""
    if owner is None:
        return manifest
    return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [owner]}}


def _add_digest(manifest: Manifest) -> Manifest:
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()[:32]
    return {**manifest, "metadata": {**manifest["metadata"], "annotations": {DIGEST: digest}}}


def _build_train_job(training: TrainingJob) -> Manifest:
    pod: Manifest = {"serviceAccountName": "gumshoe-trainer", "terminationGracePeriodSeconds": _GRACE}
    pod |= _build_scheduling(training)
    labels = {**training.labels, JOB_LABEL: training.name, ROLE_LABEL: "trainer"}
    template = {"metadata": {"labels": labels}, "spec": pod}
    patch = {"name": _NODE, "template": {"spec": {"template": template}}}
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "TrainJob",
        "metadata": {"name": training.name, "labels": {**labels, **_build_queue_labels(training.job)}},
        "spec": {
            "runtimeRef": {"name": training.job.runtime},
            "activeDeadlineSeconds": training.seconds,
            "trainer": {
                "image": training.image,
                "command": list(training.command),
                "env": list(training.env),
                "numNodes": training.nodes,
                "numProcPerNode": max(1, training.gpus),  # passed to the node's command, which starts them
                "resourcesPerNode": _build_resources(training.job, training.gpus),
            },
            "runtimePatches": [
                {
                    "manager": _MANAGER,
                    "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [patch]}}},
                }
            ],
        },
    }


def _build_deployment(training: TrainingJob, rollout: Rollout) -> Manifest:
    """Build the Deployment of the rollout servers.

    Kueue admits each of its pods separately: it has no gang scheduling for Deployments, or together with a TrainJob.
    """
    name = rollout_name(training.name)
    own = {JOB_LABEL: training.name, ROLE_LABEL: "rollout"}
    gpus = training.job.count_server_gpus(training.gpus)
    pod = {
        "serviceAccountName": "gumshoe-rollout",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 30,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_build_server(training, rollout, gpus), _build_loader(training, rollout)],
        "volumes": [
            {"name": "adapters", "emptyDir": {"sizeLimit": "20Gi"}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
            *({"name": name, "emptyDir": {}} for name in _WRITABLE),
            *({"name": "cache", "persistentVolumeClaim": {"claimName": name}} for name in [training.job.cache] if name),
        ],
        **_build_scheduling(training),
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": {**training.labels, **own, **_build_queue_labels(training.job)}},
        "spec": {
            "replicas": training.job.rollout_servers,
            "strategy": {"type": "Recreate"},  # there are no spare GPUs for a rolling update
            "progressDeadlineSeconds": _STARTUP + 600,
            "selector": {"matchLabels": own},
            "template": {"metadata": {"labels": {**training.labels, **own}}, "spec": pod},
        },
    }


def _build_server(training: TrainingJob, rollout: Rollout, gpus: int) -> Manifest:
    health = {"path": "/health", "port": "vllm"}
    has_cache = bool(training.job.cache)
    return {
        "name": "server",
        "image": training.image,
        "command": list(rollout.server),
        "env": [*training.env, *[{"name": "HF_HOME", "value": f"{_CACHE}/huggingface"}] * has_cache],
        "ports": [{"name": "vllm", "containerPort": SERVER_PORT}],
        "resources": _build_resources(training.job, gpus),
        "securityContext": _RESTRICTED,
        "startupProbe": {"httpGet": health, "periodSeconds": 10, "failureThreshold": _STARTUP // 10},
        "readinessProbe": {"httpGet": health, "periodSeconds": 5, "timeoutSeconds": 5},
        "livenessProbe": {"httpGet": health, "periodSeconds": 20, "timeoutSeconds": 20, "failureThreshold": 6},
        "lifecycle": {"preStop": {"sleep": {"seconds": _LEAVES}}},
        "volumeMounts": [
            {"name": "adapters", "mountPath": ADAPTERS, "readOnly": True},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - in the pod
            *_MOUNTS,
            *[{"name": "cache", "mountPath": _CACHE}] * has_cache,
        ],
    }


def _build_loader(training: TrainingJob, rollout: Rollout) -> Manifest:
    return {
        "name": "loader",
        "image": training.image,
        "command": list(rollout.loader),
        "env": list(training.env),
        "ports": [{"name": "loader", "containerPort": LOADER_PORT}],
        "resources": {"requests": {"cpu": "250m", "memory": "512Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": _RESTRICTED,
        "startupProbe": {
            "httpGet": {"path": "/healthz", "port": "loader"},
            "periodSeconds": 5,
            "failureThreshold": _STARTUP // 5,
        },
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "loader"}, "periodSeconds": 5, "timeoutSeconds": 5},
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": "loader"},
            "periodSeconds": 20,
            "timeoutSeconds": 10,
            "failureThreshold": 6,
        },
        "volumeMounts": [{"name": "adapters", "mountPath": ADAPTERS}, *_MOUNTS],
    }


def _build_service(training: TrainingJob) -> Manifest:
    own = {JOB_LABEL: training.name, ROLE_LABEL: "rollout"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": rollout_name(training.name), "labels": {**training.labels, **own}},
        "spec": {
            "clusterIP": "None",  # headless: its DNS name resolves to every server's address
            "publishNotReadyAddresses": False,
            "selector": own,
            "ports": [
                {"name": "vllm", "port": SERVER_PORT, "targetPort": "vllm"},
                {"name": "loader", "port": LOADER_PORT, "targetPort": "loader"},
            ],
        },
    }


def _build_scheduling(training: TrainingJob) -> Manifest:
    found: Manifest = {}
    if training.node_selector:
        found["nodeSelector"] = dict(training.node_selector)
    if training.tolerations:
        found["tolerations"] = [
            {name: to_int_if_whole(value) for name, value in each.items()} for each in training.tolerations
        ]
    return found


def _build_queue_labels(job: TrainJobSpec) -> dict[str, str]:
    labels = {QUEUE_LABEL: job.queue, PRIORITY_LABEL: job.priority if job.queue else ""}
    return {label: value for label, value in labels.items() if value}


def _build_resources(job: TrainJobSpec, gpus: int) -> Manifest:
    wanted = {
        "cpu": str(job.cpus or CPUS * max(1, gpus)),
        "memory": job.memory or f"{GIBIBYTES * max(1, gpus)}Gi",
    }
    own = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    return {"requests": {**wanted, **own}, "limits": {"memory": wanted["memory"], **own}}
