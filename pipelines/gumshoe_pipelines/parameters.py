"""Declare the parameters of the pipelines: each once, with its type, default and description.

Kubeflow reads a pipeline's parameters from the signature and the docstring of a function. Both are made from the
fields of a dataclass, so that pipelines share parameters by inheritance. Some settings of pods cannot be parameters of
a run in Kubeflow: labels, volumes that may be missing, and image pull secrets. They are compiled into the pipeline.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from kfp import dsl

from gumshoe.cluster.pod_resources import CPUS_PER_GPU, GPU_RESOURCE, MEMORY_PER_GPU
from gumshoe.corpus import CORPORA, DEFAULT_ENVIRONMENT
from gumshoe_pipelines.placement import Placement, PodOptions
from gumshoe_pipelines.step_resources import WORKER_CPUS, WORKER_MEMORY

EMBEDDING = "intfloat/e5-base-v2"
"""Default embedding model for documents."""
_COMPILED = "compiled"
_P = TypeVar("_P", bound="RunParameters")


def _compiled() -> Any:
    """Declare a parameter that Kubeflow cannot take from a run, so that it is compiled into the pipeline."""
    return field(default="", metadata={_COMPILED: True})


@dataclass(frozen=True, kw_only=True)
class RunParameters:
    """Parameters of every pipeline. While a pipeline is compiled, the values are placeholders of Kubeflow."""

    sources: Annotated[
        list[Any],
        "Where to read mail or documents from, e.g. [maildir:s3://bucket/mail] or [dir:s3://bucket/documents]. "
        "A mailbox may have an owner, e.g. [{source: maildir:s3://bucket/mail, owner: ann@example.com}], "
        "and documents a collection, e.g. [{source: dir:s3://bucket/personnel, collection: hr}].",
    ]
    scenarios: Annotated[
        str, "Questions with known answers: a JSON Lines file, e.g. s3://bucket/questions.jsonl, or hf:DATASET."
    ]
    store: Annotated[str, "URI of the project's artifact store, e.g. s3://bucket/project."]
    worker_image: Annotated[str, "Container image for CPU steps, e.g. registry.example.com/gumshoe/worker:0.1.0."]
    trainer_image: Annotated[
        str,
        "Container image for GPU steps, and for the step that embeds documents or mail, e.g. "
        "registry.example.com/gumshoe/trainer:0.1.0.",
    ]
    run: Annotated[
        str,
        "ID of this run, e.g. mail-1. With the ID of a stopped run, it continues where that run stopped. "
        "Empty for the ID that Kubeflow gives the run.",
    ] = ""
    environment: Annotated[str, f"What the agent searches: {' or '.join(f'`{each}`' for each in CORPORA)}."] = (
        DEFAULT_ENVIRONMENT
    )
    agent: Annotated[
        str,
        "Agent that runs all episodes, in training, evaluations and deployment: package.module:name, or its settings, "
        "e.g. {my_package.agent:graph: {deadline: 60}}. On a cluster, the images must contain it. Empty for Gumshoe's "
        "own loop.",
    ] = ""
    embedding: Annotated[
        str, "Embedding model for documents, or `none` for keyword search only. Not used for mail."
    ] = EMBEDDING
    index: Annotated[
        dict[str, Any],
        "Options of the index: for mail e.g. {max_body: 0, max_recipients: 0, skip: [deleted, spam]}, where 0 is no "
        "limit; for documents e.g. {tokens: 512, language: de}.",
    ] = field(default_factory=dict)
    base_model: Annotated[
        str, "Base model: a name on the Hugging Face Hub, a directory, `tiny`, or `smollm2-135m`."
    ] = "Qwen/Qwen2.5-7B-Instruct"
    limits: Annotated[
        dict[str, Any],
        "Limits per episode in evaluations, e.g. {max_turns: 10, max_tokens: 512, max_context: 8192}; and `chat` and "
        "`environment` as in training. Missing ones are those of training, if this machine can read `config`; in "
        "`evaluate-agent`, those that the adapter was trained with.",
    ] = field(default_factory=dict)
    choice: Annotated[
        dict[str, Any],
        "How evaluations choose among several samples per question, e.g. {samples: 4, choose: majority}.",
    ] = field(default_factory=dict)
    judge: Annotated[
        str, "Judge that decides in evaluations which answers are correct, e.g. heuristic or openai:MODEL@URL."
    ] = "heuristic"
    seed: Annotated[int, "Random seed for splitting the scenarios, if they do not name a split."] = 1
    gpus: Annotated[
        int, "Number of GPUs per training node, and for the warm start. Evaluations use one GPU. 0 for CPU only."
    ] = 1
    node_selector: Annotated[dict[str, Any], "Node labels for GPU steps, e.g. {pool: gpus}."] = field(
        default_factory=dict
    )
    tolerations: Annotated[list[Any], "Tolerations for GPU steps, e.g. [{key: nvidia.com/gpu, operator: Exists}]."] = (
        field(default_factory=list)
    )
    gpu_resource: Annotated[
        str,
        "Name of the resource that nodes count GPUs by, e.g. nvidia.com/gpu, amd.com/gpu, habana.ai/gaudi or "
        "nvidia.com/mig-3g.40gb.",
    ] = GPU_RESOURCE
    cpus_per_gpu: Annotated[int, "CPUs that GPU steps, training nodes and rollout servers request per GPU."] = (
        CPUS_PER_GPU
    )
    memory_per_gpu: Annotated[str, "Memory that GPU steps, training nodes and rollout servers request per GPU."] = (
        MEMORY_PER_GPU
    )
    worker_cpus: Annotated[str, "CPUs that CPU steps request, e.g. 500m; and GPU steps if `gpus` is 0."] = WORKER_CPUS
    worker_memory: Annotated[str, "Memory that CPU steps request, e.g. 4Gi; and GPU steps if `gpus` is 0."] = (
        WORKER_MEMORY
    )
    queue: Annotated[str, "Kueue LocalQueue in which all GPU steps and TrainJobs wait. Empty for none."] = _compiled()
    priority: Annotated[str, "Kueue WorkloadPriorityClass of GPU steps and TrainJobs, with `queue`."] = _compiled()
    cache: Annotated[
        str,
        "PersistentVolumeClaim where all steps, training nodes and rollout servers keep models from the Hugging Face "
        "Hub. Empty to download them in each pod.",
    ] = _compiled()
    image_pull_secret: Annotated[
        str, "Secret with the credentials of the registry of the images. Empty for those of the service accounts."
    ] = _compiled()
    code: Annotated[
        str, "Hash of Gumshoe's code, set by `gumshoe pipeline`. Cached steps are repeated if it changes."
    ] = ""

    @property
    def placement(self) -> Placement:
        """Images, resources and pod options of the steps. `plan` chooses the resources of GPU steps."""
        return Placement(
            worker_image=self.worker_image,
            trainer_image=self.trainer_image,
            gpus=self.gpus,
            gpu_resource=self.gpu_resource,
            cpus=self.worker_cpus,
            memory=self.worker_memory,
            worker_cpus=self.worker_cpus,
            worker_memory=self.worker_memory,
            node_selector=self.node_selector,
            tolerations=self.tolerations,
            pods=PodOptions(self.queue, self.priority, self.cache, self.image_pull_secret),
        )


@dataclass(frozen=True, kw_only=True)
class TrainingParameters(RunParameters):
    """Parameters of the pipelines that train and publish an adapter."""

    config: Annotated[str, "Training settings: name of a preset, or URI of a YAML file. Empty for the defaults."] = ""
    thresholds: Annotated[
        dict[str, Any], "Thresholds an adapter must meet to be published. Missing ones have their defaults."
    ] = field(default_factory=dict)
    canaries: Annotated[
        str,
        "Record of the canaries that are planted in `sources`, e.g. s3://bucket/canaries/canaries.json, to measure "
        "what the adapter memorized. Empty for none.",
    ] = ""
    deploy: Annotated[
        str, "How to deploy the published adapter: `none`, `canary` (beside the adapter in service) or `full`."
    ] = "none"
    deployment: Annotated[
        dict[str, Any],
        "Where to deploy: name, namespace, percent (traffic of a canary), values (of the Helm chart), force (overwrite "
        "what other programs have changed). To decide about the canary by its measures: promote_when, rollback_when, "
        "watch_hours, min_episodes, confidence, metrics.",
    ] = field(default_factory=dict)
    nodes: Annotated[
        int, "Number of training nodes. With more than 1, a Kubeflow TrainJob and separate vLLM servers are used."
    ] = 1
    job: Annotated[
        dict[str, Any],
        "Options of the TrainJob if `nodes` is more than 1: rollout_servers, rollout_gpus, queue, priority, cpus, "
        "memory, storage, cache, fs_group, priority_class, runtime_class, scheduler, runtime.",
    ] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PipelineBuilder:
    """Make the graph of a pipeline for Kubeflow's compiler."""

    name: str
    summary: str
    parameters: type[RunParameters]
    build: Callable[[Any], None]
    """Adds the steps, given the parameters."""

    @property
    def compiled_parameters(self) -> dict[str, str]:
        """Name and description of each parameter that is compiled into the pipeline."""
        return {each.name: text for each, text in self._describe() if each.metadata.get(_COMPILED)}

    def make_graph(self, compiled: Mapping[str, Any]) -> Any:
        """Return the graph with these compiled parameters. Those of a run are in its signature and docstring."""
        described = [each for each in self._describe() if not each[0].metadata.get(_COMPILED)]

        def graph(*values: Any) -> None:  # Kubeflow passes the values in the order of the signature
            own = zip((each.name for each, _ in described), values, strict=True)
            self.build(self.parameters(**dict(own), **compiled))

        hints = get_type_hints(self.parameters)
        arguments = "\n".join(f"    {each.name}: {text}" for each, text in described)
        graph.__name__ = self.build.__name__
        graph.__doc__ = f"{self.summary}\n\nArgs:\n{arguments}\n"
        signature = inspect.Signature([_to_parameter(each, hints[each.name]) for each, _ in described])
        graph.__signature__ = signature  # type: ignore[attr-defined]
        return dsl.pipeline(name=self.name, description=self.summary)(graph)

    def _describe(self) -> list[tuple["Field[Any]", str]]:
        """Return each parameter with its description, required ones first."""
        hints = get_type_hints(self.parameters, include_extras=True)
        found = sorted(fields(self.parameters), key=lambda each: _default_of(each) is not inspect.Parameter.empty)
        return [(each, get_args(hints[each.name])[1]) for each in found]


def pipeline(name: str, parameters: type[_P]) -> Callable[[Callable[[_P], None]], PipelineBuilder]:
    """Return a decorator that makes a pipeline of a function that adds its steps.

    The first line of the function's docstring describes the pipeline.
    """

    def decorate(build: Callable[[_P], None]) -> PipelineBuilder:
        return PipelineBuilder(name, (inspect.getdoc(build) or "").splitlines()[0], parameters, build)

    return decorate


def _to_parameter(each: "Field[Any]", hint: Any) -> inspect.Parameter:
    """Return a parameter as Kubeflow reads it."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Parameter(each.name, kind, default=_default_of(each), annotation=get_origin(hint) or hint)


def _default_of(each: "Field[Any]") -> Any:
    if each.default_factory is not MISSING:
        return each.default_factory()
    return inspect.Parameter.empty if each.default is MISSING else each.default
