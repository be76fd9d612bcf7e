"""Where steps run, and what they are given: images, GPUs, secrets, time, and further tries."""

from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any, NamedTuple

from kfp import dsl, kubernetes

from gumshoe.cluster.trainjob import SECRET_KEYS

WORKER, TRAINER = (f"ghcr.io/gumshoe/{image}:{version('gumshoe-agents')}" for image in ("worker", "trainer"))
"""Images, unless others are named."""
MINUTE, HOUR = 60, 3600
PROJECT_LABEL, RUN_LABEL, STEP_LABEL = "gumshoe.dev/project", "gumshoe.dev/run", "gumshoe.dev/step"
"""Of pods. What a compiled pipeline has there for project and run, `gumshoe pipeline submit` replaces."""
UNKNOWN = "unknown"
_USER = 10001  # of the images
_SECRETS = {**SECRET_KEYS, "gumshoe-webhook": ("GUMSHOE_WEBHOOK",)}


@dsl.component(base_image="gumshoe-worker", install_kfp_package=False)
def place_steps(  # as Kubeflow has several outputs
    nodes: int, gpus: int, node_selector: dict, tolerations: list
) -> NamedTuple(  # type: ignore[valid-type]
    "Places", [("measuring", int), ("training", int), ("node_selector", dict), ("tolerations", list)]
):
    """Say what the pods of steps are to have: to measure, one GPU, as a policy is served by one; to train, all where
    the step trains itself, and none where others do.

    Args:
        nodes: That train.
        gpus: Of each of them.
        node_selector: Labels of the nodes that have them.
        tolerations: Of those.
    """
    own = (gpus, node_selector, tolerations) if nodes == 1 else (0, {}, [])
    return (min(1, gpus), *own)


@dataclass(frozen=True, slots=True)
class Placement:
    """A pipeline's parameters that say where its steps run."""

    worker_image: Any
    trainer_image: Any
    gpus: Any
    node_selector: Any
    tolerations: Any

    def on_cpu(self, task: Any, *, hours: float = 1, cached: bool = False) -> Any:
        """A step that needs no GPU."""
        return _placed(task, self.worker_image, hours, cached)

    def on_gpu(self, task: Any, *, hours: float, cached: bool = False) -> Any:
        """A step on GPUs. It takes their number as an input, too, as a compiled condition needs it."""
        _placed(task, self.trainer_image, hours, cached)
        task.set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(self.gpus)
        kubernetes.add_node_selector_json(task, self.node_selector)
        kubernetes.add_toleration_json(task, self.tolerations)
        kubernetes.empty_dir_mount(task, volume_name="shm", mount_path="/dev/shm", medium="Memory")  # noqa: S108
        return task

    def split_placement(self, nodes: Any) -> "tuple[Placement, Placement]":
        """Where policies are measured, and what pod a training on so many nodes has: known when the pipeline runs."""
        placed = place_steps(
            nodes=nodes, gpus=self.gpus, node_selector=self.node_selector, tolerations=self.tolerations
        )
        found = self.on_cpu(placed, hours=0.25).outputs
        training = {name: found[name] for name in ("node_selector", "tolerations")}
        return replace(self, gpus=found["measuring"]), replace(self, gpus=found["training"], **training)


def _placed(task: Any, image: Any, hours: float, cached: bool) -> Any:
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
