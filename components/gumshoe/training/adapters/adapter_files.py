"""Adapters on disk: create one without loading the base model, inspect one, and check it against a base model."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from pydantic import ValidationError
from safetensors.torch import load_file, save_file

from gumshoe.artifacts.adapter_layout import LORA_RANKS, round_up_lora_rank
from gumshoe.artifacts.model_card import write_model_card
from gumshoe.artifacts.storage import explain_os_errors
from gumshoe.errors import UsageError
from gumshoe.inference.policy_names import load_tokenizer
from gumshoe.json_text import load_json
from gumshoe.model_validation import describe_validation_error
from gumshoe.scenarios.lineage import Lineage
from gumshoe.scenarios.scenario import ScenarioSet
from gumshoe.training.adapters.adapter_shape import AdapterShape
from gumshoe.training.models.base_model import (
    AdapterBase,
    StoredTensor,
    identify_adapter_base,
    identify_base_model,
    read_tensor_headers,
)
from gumshoe.training.models.lora_model import lora_config
from gumshoe.training.models.model_shape import load_meta_model
from gumshoe.training.models.target_modules import linear_modules, matches
from gumshoe.training.run_spec import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    METADATA,
    Metadata,
    base_model,
    read_prior_lineage,
    resolve_model,
)
from gumshoe.training.settings import TrainSettings

_PREFIX = "base_model.model."
_KEY = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<matrix>[AB])\.weight")


@dataclass(frozen=True, slots=True)
class CreatedAdapter:
    """Numbers of a new adapter."""

    directory: str
    modules: int
    """Number of modules of the base model with LoRA matrices."""
    parameters: int
    base_parameters: int
    bytes: int

    @property
    def share(self) -> float:
        """Number of parameters as a share of the base model's."""
        return self.parameters / self.base_parameters


def create_adapter(settings: TrainSettings, directory: Path) -> CreatedAdapter:
    """Create an adapter that changes nothing yet, with the initial weights of training.

    The base model is read only for its fingerprint. Matrices A are drawn from the seed in the same way as in `peft`;
    matrices B are 0.

    Raises:
        UsageError: the base model does not exist, or has not all target modules.
    """
    place = base_model(settings)
    model = load_meta_model(place)
    parameters = sum(each.numel() for each in model.parameters())
    tokenizer, base = load_tokenizer(place), identify_adapter_base(settings)
    shape = lora_config(settings.lora, model)
    shape.base_model_name_or_path, shape.inference_mode = place, True
    weights = dict(_initial_weights(model, shape, settings.data.seed))
    with explain_os_errors(directory):
        shape.save_pretrained(str(directory))
        save_file(weights, directory / ADAPTER_WEIGHTS, metadata={"format": "pt"})
        tokenizer.save_pretrained(str(directory))
    Lineage.of(ScenarioSet(()), before=read_prior_lineage(settings)).write(directory)
    base.write(directory)
    write_model_card(directory)
    return CreatedAdapter(
        str(directory),
        len(weights) // 2,
        sum(each.numel() for each in weights.values()),
        parameters,
        sum(each.nbytes for each in weights.values()),
    )


def _initial_weights(model: Any, shape: LoraConfig, seed: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the initial weights of `peft` by name, with random numbers drawn in the same order."""
    adapted = get_peft_model(model, shape, low_cpu_mem_usage=True)
    torch.manual_seed(seed)
    for name, layer in adapted.named_modules():
        if isinstance(layer, LoraLayer):
            rank, size = adapted.get_parameter(f"{name}.lora_A.default.weight").shape
            given, _ = adapted.get_parameter(f"{name}.lora_B.default.weight").shape
            a, b = torch.nn.Linear(size, rank, bias=False), torch.nn.Linear(rank, given, bias=False)
            torch.nn.init.kaiming_uniform_(a.weight, a=math.sqrt(5))
            yield f"{name}.lora_A.weight", a.weight.detach()
            yield f"{name}.lora_B.weight", torch.zeros_like(b.weight)


@dataclass(frozen=True, slots=True)
class Adapter:
    """The files of an adapter; weights are read on demand."""

    directory: Path
    config: Mapping[str, Any]
    """`adapter_config.json`"""
    tensors: Mapping[str, StoredTensor]
    base: AdapterBase | None
    """Its base model; None if another program made the adapter."""

    @classmethod
    def read(cls, directory: Path) -> "Adapter":
        """Open the adapter in a directory.

        Raises:
            UsageError: the directory is not a LoRA adapter, or is damaged.
        """
        try:
            shape = load_json((directory / ADAPTER_CONFIG).read_bytes())
            kind = shape["peft_type"]
            if kind == "LORA":
                AdapterShape.model_validate(shape)
        except (OSError, ValueError, LookupError, TypeError) as error:
            fault = describe_validation_error(error) if isinstance(error, ValidationError) else error
            raise UsageError(
                "adapters.not-an-adapter", f"{directory} is not an adapter: cannot read {ADAPTER_CONFIG}: {fault}"
            ) from None
        if kind != "LORA":
            raise UsageError(
                "adapters.not-lora", f"{directory} is not a LoRA adapter: its peft_type is {str(kind)[:60]}; use LoRA"
            )
        if not (directory / ADAPTER_WEIGHTS).exists():
            raise UsageError(
                "adapters.no-weights", f"{directory} has no {ADAPTER_WEIGHTS}; save the adapter again, as safetensors"
            )
        return cls(directory, shape, read_tensor_headers(directory / ADAPTER_WEIGHTS), AdapterBase.read(directory))

    @property
    def modules(self) -> dict[str, dict[str, tuple[int, ...]]]:
        """Shapes of the matrices `A` [rank, in] and `B` [out, rank], by module of the base model."""
        found: dict[str, dict[str, tuple[int, ...]]] = {}
        for name, tensor in self.tensors.items():
            if key := _KEY.fullmatch(name):
                found.setdefault(key["module"], {})[key["matrix"]] = tensor.shape
        return found

    @property
    def base_path(self) -> str | None:
        """Directory of the base model, or its name on the hub, according to the adapter's files."""
        named = self.base.name if self.base else self.config.get("base_model_name_or_path")
        return resolve_model(named) if named else None

    def weights(self) -> dict[str, torch.Tensor]:
        """Load all weights."""
        return load_file(self.directory / ADAPTER_WEIGHTS)

    def key(self, module: str, matrix: str) -> str:
        """Return the name of a module's matrix `A` or `B`."""
        return f"{_PREFIX}{module}.lora_{matrix}.weight"

    def scale(self, module: str) -> float:
        """Return the factor of a module's product BA: alpha / rank, or alpha / √rank for rsLoRA.

        rsLoRA: https://arxiv.org/abs/2312.03732.
        """
        rank = _lookup_pattern(self.config.get("rank_pattern"), module, self.config["r"])
        alpha = _lookup_pattern(self.config.get("alpha_pattern"), module, self.config.get("lora_alpha", 8))
        return float(alpha) / (math.sqrt(rank) if self.config.get("use_rslora") else rank)

    def find_layout_faults(self) -> list[str]:
        """Return the faults that keep `peft`, vLLM or Unsloth's `FastLanguageModel` from reading the files.

        They expect two matrices for each module, under the names of `peft`.
        """
        faults = []
        unknown = [name for name, each in self.tensors.items() if not _KEY.fullmatch(name) or len(each.shape) != 2]
        if unknown:
            faults.append(f"{len(unknown):,} tensors are not LoRA matrices, e.g. {unknown[0]}")
        incomplete = [name for name, matrices in self.modules.items() if len(matrices) < 2]
        if incomplete:
            faults.append(f"{len(incomplete):,} modules have only one of their two matrices, e.g. {incomplete[0]}")
        rank = {
            name
            for name, shapes in self.modules.items()
            if [len(each) for each in shapes.values()] == [2, 2]
            and not shapes["A"][0] == shapes["B"][1] == self._rank(name)
        }
        if rank:
            faults.append(f"{len(rank):,} modules have another rank than {ADAPTER_CONFIG} says, e.g. {min(rank)}")
        targets = self.config.get("target_modules")
        if isinstance(targets, list):
            without = [each for each in targets if not any(matches(name, each) for name in self.modules)]
            if without:
                faults.append(f"target modules of {ADAPTER_CONFIG} have no weights: {', '.join(without)}")
        if not self.modules:
            faults.append("it has no LoRA weights")
        if not self.config.get("base_model_name_or_path"):
            faults.append(f"{ADAPTER_CONFIG} does not name the base model, which Unsloth needs")
        return faults

    def _rank(self, module: str) -> int:
        return int(_lookup_pattern(self.config.get("rank_pattern"), module, self.config["r"]))

    def find_unsupported_parts(self) -> list[str]:
        """Return the parts that are not pairs of matrices for linear modules, and so cannot be merged."""
        shape = self.config
        found = ["it uses DoRA, which scales the base model's weights too"] * bool(shape.get("use_dora"))
        found += ["it has its own biases"] * (shape.get("bias", "none") != "none" or bool(shape.get("lora_bias")))
        if saved := shape.get("modules_to_save"):
            found.append(f"it contains whole modules: {', '.join(saved)} (modules_to_save)")
        if parameters := shape.get("target_parameters"):
            found.append(f"it adapts parameters outside modules: {', '.join(parameters)} (target_parameters)")
        return found

    def find_serving_obstacles(self) -> list[str]:
        """Return why vLLM cannot serve the adapter, or would serve it differently from how it was trained."""
        reasons = self.find_unsupported_parts()
        largest = max((self._rank(name) for name in self.modules), default=int(self.config["r"]))
        if largest > LORA_RANKS[-1]:
            reasons.append(f"its rank {largest} is greater than {LORA_RANKS[-1]}")
        if self.config.get("rank_pattern") or self.config.get("alpha_pattern"):
            reasons.append(
                "it has ranks or alphas per module (rank_pattern, alpha_pattern), and vLLM supports one of each"
            )
        found = sorted({each for name in self.modules if (each := name.rpartition(".")[2]) in _EMBEDDING_MODULES})
        if found or any("lora_embedding" in name for name in self.tensors):
            reasons.append(
                f"it adapts {' and '.join(found) or 'embeddings'}, which vLLM supports for few architectures"
            )
        return reasons

    def find_mismatches(self, model: Any) -> list[str]:
        """Return how the adapter does not fit the modules of a base model (from `load_meta_model`)."""
        linear = linear_modules(model)
        faults = []
        unknown = [name for name in self.modules if name not in linear]
        if unknown:
            faults.append(
                f"{len(unknown):,} of its modules are not linear modules of the base model, e.g. {unknown[0]}"
            )
        for name, shapes in self.modules.items():
            if name not in linear or len(shapes) < 2:
                continue
            own, theirs = (shapes["A"][1], shapes["B"][0]), (linear[name].in_features, linear[name].out_features)
            if own != theirs:
                faults.append(
                    f"{name} maps {own[0]:,} values to {own[1]:,}, and in the base model {theirs[0]:,} to {theirs[1]:,}"
                )
                break
        return faults


_EMBEDDING_MODULES = ("lm_head", "embed_tokens")


def _lookup_pattern(pattern: Mapping[str, Any] | None, module: str, otherwise: Any) -> Any:
    """Return the value of a pattern of `peft` for a module, or `otherwise`."""
    for key, value in (pattern or {}).items():
        if re.match(rf"(.*\.)?({key})$", module):
            return value
    return otherwise


@dataclass(frozen=True, slots=True)
class AdapterReport:
    """Facts about an adapter, and its faults."""

    directory: str
    rank: int
    alpha: float
    dropout: float
    target_modules: list[str]
    modules: int
    parameters: int
    bytes: int
    dtypes: list[str]
    base: str | None
    fingerprint: str | None
    quantization: str | None
    """Quantization of the base model's weights in training."""
    learned_from: int | None
    """Number of training scenarios, including those of the adapter that it started from; None if unknown."""
    chosen_on: int | None
    step: int | None
    run: str | None
    accuracy: float | None
    is_untouched: bool
    """The adapter changes nothing: all matrices B are 0."""
    not_finite: int
    """Number of weights that are NaN or infinite."""
    norms: dict[str, float]
    """Frobenius norm of the change to the base model's weights, by module name."""
    layout: list[str]
    """Faults of the files."""
    unservable: list[str]
    """Why vLLM cannot serve the adapter."""
    served_with: int
    """The smallest `--max-lora-rank` with which vLLM can serve the adapter."""
    misfits: list[str] | None = None
    """Reasons why the adapter does not fit the given base model; None if no model was given."""
    compared_by: str | None = None
    """Method by which the base model was compared."""

    @property
    def is_sound(self) -> bool:
        """True if the files have no faults, and the adapter fits the given base model."""
        return not (self.layout or self.not_finite or self.misfits)


def inspect_adapter(directory: Path, base: str | None = None) -> AdapterReport:
    """Inspect an adapter's files, and check if it fits a base model.

    Raises:
        UsageError: the directory is not an adapter, or is damaged; or the base model does not exist.
    """
    adapter = Adapter.read(directory)
    weights = adapter.weights()
    lineage, metadata = Lineage.read(directory), _metadata(directory)
    misfits = compared_by = None
    if base is not None:
        misfits, compared_by = check_compatible(adapter, base)
    known = adapter.base
    seen, chosen = _count_scenarios(lineage)
    shape = adapter.config
    targets = shape.get("target_modules")
    ranks = [matrices["A"][0] for matrices in adapter.modules.values() if "A" in matrices]
    return AdapterReport(
        directory=str(directory),
        rank=shape["r"],
        alpha=shape["lora_alpha"],
        dropout=shape.get("lora_dropout", 0.0),
        target_modules=sorted(targets) if isinstance(targets, list) else [str(targets)],
        modules=len(adapter.modules),
        parameters=sum(each.numel() for each in weights.values()),
        bytes=sum(each.nbytes for each in weights.values()),
        dtypes=sorted({each.dtype for each in adapter.tensors.values()}),
        base=known.name if known else shape.get("base_model_name_or_path"),
        fingerprint=known.fingerprint if known else None,
        quantization=known.quantization if known else None,
        learned_from=seen,
        chosen_on=chosen,
        step=metadata.step if metadata else None,
        run=metadata.run if metadata else None,
        accuracy=metadata.accuracy if metadata else None,
        is_untouched=not any(bool(each.any()) for name, each in weights.items() if ".lora_B." in name),
        not_finite=sum(int((~torch.isfinite(each)).sum()) for each in weights.values()),
        norms=_norms(adapter, weights),
        layout=adapter.find_layout_faults(),
        unservable=adapter.find_serving_obstacles(),
        served_with=round_up_lora_rank(max(ranks, default=1)),
        misfits=misfits,
        compared_by=compared_by,
    )


def check_compatible(adapter: Adapter, base: str) -> tuple[list[str], str]:
    """Return how an adapter does not fit a base model (an empty list if it fits), and what was compared.

    Raises:
        UsageError: the base model does not exist, or its files are damaged.
    """
    place = resolve_model(base)
    faults = adapter.find_mismatches(load_meta_model(place))
    if adapter.base is None:
        return faults, "names and shapes only, as the adapter has no fingerprint of its base model"
    is_same, by = adapter.base.compare(identify_base_model(base, place, "none"))
    if is_same is False:
        faults.append(f"it was made for {adapter.base.name}, and {base} is another model according to {by}")
    return faults, by


def _metadata(directory: Path) -> Metadata | None:
    path = directory / METADATA
    try:
        return Metadata.model_validate_json(path.read_bytes()) if path.exists() else None
    except ValidationError as error:
        raise UsageError(
            "adapters.other-version",
            f"{path} was written by another version of Gumshoe: {describe_validation_error(error)}",
        ) from None


def _count_scenarios(lineage: Lineage | None) -> tuple[int | None, int | None]:
    """Return the numbers of training and validation scenarios, including those of earlier adapters."""
    learned, chosen = Counter[str](), Counter[str]()
    each = lineage
    while each is not None:
        learned.update(each.learned_from.questions)
        chosen.update(each.chosen_on.questions if each.chosen_on else ())
        each = each.before
    return (None, None) if lineage is None else (len(learned), len(chosen))


def _norms(adapter: Adapter, weights: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """Return ‖s·B·A‖ by module name, as √Σ s²·tr((BᵀB)(AAᵀ)): the product BA would be as large as the base model."""
    squares: dict[str, float] = {}
    for name, matrices in adapter.modules.items():
        if len(matrices) == 2:
            a, b = (weights[adapter.key(name, each)].double() for each in "AB")
            square = float(((b.T @ b) * (a @ a.T)).sum()) * adapter.scale(name) ** 2
            kind = name.rpartition(".")[2]
            squares[kind] = squares.get(kind, 0.0) + square
    return {kind: math.sqrt(max(0.0, square)) for kind, square in squares.items()}
