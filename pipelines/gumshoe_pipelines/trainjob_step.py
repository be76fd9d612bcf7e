"""Run a training on several nodes from a pipeline step.

The inputs are published to the store, the cluster runs the nodes and rollout servers, and the result is fetched from
the store.
"""

import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field

from gumshoe.artifacts.adapter_layout import LOADER_PORT, SERVER_PORT, round_up_lora_rank
from gumshoe.cluster.kubernetes_api import Cluster
from gumshoe.cluster.object_client import Timeouts
from gumshoe.cluster.pod_environment import find_ca_file
from gumshoe.cluster.pod_resources import CPUS_PER_GPU, GPU_RESOURCE, MEMORY_PER_GPU
from gumshoe.cluster.trainjob import (
    ADAPTERS,
    SECRET_KEYS,
    Rollout,
    TrainingJob,
    build_job_name,
    rollout_address,
)
from gumshoe.cluster.trainjob_runner import run_trainjob
from gumshoe.cluster.trainjob_spec import TrainJobSpec
from gumshoe.errors import GumshoeError, UsageError
from gumshoe.model_validation import ParameterModel, validate_model
from gumshoe.redaction import redact
from gumshoe.training.models.model_shape import read_heads
from gumshoe.training.node_main import fetch_result
from gumshoe.training.planning.gpu_allocation import can_divide
from gumshoe.training.run_spec import load_splits
from gumshoe.training.settings import TrainSettings
from gumshoe.training.settings_checks import check_settings
from gumshoe.training.train_request import TrainRequest
from gumshoe.training.training_step import TrainResult
from gumshoe_pipelines.run_labels import PROJECT_LABEL, RUN_LABEL, STEP_LABEL, get_project_name
from gumshoe_pipelines.step_resources import TRAINING_HOURS
from gumshoe_pipelines.step_runner import count_seconds_left

_STEP = "train-grpo"
_PYTHON = "python"  # in the image
_SERVER_KEYS = ("HF_TOKEN",)  # to load a base model that is not public
_EARLIER = 1800  # seconds before the step's own timeout, for deleting the objects
_LATER = 600  # seconds for a training without progress to end itself


class TrainJobOptions(ParameterModel):
    """The options of a training on several nodes."""

    nodes: int = Field(ge=1)
    gpus: int = Field(ge=0)
    """GPUs per node."""
    job: TrainJobSpec
    image: str
    node_selector: dict[str, str]
    tolerations: tuple[dict[str, Any], ...]
    gpu_resource: str = GPU_RESOURCE
    cpus_per_gpu: int = CPUS_PER_GPU
    memory_per_gpu: str = MEMORY_PER_GPU
    image_pull_secret: str = ""

    @classmethod
    def of(
        cls,
        nodes: int,
        gpus: int,
        job: Mapping[str, Any],
        image: str,
        node_selector: Mapping[str, str],
        tolerations: Sequence[Mapping[str, Any]],
        pods: Mapping[str, str] | None = None,
        **resources: Any,
    ) -> "TrainJobOptions":
        """Build the options from pipeline parameters.

        `pods` are the options that are compiled into the pods of steps. Those that `job` has too are its defaults.

        Raises:
            UsageError: if they are invalid.
        """
        given = dict(pods or {})
        secret = given.pop("image_pull_secret", "")
        options = {
            "nodes": nodes,
            "gpus": gpus,
            "job": TrainJobSpec.of({**given, **job}),
            "image": image,
            "node_selector": node_selector,
            "tolerations": tuple(tolerations),
            "image_pull_secret": secret,
            **resources,
        }
        return validate_model(cls, options, "pipelines.invalid-nodes", "invalid training on several nodes")

    @property
    def trainers(self) -> int:
        """Number of trainer processes on all nodes."""
        return self.nodes * max(1, self.gpus)


def train_on_cluster(
    request: TrainRequest, options: TrainJobOptions, cluster: Cluster | None = None, timeouts: Timeouts | None = None
) -> TrainResult:
    """Train on several nodes. Continues from checkpoints in the store; a finished result is used as it is.

    `cluster` defaults to the one that this pod runs in.

    Raises:
        UsageError: if the request is invalid.
        UnavailableError: if the training was interrupted; another run continues it.
        GumshoeError: if the training failed; the message contains its last log lines.
    """
    name = build_job_name(request.checkpoints)
    check_servers(request.resolve(), options.job)
    request = request.with_settings(build_settings(options, name, request.checkpoints))
    known = request.resolve()
    check_server_gpus(known, options)
    train_scenarios, _ = load_splits(known, request.scenarios)
    check_settings(known, len(train_scenarios))  # before waiting for nodes
    request = request.publish()
    directory = Path(tempfile.mkdtemp(prefix="gumshoe-trained-"))
    found = fetch_result(request, directory)
    if found is None:
        job = build_training_job(name, request, known, options)
        run_trainjob(job, cluster or Cluster.of(None, None), _print, timeouts or build_timeouts(known))
        found = fetch_result(request, directory)
    if found is None:
        raise GumshoeError(
            "pipelines.no-training-result",
            f"TrainJob {name} finished, but {request.checkpoints} has no {request.result}; check that its first node "
            "writes to the same store, then try again",
        )
    return found


def build_timeouts(known: TrainSettings) -> Timeouts:
    """Return the timeouts of a training, which ends itself first if it makes no progress."""
    usual = Timeouts()
    return replace(usual, stall=max(usual.stall, known.output.stall_seconds + _LATER))


def check_servers(known: TrainSettings, job: TrainJobSpec) -> None:
    """Check that a training on several nodes has separate rollout servers if it uses vLLM, and none otherwise.

    `known` are the settings as they are given, without the servers of `job`.

    Raises:
        UsageError: if the run would start vLLM servers itself, which only works on one node, or would not use those of
            `job`.
    """
    rollouts = known.rollouts
    if job.rollout_servers and (rollouts.engine != "vllm" or known.mode == "simple"):
        found = "mode is simple" if known.mode == "simple" else f"rollouts.engine is {rollouts.engine}"
        raise UsageError(
            "pipelines.rollout-servers-without-vllm",
            f"job.rollout_servers starts {job.rollout_servers} vLLM servers (1 by default), but {found}, which uses "
            "none; set job.rollout_servers to 0, or train with vLLM",
        )
    if known.servers and not job.rollout_servers:
        raise UsageError(
            "pipelines.no-rollout-servers",
            "training on several nodes needs separate rollout servers; set job.rollout_servers, rollouts.servers, or "
            "rollouts.engine to transformers",
        )


def check_server_gpus(known: TrainSettings, options: TrainJobOptions) -> None:
    """Check that vLLM can divide the model among the GPUs of a rollout server.

    Raises:
        UsageError: if it cannot.
    """
    gpus = options.job.count_server_gpus(options.gpus)
    if not options.job.rollout_servers or gpus < 2:
        return
    heads, kv_heads = read_heads(known.model.name)
    if not can_divide(heads, kv_heads, gpus):
        fitting = max(each for each in (1, 2, 4, 8) if each < gpus and can_divide(heads, kv_heads, each))
        raise UsageError(
            "pipelines.gpus-do-not-divide-heads",
            f"vLLM cannot divide the {heads} attention heads of {known.model.name} ({kv_heads} of keys and values) "
            f"among {gpus} GPUs; set job.rollout_gpus to {fitting}",
        )


def build_settings(options: TrainJobOptions, name: str, checkpoints: str) -> dict[str, Any]:
    """Return the training settings that depend on the cluster."""
    own: dict[str, Any] = {"optimizer.processes": options.trainers}
    if options.job.rollout_servers:
        own |= {"rollouts.servers": [rollout_address(name)], "rollouts.handover": get_handover_uri(checkpoints)}
    return own


def get_handover_uri(checkpoints: str) -> str:
    """Return the URI where the trainers publish adapters for the servers."""
    return f"{checkpoints.rstrip('/')}/policies"


def build_training_job(name: str, request: TrainRequest, known: TrainSettings, options: TrainJobOptions) -> TrainingJob:
    """Build the description of the TrainJob."""
    store, _, run = request.checkpoints.rstrip("/").rpartition("/runs/")
    labels = {PROJECT_LABEL: _to_label(get_project_name(store)), RUN_LABEL: _to_label(run), STEP_LABEL: _STEP}
    return TrainingJob(
        name=name,
        nodes=options.nodes,
        gpus=options.gpus,
        image=options.image,
        command=(_PYTHON, "-m", "gumshoe.training.node_main", request.model_dump_json()),
        job=options.job,
        rollout=_build_rollout(known, request, options) if options.job.rollout_servers else None,
        env=tuple(each for secret, keys in SECRET_KEYS.items() for each in _build_secret_env(secret, keys)),
        labels={key: value for key, value in labels.items() if value},
        node_selector=options.node_selector,
        tolerations=options.tolerations,
        gpu_resource=options.gpu_resource,
        cpus_per_gpu=options.cpus_per_gpu,
        memory_per_gpu=options.memory_per_gpu,
        image_pull_secret=options.image_pull_secret,
        has_ca_bundle=find_ca_file() is not None,
        ends=time.monotonic() + count_seconds_left() - _EARLIER,
        seconds=TRAINING_HOURS * 3600 - _EARLIER,
    )


def _build_rollout(known: TrainSettings, request: TrainRequest, options: TrainJobOptions) -> Rollout:
    """Build the commands of the rollout servers, with the options that `gumshoe train` uses for its own servers."""
    model, gpus = known.model, options.job.count_server_gpus(options.gpus)
    server: dict[str, object] = {
        "--model": known.model.name,
        "--port": SERVER_PORT,
        "--adapters": ADAPTERS,
        "--max-model-len": model.max_context,
        "--max-lora-rank": round_up_lora_rank(known.lora.rank),
        "--dtype": "bfloat16" if model.dtype == "auto" and options.gpus else model.dtype,  # as in training
    }
    if gpus and known.rollouts.gpu_memory:
        server["--gpu-memory-utilization"] = known.rollouts.gpu_memory
    if gpus > 1:
        server["--tensor-parallel-size"] = gpus
    loader = {"--directory": ADAPTERS, "--port": LOADER_PORT}
    return Rollout(
        (_PYTHON, "-m", "gumshoe.inference.rollout_server", *_flags(server)),
        ("gumshoe", "adapter-loader", get_handover_uri(request.checkpoints), *_flags(loader)),
        server_env=tuple(_build_secret_env("gumshoe-models", _SERVER_KEYS)),
        loader_env=tuple(_build_secret_env("gumshoe-s3", SECRET_KEYS["gumshoe-s3"])),
    )


def _flags(options: Mapping[str, object]) -> list[str]:
    return [str(each) for item in options.items() for each in item]


def _build_secret_env(secret: str, keys: Sequence[str]) -> list[dict[str, Any]]:
    """Return the environment variables from the keys of a Secret. All are optional."""
    return [
        {"name": key, "valueFrom": {"secretKeyRef": {"name": secret, "key": key, "optional": True}}} for key in keys
    ]


def _to_label(text: str) -> str:
    """Return a text as the value of a Kubernetes label."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:63].strip("._-")


def _print(text: str) -> None:
    """Print a line to this step's log."""
    sys.stdout.write(f"{redact(text)}\n")
    sys.stdout.flush()
