"""The pipeline parameter `job`: how a pipeline trains on several nodes."""

import re
from collections.abc import Mapping
from typing import Any

from pydantic import Field, field_validator

from gumshoe.cluster.pod_resources import multiply_quantity
from gumshoe.errors import UsageError
from gumshoe.model_validation import ParameterModel, validate_model

_NAME = re.compile(r"([a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?)?")


class TrainJobSpec(ParameterModel):
    """Configure how a pipeline trains on several nodes: its parameter `job`."""

    rollout_servers: int = Field(1, ge=0)
    """Number of vLLM rollout servers; 0 if rollouts.engine is transformers, or rollouts.servers names other servers."""
    rollout_gpus: int | None = Field(None, ge=0)
    """GPUs per server for tensor parallelism, a power of two. Default: 1 if the nodes have GPUs."""
    queue: str = ""
    """Kueue LocalQueue. Default: the pipeline's `queue`. Without one the pods start right away."""
    priority: str = ""
    """Kueue WorkloadPriorityClass. Default: the pipeline's `priority`."""
    cpus: int | None = Field(None, ge=1)
    """CPUs per node and per server. Default: the pipeline's `cpus_per_gpu` for each GPU."""
    memory: str = ""
    """Memory per node and per server, e.g. 256Gi. Default: the pipeline's `memory_per_gpu` for each GPU."""
    storage: str = ""
    """Disk space per node and per server (ephemeral-storage), e.g. 100Gi. Default: no request."""
    cache: str = ""
    """PersistentVolumeClaim for models. Default: the pipeline's `cache`. Without one, each pod downloads its own copy,
    unless the runtime has a cache for the trainers.
    """
    fs_group: int | None = Field(10001, ge=1)
    """Group that owns the cache in rollout servers. Set it to null if the platform assigns one, as OpenShift does."""
    priority_class: str = ""
    """PriorityClass of the rollout servers. That of the trainers is set in the runtime."""
    runtime_class: str = ""
    """RuntimeClass of the rollout servers. That of the trainers is set in the runtime."""
    scheduler: str = ""
    """Scheduler of the rollout servers. That of the trainers is set in the runtime."""
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

    @field_validator("queue", "priority", "cache", "priority_class", "runtime_class", "scheduler", "runtime")
    @classmethod
    def _check_object_name(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"must be a Kubernetes name, got {name!r}; use at most 63 lower-case letters, digits, dots and dashes"
            )
        return name

    @field_validator("memory", "storage")
    @classmethod
    def _check_quantity(cls, quantity: str) -> str:
        if quantity:
            multiply_quantity(quantity, 1)
        return quantity
