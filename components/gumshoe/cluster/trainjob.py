"""What a training on several nodes needs in a cluster: a Kubeflow `TrainJob`, and vLLM servers that sample for it.

The servers are a Deployment with a headless Service, whose name gives the address of each that is ready. All names come
from the run alone, so that a step that is tried again finds what it made; what was made is known again by the digest of
what was asked for.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from gumshoe.artifacts.adapter_layout import LOADER_PORT
from gumshoe.errors import UsageError

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
"""Of a pipeline's steps, and of the pods that these have made. Each may be missing; its keys are environment variables.
"""
DIGEST = "gumshoe.dev/digest"
"""The annotation that says what an object was made from."""
JOB_LABEL, ROLE_LABEL = "gumshoe.dev/job", "gumshoe.dev/role"
"""Of all pods of a training: the name of its TrainJob, and `trainer` or `rollout`."""
NODE_LABEL = "batch.kubernetes.io/job-completion-index"
"""Kubernetes' own: which node of a TrainJob a pod is, from 0."""
QUEUE_LABEL, PRIORITY_LABEL = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
SERVER_PORT = 8000
ADAPTERS = "/adapters"
"""Where a loader puts the adapters that the server beside it loads."""
_NODE = "node"  # what Trainer calls the replicated job of the trainers, and its container
_MANAGER = "gumshoe.dev/pipeline"  # who patches the runtime
CPUS, GIBIBYTES = 4, 32
"""That a pod asks for with each GPU; once, where it has none."""
_STARTUP = 30 * 60  # seconds that a server has to load its model
_CACHE = "/cache"  # as the trainers have it
_GRACE = 120  # seconds that trainers have to save, and to send what they saved
_LEAVES = 5  # seconds that a server still answers once its address is to be forgotten
_SLUG = 24  # characters of a run's id in names: Kubernetes adds up to 25 to that of a pod
_USER = 10001  # of the images
_RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
_WRITABLE = {"home": "/home/gumshoe", "tmp": "/tmp"}  # noqa: S108 - of the pod
_MOUNTS = [{"name": name, "mountPath": place} for name, place in _WRITABLE.items()]
_NAME = re.compile(r"([a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?)?")


@dataclass(frozen=True, slots=True)
class TrainJobSpec:
    """How a pipeline has a training on several nodes carried out: its parameter `job`."""

    rollout_servers: int = 1
    """vLLM servers that sample; 0 where rollouts.engine is transformers, or rollouts.servers names others."""
    rollout_gpus: int | None = None
    """Of each of them, a power of two over which the model is spread; one, where nodes have any, unless given."""
    queue: str = ""
    """Kueue's LocalQueue; without one nothing is waited for."""
    priority: str = ""
    """Kueue's WorkloadPriorityClass."""
    cpus: int | None = None
    """Of a node, and of a server; 4 for each GPU unless given."""
    memory: str = ""
    """Of the same, as Kubernetes writes it; 32Gi for each GPU unless given."""
    cache: str = ""
    """The PersistentVolumeClaim in which servers keep models; a server fetches its own unless given. The trainers'
    is the runtime's."""
    runtime: str = "gumshoe"
    """The ClusterTrainingRuntime."""

    def gpus_of_server(self, gpus: int) -> int:
        """Of each server, where a node has so many."""
        return min(1, gpus) if self.rollout_gpus is None else self.rollout_gpus

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> "TrainJobSpec":
        """
        Raises:
            UsageError: it is told what there is not, or otherwise than it can be.
        """
        known = {each.name for each in fields(cls)}
        if wrong := set(told) - known:
            raise UsageError(
                "trainjob.unknown-job-key", f"job has no key {', '.join(sorted(wrong))}; use {', '.join(sorted(known))}"
            )
        made = cls(**{name: _whole(value) for name, value in told.items()})
        for name, least in (("rollout_servers", 0), ("rollout_gpus", 0), ("cpus", 1)):
            value = getattr(made, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise UsageError("trainjob.invalid-number", f"{name} must be an integer >= {least}, got {value!r}")
        if made.rollout_gpus and made.rollout_gpus & (made.rollout_gpus - 1):
            raise UsageError(
                "trainjob.gpus-not-a-power-of-two",
                f"rollout_gpus must be a power of two (1, 2, 4, 8), over which vLLM splits a model, got "
                f"{made.rollout_gpus}",
            )
        for name in ("queue", "priority", "cache", "runtime"):
            value = getattr(made, name)
            if not isinstance(value, str) or not _NAME.fullmatch(value):
                raise UsageError(
                    "trainjob.invalid-name",
                    f"{name} must be a Kubernetes name, got {value!r}; use lower-case letters, digits, dots and dashes",
                )
        if not isinstance(made.memory, str) or (made.memory and not re.fullmatch(r"\d+(\.\d+)?[KMGT]i?", made.memory)):
            raise UsageError(
                "trainjob.invalid-memory",
                f"memory must be a Kubernetes quantity, got {made.memory!r}; write e.g. 256Gi",
            )
        return made


def _whole(value: Any) -> Any:
    """Return a whole number as an int: Kubeflow hands over every number of a mapping as a float."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


@dataclass(frozen=True, slots=True)
class Rollout:
    """The servers that sample for a training."""

    server: tuple[str, ...]
    """What starts one, listening at `SERVER_PORT`."""
    loader: tuple[str, ...]
    """What loads adapters into it, listening at `LOADER_PORT`."""


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """A training on several nodes."""

    name: str
    nodes: int
    gpus: int
    """Of each node."""
    image: str
    command: tuple[str, ...]
    """What each node runs: one process, which starts one for each of its GPUs itself."""
    job: TrainJobSpec = field(default_factory=TrainJobSpec)
    rollout: Rollout | None = None
    env: tuple[Manifest, ...] = ()
    """Environment variables of all containers, as Kubernetes writes them."""
    labels: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Manifest, ...] = ()
    seconds: int = 48 * 3600
    """That it may take while it is not suspended."""

    @property
    def manifests(self) -> list[Manifest]:
        """All that it needs, in the order in which it is made."""
        rollout = [] if self.rollout is None else [_service(self), _deployment(self, self.rollout)]
        return [_marked(each) for each in (*rollout[:1], _train_job(self), *rollout[1:])]


def name_of(run: str) -> str:
    """What the objects of a run are called, by the URI of all that it keeps: a label of DNS, from a letter on."""
    told = run.rstrip("/").rpartition("/runs/")[2] or run
    slug = re.sub(r"[^a-z0-9]+", "-", told.lower())[-_SLUG:].strip("-")
    return "-".join(filter(None, ("gumshoe", slug, hashlib.sha256(run.rstrip("/").encode()).hexdigest()[:8])))


def rollout_name(name: str) -> str:
    """The Deployment of a training's servers, and their Service."""
    return f"{name}-rollout"


def rollout_address(name: str) -> str:
    """Where a training's servers answer."""
    return f"http://{rollout_name(name)}:{SERVER_PORT}"


def owned(manifest: Manifest, owner: Manifest | None) -> Manifest:
    """The same, to be removed by Kubernetes once its owner, the pod of a step, is gone."""
    if owner is None:
        return manifest
    return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [owner]}}


def _marked(manifest: Manifest) -> Manifest:
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()[:32]
    return {**manifest, "metadata": {**manifest["metadata"], "annotations": {DIGEST: digest}}}


def _train_job(asked: TrainingJob) -> Manifest:
    pod: Manifest = {"serviceAccountName": "gumshoe-trainer", "terminationGracePeriodSeconds": _GRACE}
    pod |= _placed(asked)
    labels = {**asked.labels, JOB_LABEL: asked.name, ROLE_LABEL: "trainer"}
    template = {"metadata": {"labels": labels}, "spec": pod}
    patch = {"name": _NODE, "template": {"spec": {"template": template}}}
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "TrainJob",
        "metadata": {"name": asked.name, "labels": {**labels, **_queued(asked.job)}},
        "spec": {
            "runtimeRef": {"name": asked.job.runtime},
            "activeDeadlineSeconds": asked.seconds,
            "trainer": {
                "image": asked.image,
                "command": list(asked.command),
                "env": list(asked.env),
                "numNodes": asked.nodes,
                "numProcPerNode": max(1, asked.gpus),  # told to each node, whose one process starts them
                "resourcesPerNode": _resources(asked.job, asked.gpus),
            },
            "runtimePatches": [
                {
                    "manager": _MANAGER,
                    "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [patch]}}},
                }
            ],
        },
    }


def _deployment(asked: TrainingJob, rollout: Rollout) -> Manifest:
    """Kueue admits each of its pods by itself: it knows no gang of a Deployment, and none with a TrainJob."""
    name = rollout_name(asked.name)
    own = {JOB_LABEL: asked.name, ROLE_LABEL: "rollout"}
    gpus = asked.job.gpus_of_server(asked.gpus)
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
        "containers": [_server(asked, rollout, gpus), _loader(asked, rollout)],
        "volumes": [
            {"name": "adapters", "emptyDir": {"sizeLimit": "20Gi"}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
            *({"name": name, "emptyDir": {}} for name in _WRITABLE),
            *({"name": "cache", "persistentVolumeClaim": {"claimName": name}} for name in [asked.job.cache] if name),
        ],
        **_placed(asked),
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": {**asked.labels, **own, **_queued(asked.job)}},
        "spec": {
            "replicas": asked.job.rollout_servers,
            "strategy": {"type": "Recreate"},  # there are no GPUs for one more
            "progressDeadlineSeconds": _STARTUP + 600,
            "selector": {"matchLabels": own},
            "template": {"metadata": {"labels": {**asked.labels, **own}}, "spec": pod},
        },
    }


def _server(asked: TrainingJob, rollout: Rollout, gpus: int) -> Manifest:
    healthy = {"path": "/health", "port": "vllm"}
    cached = bool(asked.job.cache)
    return {
        "name": "server",
        "image": asked.image,
        "command": list(rollout.server),
        "env": [*asked.env, *[{"name": "HF_HOME", "value": f"{_CACHE}/huggingface"}] * cached],
        "ports": [{"name": "vllm", "containerPort": SERVER_PORT}],
        "resources": _resources(asked.job, gpus),
        "securityContext": _RESTRICTED,
        "startupProbe": {"httpGet": healthy, "periodSeconds": 10, "failureThreshold": _STARTUP // 10},
        "readinessProbe": {"httpGet": healthy, "periodSeconds": 5, "timeoutSeconds": 5},
        "livenessProbe": {"httpGet": healthy, "periodSeconds": 20, "timeoutSeconds": 20, "failureThreshold": 6},
        "lifecycle": {"preStop": {"sleep": {"seconds": _LEAVES}}},
        "volumeMounts": [
            {"name": "adapters", "mountPath": ADAPTERS, "readOnly": True},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - of the pod
            *_MOUNTS,
            *[{"name": "cache", "mountPath": _CACHE}] * cached,
        ],
    }


def _loader(asked: TrainingJob, rollout: Rollout) -> Manifest:
    return {
        "name": "loader",
        "image": asked.image,
        "command": list(rollout.loader),
        "env": list(asked.env),
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


def _service(asked: TrainingJob) -> Manifest:
    own = {JOB_LABEL: asked.name, ROLE_LABEL: "rollout"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": rollout_name(asked.name), "labels": {**asked.labels, **own}},
        "spec": {
            "clusterIP": "None",  # its name gives every server's address
            "publishNotReadyAddresses": False,
            "selector": own,
            "ports": [
                {"name": "vllm", "port": SERVER_PORT, "targetPort": "vllm"},
                {"name": "loader", "port": LOADER_PORT, "targetPort": "loader"},
            ],
        },
    }


def _placed(asked: TrainingJob) -> Manifest:
    found: Manifest = {}
    if asked.node_selector:
        found["nodeSelector"] = dict(asked.node_selector)
    if asked.tolerations:
        found["tolerations"] = [{name: _whole(value) for name, value in each.items()} for each in asked.tolerations]
    return found


def _queued(job: TrainJobSpec) -> dict[str, str]:
    told = {QUEUE_LABEL: job.queue, PRIORITY_LABEL: job.priority if job.queue else ""}
    return {label: value for label, value in told.items() if value}


def _resources(job: TrainJobSpec, gpus: int) -> Manifest:
    wanted = {
        "cpu": str(job.cpus or CPUS * max(1, gpus)),
        "memory": job.memory or f"{GIBIBYTES * max(1, gpus)}Gi",
    }
    own = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    return {"requests": {**wanted, **own}, "limits": {"memory": wanted["memory"], **own}}
