"""Build the Kubernetes manifests of a training on several nodes: a Kubeflow `TrainJob` and its vLLM rollout servers.

The servers are a Deployment with a headless Service, whose DNS name resolves to the addresses of the ready pods. All
object names are derived from the run, so that a repeated step finds the objects of its previous attempt. A digest in an
annotation shows if an object was created from the same manifest.

A Secret contains a random key of the run (VLLM_API_KEY), which the servers require. Each container gets only the
credentials that it uses: the trainers all of them, vLLM that of the hub, the adapter loader those of the store.
"""

import hashlib
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gumshoe.artifacts.adapter_layout import LOADER_PORT, SERVER_PORT
from gumshoe.cluster.pod_environment import (
    AGENT_KEYS_DIRECTORY,
    AGENT_SECRET,
    CA_CONFIG_MAP,
    ISTIO_LABELS,
    TRUST_DIRECTORY,
    build_pod_environment,
)
from gumshoe.cluster.pod_resources import CPUS_PER_GPU, GPU_RESOURCE, MEMORY_PER_GPU, multiply_quantity
from gumshoe.cluster.trainjob_spec import TrainJobSpec
from gumshoe.inference.vllm_access import KEY_VARIABLE
from gumshoe.model_validation import to_int_if_whole

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
    "gumshoe-models": (
        "HF_TOKEN",
        "OPENAI_API_KEY",
        "OPENAI_BASE_URL",
        "WANDB_API_KEY",
        "MLFLOW_TRACKING_URI",
        "VLLM_API_KEY",
    ),
}
"""Secrets of the pipeline's steps and their pods. All are optional. The keys become environment variables."""
DIGEST = "gumshoe.dev/digest"
"""Annotation with the digest of the manifest that an object was created from."""
JOB_LABEL, ROLE_LABEL = "gumshoe.dev/job", "gumshoe.dev/role"
"""Labels of all pods of a training: the name of its TrainJob, and `trainer` or `rollout`."""
NODE_LABEL = "batch.kubernetes.io/job-completion-index"
"""Kubernetes' label with the index of a TrainJob's node, from 0."""
QUEUE_LABEL, PRIORITY_LABEL = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
CACHE_DIRECTORY = "/cache"
"""Directory of the volume for models, in all pods."""
MODEL_CACHE = f"{CACHE_DIRECTORY}/huggingface"
"""Directory for HF_HOME in it."""
ADAPTERS = "/adapters"
"""Directory where the adapter loader puts adapters for the server in the same pod."""
_CACHE, _TRUST, _AGENT_KEYS = "cache", "trust", "agent-keys"  # names of volumes, as in the runtime
_NODE = "node"  # Kubeflow Trainer's name for the trainers' replicated job and its container
_MANAGER = "gumshoe.dev/pipeline"  # owner of the runtime patch
_STARTUP = 30 * 60  # seconds for a server to load its model
_GRACE = 120  # seconds for trainers to save and upload a checkpoint
_LEAVES = 5  # seconds that a server keeps answering after its address was removed from the Service
_KEY_BYTES = 32  # random bytes of the key of rollout servers
_POD_IP = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}  # the address to listen on
_SLUG = 24  # characters of the run ID in names; Kubernetes adds up to 25 to a pod's name
_RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
_WRITABLE = {"home": "/home/gumshoe", "tmp": "/tmp"}  # noqa: S108 - in the pod
_MOUNTS = [{"name": name, "mountPath": place} for name, place in _WRITABLE.items()]


@dataclass(frozen=True, slots=True)
class Rollout:
    """The commands of a rollout server's containers."""

    server: tuple[str, ...]
    """Command of the vLLM server, which listens on `SERVER_PORT`."""
    loader: tuple[str, ...]
    """Command of the adapter loader, which listens on `LOADER_PORT`."""
    server_env: tuple[Manifest, ...] = ()
    """Environment variables of the vLLM server, as in Kubernetes manifests."""
    loader_env: tuple[Manifest, ...] = ()
    """Environment variables of the adapter loader."""


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
    """Environment variables of the trainers, as in Kubernetes manifests."""
    labels: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Manifest, ...] = ()
    gpu_resource: str = GPU_RESOURCE
    """Name of the resource that nodes count GPUs by."""
    cpus_per_gpu: int = CPUS_PER_GPU
    memory_per_gpu: str = MEMORY_PER_GPU
    """CPUs and memory of a pod for each of its GPUs, unless `job` sets those of the pod."""
    image_pull_secret: str = ""
    """Secret for the registry of the image."""
    has_ca_bundle: bool = False
    """True if the pods trust the certificates of the namespace."""
    seconds: int = 48 * 3600
    """Time limit, not counting the time when the job is suspended."""
    ends: float = float("inf")
    """Time limit of this process on the clock of `time.monotonic`. Not part of the manifests."""

    def complete_env(self, env: tuple[Manifest, ...]) -> list[Manifest]:
        """Return environment variables together with what this process has of proxies and certificates."""
        own = build_pod_environment(has_ca_bundle=self.has_ca_bundle)
        if self.rollout is not None:
            reference = {"name": rollout_name(self.name), "key": KEY_VARIABLE}
            own.append({"name": KEY_VARIABLE, "valueFrom": {"secretKeyRef": reference}})
        names = {each["name"] for each in own}
        return [*(each for each in env if each["name"] not in names), *own]

    @property
    def manifests(self) -> list[Manifest]:
        """All objects of the training, in the order of creation."""
        if self.rollout is None:
            return [_add_digest(_build_train_job(self))]
        objects = (_build_service(self), _build_train_job(self), _build_deployment(self, self.rollout))
        return [_build_key(self), *map(_add_digest, objects)]


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


def _build_key(training: TrainingJob) -> Manifest:
    """Build the Secret with the key of the rollout servers. Each call makes another key, and an existing Secret stays.

    The digest does not depend on the key.
    """
    own = {JOB_LABEL: training.name, ROLE_LABEL: "rollout"}
    manifest = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": rollout_name(training.name), "labels": {**training.labels, **own}},
        "type": "Opaque",
    }
    return {**_add_digest(manifest), "stringData": {KEY_VARIABLE: secrets.token_urlsafe(_KEY_BYTES)}}


def _build_train_job(training: TrainingJob) -> Manifest:
    pod: Manifest = {"serviceAccountName": "gumshoe-trainer", "terminationGracePeriodSeconds": _GRACE}
    pod |= _build_scheduling(training)
    volumes, mounts = _build_shared_volumes(training)
    volumes.append({"name": _AGENT_KEYS, "secret": {"secretName": AGENT_SECRET, "optional": True}})
    mounts.append({"name": _AGENT_KEYS, "mountPath": AGENT_KEYS_DIRECTORY, "readOnly": True})
    pod |= {"volumes": volumes, "containers": [{"name": _NODE, "volumeMounts": mounts}]}
    labels = {**training.labels, **ISTIO_LABELS, JOB_LABEL: training.name, ROLE_LABEL: "trainer"}
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
                "env": [*training.complete_env(training.env), *_build_cache_env(training)],
                "numNodes": training.nodes,
                "numProcPerNode": max(1, training.gpus),  # passed to the node's command, which starts them
                "resourcesPerNode": _build_resources(training, training.gpus),
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
    labels = {**training.labels, **ISTIO_LABELS, **own}
    gpus = training.job.count_server_gpus(training.gpus)
    pod = {
        "serviceAccountName": "gumshoe-rollout",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 30,
        "securityContext": _build_pod_security(training.job),
        "containers": [_build_server(training, rollout, gpus), _build_loader(training, rollout)],
        "volumes": [
            {"name": "adapters", "emptyDir": {"sizeLimit": "20Gi"}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
            *({"name": name, "emptyDir": {}} for name in _WRITABLE),
            *_build_shared_volumes(training)[0],
        ],
        **_build_scheduling(training),
        **_build_classes(training.job),
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
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _build_server(training: TrainingJob, rollout: Rollout, gpus: int) -> Manifest:
    health = {"path": "/health", "port": "vllm"}
    return {
        "name": "server",
        "image": training.image,
        "command": list(rollout.server),
        "env": [*training.complete_env(rollout.server_env), *_build_cache_env(training), _POD_IP],
        "ports": [{"name": "vllm", "containerPort": SERVER_PORT}],
        "resources": _build_resources(training, gpus),
        "securityContext": _RESTRICTED,
        "startupProbe": {"httpGet": health, "periodSeconds": 10, "failureThreshold": _STARTUP // 10},
        "readinessProbe": {"httpGet": health, "periodSeconds": 5, "timeoutSeconds": 5},
        "livenessProbe": {"httpGet": health, "periodSeconds": 20, "timeoutSeconds": 20, "failureThreshold": 6},
        "lifecycle": {"preStop": {"sleep": {"seconds": _LEAVES}}},
        "volumeMounts": [
            {"name": "adapters", "mountPath": ADAPTERS, "readOnly": True},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - in the pod
            *_MOUNTS,
            *_build_shared_volumes(training)[1],
        ],
    }


def _build_loader(training: TrainingJob, rollout: Rollout) -> Manifest:
    return {
        "name": "loader",
        "image": training.image,
        "command": list(rollout.loader),
        "env": [*training.complete_env(rollout.loader_env), _POD_IP],
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
        "volumeMounts": [
            {"name": "adapters", "mountPath": ADAPTERS},
            *_MOUNTS,
            *(each for each in _build_shared_volumes(training)[1] if each["name"] == _TRUST),
        ],
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
    if training.image_pull_secret:
        found["imagePullSecrets"] = [{"name": training.image_pull_secret}]
    return found


def _build_classes(job: TrainJobSpec) -> Manifest:
    """Return what a TrainJob cannot set: its patches have no such fields."""
    classes = {
        "priorityClassName": job.priority_class,
        "runtimeClassName": job.runtime_class,
        "schedulerName": job.scheduler,
    }
    return {name: value for name, value in classes.items() if value}


def _build_pod_security(job: TrainJobSpec) -> Manifest:
    """Return the security context of a pod. The image or the platform names the user."""
    group = {"fsGroup": job.fs_group} if job.cache and job.fs_group else {}
    return {"runAsNonRoot": True, **group, "seccompProfile": {"type": "RuntimeDefault"}}


def _build_shared_volumes(training: TrainingJob) -> tuple[list[Manifest], list[Manifest]]:
    """Return the volumes of all pods, and their mounts: the cache of models, and certificates."""
    volumes: list[Manifest] = []
    mounts: list[Manifest] = []
    if training.job.cache:
        volumes.append({"name": _CACHE, "persistentVolumeClaim": {"claimName": training.job.cache}})
        mounts.append({"name": _CACHE, "mountPath": CACHE_DIRECTORY})
    if training.has_ca_bundle:
        volumes.append({"name": _TRUST, "configMap": {"name": CA_CONFIG_MAP, "optional": True}})
        mounts.append({"name": _TRUST, "mountPath": TRUST_DIRECTORY, "readOnly": True})
    return volumes, mounts


def _build_cache_env(training: TrainingJob) -> list[Manifest]:
    return [{"name": "HF_HOME", "value": MODEL_CACHE}] if training.job.cache else []


def _build_queue_labels(job: TrainJobSpec) -> dict[str, str]:
    labels = {QUEUE_LABEL: job.queue, PRIORITY_LABEL: job.priority if job.queue else ""}
    return {label: value for label, value in labels.items() if value}


def _build_resources(training: TrainingJob, gpus: int) -> Manifest:
    """Return the resources of a pod. Without GPUs, it gets the CPUs and memory of one."""
    job, shares = training.job, max(1, gpus)
    wanted = {
        "cpu": str(job.cpus or training.cpus_per_gpu * shares),
        "memory": job.memory or multiply_quantity(training.memory_per_gpu, shares),
    }
    wanted |= {"ephemeral-storage": job.storage} if job.storage else {}
    own = {training.gpu_resource: str(gpus)} if gpus else {}
    return {"requests": {**wanted, **own}, "limits": {"memory": wanted["memory"], **own}}
