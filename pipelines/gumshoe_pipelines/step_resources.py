"""Choose what the pods of a run request: GPUs, CPUs and memory."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gumshoe.cluster.pod_resources import (
    CPUS_PER_GPU,
    GPU_RESOURCE,
    MEMORY_PER_GPU,
    MEMORY_QUANTITY,
    multiply_quantity,
)
from gumshoe.errors import UsageError

TRAINING_HOURS = 48
"""Time limit of a training."""
WORKER_CPUS, WORKER_MEMORY = "1", "4Gi"
SHARED_MEMORY = "shm"
"""Volume of GPU steps. Kubeflow names the volume of a claim or ConfigMap like that, so these need other names."""
MIG = "/mig-"
"""Part of the resource names of NVIDIA's MIG devices."""
_RESOURCE = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_CPUS = re.compile(r"\d+m|\d+(\.\d{1,3})?")


@dataclass(frozen=True, slots=True)
class StepResources:
    """The resources of one pod, as Kubernetes quantities."""

    gpus: int
    cpus: str
    memory: str


@dataclass(frozen=True, slots=True)
class ResourceParameters:
    """The pipeline parameters that say what pods request."""

    gpus: int = 1
    gpu_resource: str = GPU_RESOURCE
    cpus_per_gpu: int = CPUS_PER_GPU
    memory_per_gpu: str = MEMORY_PER_GPU
    worker_cpus: str = WORKER_CPUS
    worker_memory: str = WORKER_MEMORY

    def find_faults(self) -> Iterator[tuple[str, UsageError]]:
        """Yield the name of each invalid parameter, and what is wrong with it."""
        if self.gpus < 0:
            yield "gpus", UsageError("pipelines.invalid-gpus", f"must be an integer >= 0, got {self.gpus}")
        if MIG in self.gpu_resource and self.gpus > 1:
            why = "a process sees only one MIG device, and they cannot communicate with each other"
            message = f"must be 1 with {self.gpu_resource}, got {self.gpus}; {why}"
            yield "gpus", UsageError("pipelines.several-mig-devices", message)
        if not _RESOURCE.fullmatch(self.gpu_resource):
            message = (
                f"must be the name of a resource of nodes, got {self.gpu_resource!r}; write e.g. nvidia.com/gpu, "
                "amd.com/gpu, habana.ai/gaudi or nvidia.com/mig-3g.40gb (steps cannot have resource claims)"
            )
            yield "gpu_resource", UsageError("pipelines.invalid-gpu-resource", message)
        if self.cpus_per_gpu < 1:
            message = f"must be an integer >= 1, got {self.cpus_per_gpu}"
            yield "cpus_per_gpu", UsageError("pipelines.invalid-resources", message)
        for name, value, pattern, example in (
            ("memory_per_gpu", self.memory_per_gpu, MEMORY_QUANTITY, "32Gi"),
            ("worker_cpus", self.worker_cpus, _CPUS, "500m"),
            ("worker_memory", self.worker_memory, MEMORY_QUANTITY, "4Gi"),
        ):
            if not pattern.fullmatch(value):
                message = f"must be a Kubernetes quantity, got {value!r}; write e.g. {example}"
                yield name, UsageError("pipelines.invalid-resources", message)

    def check(self) -> None:
        """Check all values.

        Raises:
            UsageError: if one is invalid. The message begins with the name of the parameter.
        """
        for name, fault in self.find_faults():
            raise UsageError(fault.code, f"{name}: {fault}")

    def choose(self, gpus: int) -> StepResources:
        """Return the resources of a pod with a number of GPUs. Without GPUs, they are those of CPU steps."""
        if not gpus:
            return StepResources(0, self.worker_cpus, self.worker_memory)
        return StepResources(gpus, str(self.cpus_per_gpu * gpus), multiply_quantity(self.memory_per_gpu, gpus))


def check_job(nodes: int, job: Mapping[str, Any]) -> None:
    """Check that TrainJob options are only given if there is a TrainJob.

    Raises:
        UsageError: if `job` is not empty and one node trains, which is the step itself.
    """
    if nodes == 1 and job:
        raise UsageError(
            "pipelines.job-of-one-node",
            f"job has no effect with one node, because there is no TrainJob, got {', '.join(job)}; leave it out, or "
            "set the parameters queue, priority, cache, cpus_per_gpu and memory_per_gpu, which all GPU steps have",
        )
