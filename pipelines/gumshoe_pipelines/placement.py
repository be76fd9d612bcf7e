"""Configure where steps run: images, GPUs, secrets, timeouts and retries."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from kfp import dsl, kubernetes

from gumshoe.cluster.trainjob import SECRET_KEYS

MINUTE, HOUR = 60, 3600
PROJECT_LABEL, RUN_LABEL, STEP_LABEL = "gumshoe.dev/project", "gumshoe.dev/run", "gumshoe.dev/step"
"""Labels of pods. `gumshoe pipeline submit` replaces the compiled values of project and run."""
UNKNOWN = "unknown"
_USER = 10001  # user ID in the images
_SECRETS = {**SECRET_KEYS, "gumshoe-webhook": ("GUMSHOE_WEBHOOK",)}


@dsl.component(base_image="gumshoe-worker", install_kfp_package=False)
def plan_run(  # Kubeflow declares several outputs as a NamedTuple
    run: str, job: str, nodes: int, gpus: int, node_selector: dict, tolerations: list
) -> NamedTuple(  # type: ignore[valid-type]
    "Plan", [("run", str), ("measuring", int), ("training", int), ("node_selector", dict), ("tolerations", list)]
):
    """Return the ID of the run and the resources of its pods.

    Evaluation gets at most one GPU. Training gets all GPUs if the step trains itself, and none if a TrainJob does.

    Args:
        run: ID of the run; empty for the one of Kubeflow.
        job: ID that Kubeflow gives the run.
        nodes: Number of training nodes.
        gpus: Number of GPUs per node.
        node_selector: Node labels for GPU steps.
        tolerations: Tolerations for GPU steps.
    """
    own = (gpus, node_selector, tolerations) if nodes == 1 else (0, {}, [])
    return (run or job, min(1, gpus), *own)


@dataclass(frozen=True, slots=True)
class Placement:
    """The pipeline parameters that say where steps run."""

    worker_image: Any
    trainer_image: Any
    gpus: Any
    node_selector: Any
    tolerations: Any

    def on_cpu(self, task: Any, *, hours: float = 1, cached: bool = False) -> Any:
        """Place a step without GPUs."""
        return _configure(task, self.worker_image, hours, cached)

    def on_gpu(self, task: Any, *, hours: float, cached: bool = False) -> Any:
        """Place a step on GPUs. Their number must be an input of the step too: a compiled condition needs it."""
        _configure(task, self.trainer_image, hours, cached)
        task.set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(self.gpus)
        kubernetes.add_node_selector_json(task, self.node_selector)
        kubernetes.add_toleration_json(task, self.tolerations)
        kubernetes.empty_dir_mount(task, volume_name="shm", mount_path="/dev/shm", medium="Memory")  # noqa: S108
        return task


def _configure(task: Any, image: Any, hours: float, cached: bool) -> Any:
    task.set_container_image(image)
    task.set_caching_options(cached)
    task.set_retry(
        num_retries=3, backoff_duration=f"{MINUTE}s", backoff_factor=2.0, backoff_max_duration=f"{10 * MINUTE}s"
    )
    kubernetes.set_timeout(task, round(hours * HOUR))
    kubernetes.set_security_context(task, run_as_user=_USER, run_as_group=0, run_as_non_root=True)
    for label, value in ((PROJECT_LABEL, UNKNOWN), (RUN_LABEL, UNKNOWN), (STEP_LABEL, task.name)):
        kubernetes.add_pod_label(task, label, value)
    for secret, keys in _SECRETS.items():
        kubernetes.use_secret_as_env(task, secret, {key: key for key in keys}, optional=True)
    return task
