"""Declare the parameters of the pipelines: each once, with its type, default and description.

Kubeflow reads a pipeline's parameters from the signature and the docstring of a function. `pipeline` makes both from
the fields of a dataclass, so that pipelines share parameters by inheritance.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from kfp import dsl

from gumshoe.corpus import CORPORA, DEFAULT_ENVIRONMENT
from gumshoe_pipelines.placement import Placement

EMBEDDING = "intfloat/e5-base-v2"
"""Default embedding model for documents."""
_P = TypeVar("_P", bound="RunParameters")


@dataclass(frozen=True, kw_only=True)
class RunParameters:
    """Parameters of every pipeline. While a pipeline is compiled, the values are placeholders of Kubeflow."""

    sources: Annotated[
        list[Any],
        "Where to read mail or documents from, e.g. [maildir:s3://bucket/mail] or [dir:s3://bucket/documents]. "
        "A mailbox may have an owner, e.g. [{source: maildir:s3://bucket/mail, owner: ann@example.com}].",
    ]
    scenarios: Annotated[
        str, "Questions with known answers: a JSON Lines file, e.g. s3://bucket/questions.jsonl, or hf:DATASET."
    ]
    store: Annotated[str, "URI of the project's artifact store, e.g. s3://bucket/project."]
    worker_image: Annotated[
        str,
        "Container image for CPU steps, e.g. registry.example.com/gumshoe/worker:0.1.0. To embed documents, use the "
        "trainer image.",
    ]
    trainer_image: Annotated[str, "Container image for GPU steps, e.g. registry.example.com/gumshoe/trainer:0.1.0."]
    run: Annotated[
        str,
        "ID of this run, e.g. mail-1. With the ID of a stopped run, it continues where that run stopped. "
        "Empty for the ID that Kubeflow gives the run.",
    ] = ""
    environment: Annotated[str, f"What the agent searches: {' or '.join(f'`{each}`' for each in CORPORA)}."] = (
        DEFAULT_ENVIRONMENT
    )
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
        "`environment`, the chat settings and the environment. Missing ones are those of training, if this machine can "
        "read `config`.",
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
    code: Annotated[
        str, "Hash of Gumshoe's code, set by `gumshoe pipeline`. Cached steps are repeated if it changes."
    ] = ""

    @property
    def placement(self) -> Placement:
        """Where the steps run."""
        return Placement(self.worker_image, self.trainer_image, self.gpus, self.node_selector, self.tolerations)


@dataclass(frozen=True, kw_only=True)
class TrainingParameters(RunParameters):
    """Parameters of the pipelines that train and publish an adapter."""

    config: Annotated[str, "Training settings: name of a preset, or URI of a YAML file. Empty for the defaults."] = ""
    thresholds: Annotated[
        dict[str, Any], "Thresholds an adapter must meet to be published. Missing ones have their defaults."
    ] = field(default_factory=dict)
    deploy: Annotated[
        str, "How to deploy the published adapter: `none`, `canary` (beside the adapter in service) or `full`."
    ] = "none"
    deployment: Annotated[
        dict[str, Any], "Where to deploy: name, namespace, percent (traffic of a canary), values (of the Helm chart)."
    ] = field(default_factory=dict)
    nodes: Annotated[
        int, "Number of training nodes. With more than 1, a Kubeflow TrainJob and separate vLLM servers are used."
    ] = 1
    job: Annotated[
        dict[str, Any],
        "Options of the TrainJob: rollout_servers, rollout_gpus, queue, priority, cpus, memory, cache, runtime.",
    ] = field(default_factory=dict)


def pipeline(name: str, parameters: type[_P]) -> Callable[[Callable[[_P], None]], Any]:
    """Return a decorator that makes a Kubeflow pipeline of a function that adds its steps.

    The first line of the function's docstring describes the pipeline.
    """

    described = list(_describe_parameters(parameters))

    def decorate(build: Callable[[_P], None]) -> Any:
        def graph(*values: Any) -> None:  # Kubeflow passes the values in the order of the signature
            build(parameters(**dict(zip((each.name for each, _ in described), values, strict=True))))

        summary = (inspect.getdoc(build) or "").splitlines()[0]
        arguments = "\n".join(f"    {each.name}: {text}" for each, text in described)
        graph.__name__ = build.__name__
        graph.__doc__ = f"{summary}\n\nArgs:\n{arguments}\n"
        graph.__signature__ = inspect.Signature([each for each, _ in described])  # type: ignore[attr-defined]
        return dsl.pipeline(name=name, description=summary)(graph)

    return decorate


def _describe_parameters(parameters: type) -> Iterator[tuple[inspect.Parameter, str]]:
    """Yield each parameter as Kubeflow reads it, with its description, required ones first."""
    hints = get_type_hints(parameters, include_extras=True)
    for each in sorted(fields(parameters), key=lambda each: _default_of(each) is not inspect.Parameter.empty):
        kind, text = get_args(hints[each.name])
        own = {"default": _default_of(each), "annotation": get_origin(kind) or kind}
        yield inspect.Parameter(each.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, **own), text


def _default_of(each: "Field[Any]") -> Any:
    if each.default_factory is not MISSING:
        return each.default_factory()
    return inspect.Parameter.empty if each.default is MISSING else each.default
