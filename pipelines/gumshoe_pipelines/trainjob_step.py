"""A training on several nodes, as a pipeline's step has it carried out: what it needs is put into the store, the
cluster is asked for nodes and servers, and the result is taken from the store.
"""

import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gumshoe.artifacts.adapter_layout import LOADER_PORT
from gumshoe.cluster.kubernetes_api import Cluster
from gumshoe.cluster.object_client import Timeouts
from gumshoe.cluster.trainjob import (
    ADAPTERS,
    SECRET_KEYS,
    SERVER_PORT,
    Rollout,
    TrainingJob,
    TrainJobSpec,
    name_of,
    rollout_address,
)
from gumshoe.cluster.trainjob_runner import run_trainjob
from gumshoe.errors import GumshoeError, UsageError
from gumshoe.inference.vllm_server import lora_rank_slot
from gumshoe.scenarios.scenario import SCENARIOS
from gumshoe.training.node_main import NodeRequest, fetch_result
from gumshoe.training.run_spec import train_split
from gumshoe.training.settings import TrainSettings, check, resolve
from gumshoe.training.training_step import TrainRequest, TrainResult
from gumshoe_pipelines.grpo_step import HOURS
from gumshoe_pipelines.kubeflow_client import project_of
from gumshoe_pipelines.placement import PROJECT_LABEL, RUN_LABEL, STEP_LABEL

_STEP = "train-grpo"
_PYTHON = "python"  # of the image
_EARLIER = 1800  # seconds before the step's own end, to remove what it made


@dataclass(frozen=True, slots=True)
class TrainJobOptions:
    """Where a training takes place."""

    nodes: int
    gpus: int
    """Of each."""
    job: TrainJobSpec
    image: str
    node_selector: Mapping[str, str]
    tolerations: tuple[Mapping[str, Any], ...]

    @classmethod
    def of(
        cls,
        nodes: int,
        gpus: int,
        job: Mapping[str, Any],
        image: str,
        node_selector: Mapping[str, str],
        tolerations: Sequence[Mapping[str, Any]],
    ) -> "TrainJobOptions":
        """As a pipeline's parameters say it.

        Raises:
            UsageError: it cannot be.
        """
        if nodes < 1:
            raise UsageError("pipelines.invalid-nodes", f"nodes must be an integer >= 1, got {nodes}")
        return cls(nodes, gpus, TrainJobSpec.of(job), image, node_selector, tuple(tolerations))

    @property
    def trainers(self) -> int:
        """On all of them together."""
        return self.nodes * max(1, self.gpus)


def train_on_cluster(
    asked: TrainRequest, where: TrainJobOptions, cluster: Cluster | None = None, patience: Timeouts | None = None
) -> TrainResult:
    """Train on several nodes; a run that left checkpoints in the store goes on from there, and a result is taken.

    `cluster` is the one that this pod is in unless given.

    Raises:
        UsageError: it cannot be carried out as it was put.
        UnavailableError: it is to be run again, and goes on then.
        GumshoeError: the training failed; its own words are in the message.
    """
    name = name_of(asked.checkpoints)
    flags = {**asked.settings, **settings_on(where, name, asked.checkpoints)}
    named = {"model.name": asked.base_model, "output.checkpoints": asked.checkpoints}
    known = resolve(asked.config, {**flags, **named}).settings
    check_servers(known)
    learned, _ = train_split(known, str(asked.scenarios / SCENARIOS))
    check(known, len(learned))  # before anybody waits for nodes
    request = NodeRequest.published(replace(asked, settings=flags))
    directory = Path(tempfile.mkdtemp(prefix="gumshoe-trained-"))
    found = fetch_result(request, directory)
    if found is None:
        run_trainjob(job_of(name, request, known, where), cluster or Cluster.of(None, None), _say, patience)
        found = fetch_result(request, directory)
    if found is None:
        raise GumshoeError(
            "pipelines.no-training-result",
            f"TrainJob {name} finished, but {asked.checkpoints} has no {request.result}; check that its first node "
            "writes to the same store, then try again",
        )
    return found


def check_servers(known: TrainSettings) -> None:
    """See whether what samples for several nodes can be there.

    Raises:
        UsageError: the run would start vLLM servers itself, which one node alone can.
    """
    if known.servers:
        raise UsageError(
            "pipelines.no-rollout-servers",
            "training on several nodes needs separate rollout servers; set job.rollout_servers, rollouts.servers, or "
            "rollouts.engine to transformers",
        )


def settings_on(where: TrainJobOptions, name: str, checkpoints: str) -> dict[str, Any]:
    """The settings of training that come from where it takes place."""
    own: dict[str, Any] = {"optimizer.processes": where.trainers}
    if where.job.rollout_servers:
        own |= {"rollouts.servers": [rollout_address(name)], "rollouts.handover": handover_of(checkpoints)}
    return own


def handover_of(checkpoints: str) -> str:
    """Where the trainers hand adapters over to the servers."""
    return f"{checkpoints.rstrip('/')}/policies"


def job_of(name: str, request: NodeRequest, known: TrainSettings, where: TrainJobOptions) -> TrainingJob:
    """What the cluster is asked for."""
    store, _, run = request.checkpoints.rstrip("/").rpartition("/runs/")
    labels = {PROJECT_LABEL: _label(project_of(store)), RUN_LABEL: _label(run), STEP_LABEL: _STEP}
    return TrainingJob(
        name=name,
        nodes=where.nodes,
        gpus=where.gpus,
        image=where.image,
        command=(_PYTHON, "-m", "gumshoe.training.node_main", request.json),
        job=where.job,
        rollout=_rollout(known, request, where) if where.job.rollout_servers else None,
        env=tuple(_secrets()),
        labels={key: value for key, value in labels.items() if value},
        node_selector=where.node_selector,
        tolerations=tuple(map(dict, where.tolerations)),
        seconds=HOURS * 3600 - _EARLIER,
    )


def _rollout(known: TrainSettings, request: NodeRequest, where: TrainJobOptions) -> Rollout:
    """What the servers are started with, as `gumshoe train` would start its own."""
    model, gpus = known.model, where.job.gpus_of_server(where.gpus)
    server: dict[str, object] = {
        "--model": request.base_model,
        "--port": SERVER_PORT,
        "--max-model-len": model.max_context,
        "--max-lora-rank": lora_rank_slot(known.lora.rank),
        "--dtype": "bfloat16" if model.dtype == "auto" and where.gpus else model.dtype,  # as trained
    }
    if gpus and known.rollouts.gpu_memory:
        server["--gpu-memory-utilization"] = known.rollouts.gpu_memory
    if gpus > 1:
        server["--tensor-parallel-size"] = gpus
    loader = {
        "--server": f"http://127.0.0.1:{SERVER_PORT}",
        "--directory": ADAPTERS,
        "--port": LOADER_PORT,
    }
    return Rollout(
        (_PYTHON, "-m", "gumshoe.inference.rollout_server", *_flags(server)),
        ("gumshoe", "adapter-loader", handover_of(request.checkpoints), *_flags(loader)),
    )


def _flags(options: Mapping[str, object]) -> list[str]:
    return [str(each) for item in options.items() for each in item]


def _secrets() -> list[dict[str, Any]]:
    """What the pipeline's own steps are given, and each may be missing."""
    return [
        {"name": key, "valueFrom": {"secretKeyRef": {"name": secret, "key": key, "optional": True}}}
        for secret, keys in SECRET_KEYS.items()
        for key in keys
    ]


def _label(text: str) -> str:
    """A value of a label of Kubernetes."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:63].strip("._-")


def _say(text: str) -> None:
    """For whoever follows this step's log."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
