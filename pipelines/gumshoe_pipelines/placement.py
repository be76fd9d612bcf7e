"""Configure where steps run: images, resources, secrets, timeouts and retries."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from kfp import dsl, kubernetes
from kfp.dsl.pipeline_channel import PipelineChannel

from gumshoe.cluster.pod_environment import (
    AGENT_KEYS_DIRECTORY,
    AGENT_SECRET,
    CA_CONFIG_MAP,
    ISTIO_LABELS,
    PROXY_CONFIG_MAP,
    PROXY_PREFIX,
    PROXY_VARIABLES,
    TRUST_DIRECTORY,
)
from gumshoe.cluster.trainjob import CACHE_DIRECTORY, MODEL_CACHE, PRIORITY_LABEL, QUEUE_LABEL, SECRET_KEYS
from gumshoe_pipelines.run_labels import PROJECT_LABEL, RUN_LABEL, STEP_LABEL
from gumshoe_pipelines.step_resources import SHARED_MEMORY
from gumshoe_pipelines.step_runner import QUEUED_VARIABLE, SECONDS_VARIABLE

MINUTE, HOUR = 60, 3600
UNKNOWN = "unknown"
RETRIES = 3
"""Maximum number of new pods for a step whose pod was lost."""
_EVER = "365d"  # Argo counts from the first start, gives up after that, and ends a retry that still runs then
Secrets = Mapping[str, tuple[str, ...]]
"""Secrets of a step, and the keys of each that become environment variables. All are optional."""
NO_SECRETS: Secrets = {}
STORE_SECRETS: Secrets = {"gumshoe-s3": SECRET_KEYS["gumshoe-s3"]}
NOTIFY_SECRETS: Secrets = {**STORE_SECRETS, "gumshoe-webhook": ("GUMSHOE_WEBHOOK",)}
MODEL_SECRETS: Secrets = {**STORE_SECRETS, "gumshoe-models": ("HF_TOKEN", "OPENAI_API_KEY", "OPENAI_BASE_URL")}
"""For steps that read datasets or models of the hub, or ask a judge or an embedding model."""
TRAINING_SECRETS: Secrets = SECRET_KEYS
"""For steps that also report to experiment trackers, or use vLLM servers of the user."""
_EXECUTOR = "python3 -m kfp.dsl.executor_main"
_RUNNER = "exec python3 -m gumshoe_pipelines.step_runner kfp.dsl.executor_main"
_MANAGED = "metadata.labels['kueue.x-k8s.io/managed']"  # Kueue sets it on the pods that it admits


@dsl.component(base_image="gumshoe-worker", install_kfp_package=False)
def plan_run(  # Kubeflow declares several outputs as a NamedTuple
    run: str,
    job: str,
    nodes: int,
    gpus: int,
    gpu_resource: str,
    cpus_per_gpu: int,
    memory_per_gpu: str,
    worker_cpus: str,
    worker_memory: str,
    node_selector: dict,
    tolerations: list,
    agent: str,
    environment: str,
    embedding: str,
    index: dict,
    worker_image: str,
    trainer_image: str,
) -> NamedTuple(  # type: ignore[valid-type]
    "Plan",
    [
        ("run", str),
        ("measuring", int),
        ("measuring_cpus", str),
        ("measuring_memory", str),
        ("whole", int),
        ("whole_cpus", str),
        ("whole_memory", str),
        ("training", int),
        ("training_cpus", str),
        ("training_memory", str),
        ("node_selector", dict),
        ("tolerations", list),
        ("agent_image", str),
        ("ingest_image", str),
    ],
):
    """Return the ID of the run, the resources of its pods, and the images of CPU steps that need another one.

    Evaluation (`measuring`) gets at most one GPU, and a warm start those of a whole node. Training gets these too if
    the step trains itself, and none if a TrainJob does.

    Args:
        run: ID of the run; empty for the one of Kubeflow.
        job: ID that Kubeflow gives the run.
        nodes: Number of training nodes.
        gpus: Number of GPUs per node.
        gpu_resource: Name of the resource that nodes count GPUs by.
        cpus_per_gpu: CPUs that GPU steps request per GPU.
        memory_per_gpu: Memory that GPU steps request per GPU.
        worker_cpus: CPUs that CPU steps request.
        worker_memory: Memory that CPU steps request.
        node_selector: Node labels for GPU steps.
        tolerations: Tolerations for GPU steps.
        agent: Agent that runs the episodes; empty for Gumshoe's own loop.
        environment: Name of the environment.
        embedding: Embedding model for documents, or `none`.
        index: Options of the index.
        worker_image: Container image of CPU steps.
        trainer_image: Container image of GPU steps. It alone has the agent, and torch for embeddings.
    """
    from gumshoe.corpus import find_corpus
    from gumshoe_pipelines.step_resources import ResourceParameters

    given = ResourceParameters(gpus, gpu_resource, cpus_per_gpu, memory_per_gpu, worker_cpus, worker_memory)
    given.check()
    pods = [given.choose(number) for number in (min(1, gpus), gpus, gpus if nodes == 1 else 0)]
    amounts = [amount for each in pods for amount in (each.gpus, each.cpus, each.memory)]
    placed = (node_selector, tolerations) if nodes == 1 else ({}, [])
    corpus = find_corpus(environment)  # `ingest` reports one that does not exist
    embeds = corpus is not None and corpus.runs_embedding(embedding, index)
    images = (trainer_image if needed else worker_image for needed in (agent, embeds))
    return (run or job, *amounts, *placed, *images)


@dataclass(frozen=True, slots=True)
class PodOptions:
    """Options of pods that Kubeflow cannot take from a run. They are compiled into a pipeline."""

    queue: str = ""
    """Kueue LocalQueue of GPU steps."""
    priority: str = ""
    """Kueue WorkloadPriorityClass of GPU steps."""
    cache: str = ""
    """PersistentVolumeClaim for models."""
    image_pull_secret: str = ""
    """Secret for the registry of the images."""

    @property
    def queue_labels(self) -> dict[str, str]:
        """Labels of pods that wait in the queue."""
        labels = {QUEUE_LABEL: self.queue, PRIORITY_LABEL: self.priority if self.queue else ""}
        return {label: value for label, value in labels.items() if value}

    def to_input(self) -> dict[str, str]:
        """Return the options that are set, as an input of a step."""
        return {each.name: value for each in fields(self) if (value := getattr(self, each.name))}


@dataclass(frozen=True, slots=True)
class Placement:
    """The pipeline parameters that say where steps run."""

    worker_image: Any
    trainer_image: Any
    gpus: Any
    gpu_resource: Any
    cpus: Any
    """CPUs of GPU steps."""
    memory: Any
    """Memory of GPU steps."""
    worker_cpus: Any
    worker_memory: Any
    node_selector: Any
    tolerations: Any
    pods: PodOptions

    def with_pod(self, plan: Any, pod: str, **others: Any) -> "Placement":
        """Return this placement with GPUs, CPUs and memory of a pod in the outputs of `plan_run`."""
        cpus, memory = plan[f"{pod}_cpus"], plan[f"{pod}_memory"]
        return replace(self, gpus=plan[pod], cpus=cpus, memory=memory, **others)

    def on_cpu(self, task: Any, *, hours: float = 1, cached: bool = False, secrets: Secrets = STORE_SECRETS) -> Any:
        """Place a step without GPUs."""
        _configure(task, self.worker_image, hours, cached, self.pods, secrets)
        return _set_resources(task, self.worker_cpus, self.worker_memory)

    def on_gpu(self, task: Any, *, hours: float, cached: bool = False, secrets: Secrets = TRAINING_SECRETS) -> Any:
        """Place a step on GPUs."""
        _configure(task, self.trainer_image, hours, cached, self.pods, secrets)
        _register(task, self.gpu_resource, self.gpus)
        task.set_accelerator_type(self.gpu_resource).set_accelerator_limit(self.gpus)
        kubernetes.add_node_selector_json(task, self.node_selector)
        kubernetes.add_toleration_json(task, self.tolerations)
        kubernetes.empty_dir_mount(task, volume_name=SHARED_MEMORY, mount_path="/dev/shm", medium="Memory")  # noqa: S108
        for label, value in self.pods.queue_labels.items():
            kubernetes.add_pod_label(task, label, value)
        if self.pods.queue:
            kubernetes.use_field_path_as_env(task, QUEUED_VARIABLE, _MANAGED)
        return _set_resources(task, self.cpus, self.memory)


def add_agent_keys(task: Any) -> Any:
    """Give a step the environment variables of the Secret for agents, if there is one.

    Judges, rewards and environments may need them too, so steps that open any of these have them.
    """
    return kubernetes.use_secret_as_volume(task, AGENT_SECRET, AGENT_KEYS_DIRECTORY, optional=True)


def _configure(task: Any, image: Any, hours: float, cached: bool, pods: PodOptions, secrets: Secrets) -> Any:
    _run_by_step_runner(task)
    task.set_container_image(image)
    task.set_caching_options(cached)
    task.set_retry(num_retries=RETRIES, backoff_duration=f"{MINUTE}s", backoff_factor=2.0, backoff_max_duration=_EVER)
    kubernetes.set_timeout(task, round(hours * HOUR))
    task.set_env_variable(SECONDS_VARIABLE, str(round(hours * HOUR)))
    kubernetes.set_security_context(task, run_as_non_root=True)  # the image or the platform names the user
    own = {PROJECT_LABEL: UNKNOWN, RUN_LABEL: UNKNOWN, STEP_LABEL: task.name}
    for label, value in {**own, **ISTIO_LABELS}.items():
        kubernetes.add_pod_label(task, label, value)
    for secret, keys in secrets.items():
        kubernetes.use_secret_as_env(task, secret, {key: key for key in keys}, optional=True)
    proxy = {key: f"{PROXY_PREFIX}{key}" for key in PROXY_VARIABLES}
    kubernetes.use_config_map_as_env(task, PROXY_CONFIG_MAP, proxy, optional=True)
    kubernetes.use_config_map_as_volume(task, CA_CONFIG_MAP, TRUST_DIRECTORY, optional=True)
    if pods.image_pull_secret:
        kubernetes.set_image_pull_secrets(task, [pods.image_pull_secret])
    if pods.cache:
        kubernetes.mount_pvc(task, pods.cache, CACHE_DIRECTORY)
        task.set_env_variable("HF_HOME", MODEL_CACHE)
    return task


def _run_by_step_runner(task: Any) -> None:
    """Let the step runner start Kubeflow's executor, so that it can run it again."""
    command = [each.replace(_EXECUTOR, _RUNNER) for each in task.container_spec.command]
    if sum(_RUNNER in each for each in command) != 1:
        raise RuntimeError(f"the command of {task.name} does not contain {_EXECUTOR!r}: {command[:-1]}")
    task.container_spec.command = command


def _set_resources(task: Any, cpus: Any, memory: Any) -> Any:
    _register(task, cpus, memory)
    return task.set_cpu_request(cpus).set_memory_request(memory)


def _register(task: Any, *values: Any) -> None:
    """Make parameters inputs of a step. The compiler forgets that for those that are resources."""
    task.register_pipeline_channels([each for each in values if isinstance(each, PipelineChannel)])
