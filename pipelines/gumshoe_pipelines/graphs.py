"""Compile the pipelines, and check their parameters before anything is started or submitted."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import yaml

from gumshoe.errors import UsageError
from gumshoe.installation import install_command
from gumshoe.yaml_text import InvalidYamlError, load_yaml
from gumshoe_pipelines.agent_arguments import normalize_agent

if TYPE_CHECKING:
    from gumshoe_pipelines.parameters import PipelineBuilder

PIPELINES = {
    "train-agent": ("gumshoe_pipelines.train_agent", "train_agent"),
    "sweep-agent": ("gumshoe_pipelines.sweep_agent", "sweep_agent"),
    "evaluate-agent": ("gumshoe_pipelines.evaluate_agent", "evaluate_agent"),
}
RENAMED: dict[str, tuple[str, dict[str, Any]]] = {"retrain-agent": ("train-agent", {"against": "latest"})}
"""Earlier names of pipelines: the present name, and the parameters that make it the same pipeline."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, if PyYAML was built with libyaml
_QUANTITIES = ("memory_per_gpu", "worker_cpus", "worker_memory")
_TYPES: dict[str, tuple[type, ...]] = {
    "STRING": (str,),
    "NUMBER_INTEGER": (int,),
    "NUMBER_DOUBLE": (int, float),
    "BOOLEAN": (bool,),
    "LIST": (list,),
    "STRUCT": (dict,),
}
_NAMES = {
    "STRING": "a string",
    "NUMBER_INTEGER": "an integer",
    "NUMBER_DOUBLE": "a number",
    "BOOLEAN": "true or false",
    "LIST": "a list",
    "STRUCT": "a mapping",
}


@dataclass(frozen=True)
class Graph:
    """A compiled pipeline."""

    name: str
    text: str
    """YAML for Kubeflow: the pipeline, and the Kubernetes settings of its steps."""
    compiled: Mapping[str, str] = field(default_factory=dict)
    """Parameters that are compiled into it."""

    @cached_property
    def spec(self) -> dict[str, Any]:
        """The pipeline without the Kubernetes settings, parsed once: copy it before changing it."""
        found: dict[str, Any] = read_documents(self.text)[0]
        return found

    @property
    def parameters(self) -> dict[str, dict[str, Any]]:
        """Type, default and description of each parameter."""
        found: dict[str, dict[str, Any]] = self.spec["root"].get("inputDefinitions", {}).get("parameters", {})
        return found

    def check(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Check values for the parameters, and return them.

        Quantities may be numbers, as in Kubernetes. The agent may be a mapping or a YAML file, and becomes text.

        Raises:
            UsageError: if a parameter is unknown or missing, or a value has the wrong type.
        """
        faults, known = list[UsageError](), self.parameters
        values = {name: _to_quantity(value) if name in _QUANTITIES else value for name, value in values.items()}
        try:
            values |= {name: normalize_agent(values[name]) for name in ("agent",) if name in values}
        except UsageError as error:
            raise UsageError(error.code, f"agent: {error}") from None
        names = [*known, *(find_builder(self.name).compiled_parameters if self.name in PIPELINES else ())]
        for name, value in values.items():
            if name not in known:
                faults.append(
                    UsageError(
                        "pipelines.unknown-parameter",
                        f"{self.name} has no parameter {name}; it has {', '.join(names)}",
                    )
                )
                continue
            kind = known[name]["parameterType"]
            if not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "BOOLEAN"):
                faults.append(_type_error(name, _NAMES[kind], value))
        for name, parameter in known.items():
            if name not in values and "defaultValue" not in parameter and not parameter.get("isOptional"):
                description = parameter.get("description", "").rstrip(".")
                faults.append(
                    UsageError(
                        "pipelines.missing-parameter", f"{name} is missing ({description}); set it with -p {name}=…"
                    )
                )
        if faults:
            raise combine_errors(faults)
        return dict(values)


def _to_quantity(value: Any) -> Any:
    """Return a number as text, e.g. "2" for 2 CPUs, and any other value as it is."""
    return str(value) if type(value) in (int, float) else value


def _type_error(name: str, wanted: str, value: object) -> UsageError:
    shown = json.dumps(value, ensure_ascii=False, default=str)
    return UsageError("pipelines.wrong-parameter-type", f"{name} must be {wanted}, got {shown}")


def combine_errors(faults: Sequence[UsageError]) -> UsageError:
    """Return one error for all faults of the parameters: the only one, or one with a line for each and its code."""
    if len(faults) == 1:
        return faults[0]
    messages = "\n".join(each.message_with_code for each in faults)
    return UsageError(
        "pipelines.several-faults", f"{len(faults)} parameters are wrong:\n{messages}\ncorrect each of them"
    )


def read_documents(text: str) -> list[Any]:
    """Return the YAML documents of a compiled pipeline: the pipeline, and the Kubernetes settings of its steps."""
    return list(yaml.load_all(text, _LOADER))


def split_parameters(name: str, values: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """Split parameters into those that are compiled into a pipeline, and those of a run.

    Raises:
        UsageError: if the pipeline does not exist, kfp is not installed, or a compiled parameter is not a string.
    """
    known = find_builder(name).compiled_parameters
    compiled = {key: value for key, value in values.items() if key in known}
    for key, value in compiled.items():
        if not isinstance(value, str):
            raise _type_error(key, _NAMES["STRING"], value)
    return compiled, {key: value for key, value in values.items() if key not in known}


def compile_graph(name: str, compiled: Mapping[str, str] | None = None) -> Graph:
    """Compile a pipeline for the Kubeflow API, with the parameters that a run cannot have.

    Raises:
        UsageError: if the pipeline does not exist, or kfp is not installed.
    """
    return _compile_once(name, tuple(sorted((compiled or {}).items())))


@cache
def _compile_once(name: str, compiled: tuple[tuple[str, str], ...]) -> Graph:
    return Graph(name, _compile(name, dict(compiled)), dict(compiled))


def compile_manifests(graph: Graph) -> str:
    """Compile a pipeline to the Kubernetes resources `Pipeline` and `PipelineVersion`.

    A version is immutable, so its name contains a digest of its content.
    """
    from kfp.compiler.compiler_utils import KubernetesManifestOptions

    digest = hashlib.sha256(graph.text.encode()).hexdigest()[:8]
    return _compile(
        graph.name,
        graph.compiled,
        kubernetes_manifest_format=True,
        kubernetes_manifest_options=KubernetesManifestOptions(
            pipeline_version_name=f"{graph.name}-{digest}", include_pipeline_manifest=True
        ),
    )


def find_builder(name: str) -> "PipelineBuilder":
    """Return what makes the graph of a pipeline.

    Raises:
        UsageError: if the pipeline does not exist, or kfp is not installed.
    """
    if name not in PIPELINES:
        raise UsageError(
            "pipelines.unknown-pipeline", f"pipeline {name!r} does not exist; use one of {', '.join(PIPELINES)}"
        )
    module, attribute = PIPELINES[name]
    try:
        builder: PipelineBuilder = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise UsageError(
            "pipelines.missing-dependency", f"pipelines require {error.name}: {install_command(extra='pipelines')}"
        ) from None
    return builder


def _compile(name: str, compiled: Mapping[str, str], **options: Any) -> str:
    graph = find_builder(name).make_graph(compiled)
    from kfp.compiler import Compiler

    with TemporaryDirectory(prefix="gumshoe-compile-") as scratch:
        path = Path(scratch) / "pipeline.yaml"
        Compiler().compile(graph, str(path), **options)
        return path.read_text(encoding="utf-8")


def read_values(pairs: list[str], path: Path | None) -> dict[str, Any]:
    """Read parameters from a YAML file and from NAME=VALUE options, whose values are YAML.

    Dates and times become text, because parameters are JSON.

    Raises:
        UsageError: if they cannot be read.
    """
    values: dict[str, Any] = {}
    try:
        if path is not None:
            read = load_yaml(path.read_text(encoding="utf-8")) or {}
            if not isinstance(read, dict):
                raise UsageError(
                    "pipelines.parameters-not-a-mapping",
                    f"{path} must be a mapping of parameters, got {type(read).__name__}; write e.g. `scenarios: "
                    "questions.jsonl`",
                )
            values |= read
        for pair in pairs:
            name, equals, text = pair.partition("=")
            if not equals:
                raise UsageError(
                    "pipelines.invalid-parameter-option",
                    f"a parameter must be NAME=VALUE, got {pair!r}; write e.g. seed=2",
                )
            values[name.strip()] = load_yaml(text) if text else ""
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            "pipelines.parameters-unreadable",
            f"cannot read parameters from {path}: {error}; name a YAML file in UTF-8",
        ) from None
    except InvalidYamlError as error:
        raise UsageError(
            "pipelines.invalid-yaml",
            f"the parameters are not valid YAML: {error}; quote or correct the value",
        ) from None
    return {name: _dates_to_text(value) for name, value in values.items()}


def _dates_to_text(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _dates_to_text(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_dates_to_text(each) for each in value]
    return value.isoformat() if isinstance(value, date) else value
