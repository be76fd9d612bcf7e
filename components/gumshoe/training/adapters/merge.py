"""Merge an adapter into its base model's weights, and check the result.

Invariants: the merged model is created in one move, after its logits were compared with those of base model and
adapter. If they differ by more than rounding, nothing is saved. At most one model is in memory at a time.
"""

import gc
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from peft import PeftModel
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from gumshoe.artifacts.storage import StorageError, explain_os_errors, make_writable_directory
from gumshoe.environments.recorded import ENVIRONMENT
from gumshoe.errors import GumshoeError, UsageError
from gumshoe.inference.policy_names import MERGE_RECORD, load_tokenizer
from gumshoe.installation import install_command
from gumshoe.rollouts.chat_format.chat_settings import CHAT_SETTINGS
from gumshoe.rollouts.policy_limits import read_trained_limits
from gumshoe.scenarios.lineage import Lineage
from gumshoe.terminal import progress
from gumshoe.training.adapters.adapter_files import Adapter, check_compatible
from gumshoe.training.models.base_model import INDEX, StoredTensor, find_tensors, read_config
from gumshoe.training.models.lora_model import find_4bit_modules, nf4_config
from gumshoe.training.models.model_files import copy_model_files, describe_origin, fetch_model
from gumshoe.training.planning.gpu_allocation import available_memory

Onto = Literal["full", "nf4"]
"""The weights to merge into: the base model's, or those after quantization to 4 bits and dequantization."""
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_DTYPES_IN_FILES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "BOOL": torch.bool,
}
_NF4 = ".quant_state.bitsandbytes__nf4"
TOLERANCE = {"exact": (1e-3, 1e-4), "weights": (0.25, 0.02), "all": (1.0, 0.05)}
"""Allowed difference of logits, maximum and mean, as shares of their standard deviation: if nothing is rounded to 16
bits, if the weights are, or if all computations are too (rounding errors add up over layers)."""
_TEXT = (
    "On 12 March 2024 the harbour office asked Ann Mercer (ann@example.com) for invoice no. 40-117: £9,200 for the "
    'second quarter, due within 30 days. <tool_call>\n{"name": "search_inbox", "arguments": {"keywords": ["invoice", '
    '"harbour"]}}\n</tool_call>\nShe wrote back at 09:30: “The lease of Mill Lane is in Bob\'s name; he pays it on '
    'the first of each month.”\n\ndef total(rows):\n    return sum(row["amount"] for row in rows)\n'
)
_RANDOM_TOKENS = 96


@dataclass(frozen=True, slots=True)
class MergeReport:
    """Numbers of a merged model. Differences are absolute differences of logits."""

    directory: str
    onto: Onto
    dtype: str
    files: int
    """Number of files with weights."""
    bytes: int
    modules: int
    tokens: int
    """Number of tokens at which logits were compared."""
    largest: float
    """Maximum difference between base model with adapter and merged model."""
    mean: float
    """Mean difference between base model with adapter and merged model."""
    effect: float
    """Mean difference between base model with and without adapter."""
    spread: float
    """Standard deviation of the logits."""
    compared_by: str
    """Method by which the base model was checked to be the adapter's."""

    @property
    def is_lost_in_rounding(self) -> bool:
        """True if rounding removes more than half of the adapter's effect."""
        return self.effect > 0 and self.mean > self.effect / 2


def merge(
    adapter: Path,
    model: str | None,
    out: Path,
    *,
    dtype: Literal["auto", "bfloat16", "float32"] = "auto",
    max_shard_size: str = "5GB",
    onto: Literal["auto", "full", "nf4"] = "auto",
) -> MergeReport:
    """Merge an adapter into its base model's weights, and save the result as a model.

    With `dtype="auto"`, the merged model has the base model's dtype (bfloat16 if that is quantized on disk). With
    `onto="auto"`, the adapter is added to the weights that it was trained on: for QLoRA, the dequantized ones.

    Raises:
        UsageError: adapter or base model does not exist or is damaged; the adapter is for another base model, or cannot
            be merged; the disk is too small; or an argument is invalid.
        GumshoeError: the merged model's logits differ from those of base model and adapter.
        StorageError: the merged model cannot be written.
    """
    disable_progress_bar()  # type: ignore[no-untyped-call]
    _check_free(out)
    source = Adapter.read(adapter)
    _check_adapter(source)
    name = model or (source.base.name if source.base else source.base_path)
    if not name:
        raise UsageError("adapters.base-unknown", f"{adapter} does not name its base model; give it with --model")
    base = _BaseFiles.open(name)
    faults, compared_by = check_compatible(source, name)
    faults += [f"{base.directory} has no tensor {each}" for each in base.find_missing_weight(source)]
    if faults:
        raise UsageError("adapters.other-base", f"{adapter} does not fit {name}: {'; '.join(faults)}")
    plan = _MergePlan.create(source, base, dtype, max_shard_size, onto)
    plan.check_room(out)
    before = _compute_base_logits(base, plan, source)
    gc.collect()  # free the base model
    with _atomic_directory(out) as partial:
        deltas = _load_deltas(source)
        with progress("Merging", total=len(plan.types)) as advance:
            for file, names in plan.files.items():
                weights = {}
                for each in names:
                    weights[each] = _merge_tensor(each, base, plan, deltas, before.quantized)
                    advance(1)
                _save_weights(weights, partial / file)
        _write_rest(partial, base, plan, source)
        after = _compute_merged_logits(partial, base, plan)
        report = _compare(out, plan, source, before, after, compared_by)
        (partial / MERGE_RECORD).write_text(
            json.dumps(_describe_merge(base, name, source, report), indent=2) + "\n", "utf-8"
        )
    return report


def _check_free(out: Path) -> None:
    """Check that a directory can be created in one move.

    Raises:
        UsageError: the directory contains files, or its parent is not writable.
    """
    if not out.name:
        raise UsageError(
            "adapters.output-unnamed", f"--out must be a directory of its own for the merged model, got {str(out)!r}"
        )
    make_writable_directory(str(out.parent))
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise UsageError("adapters.directory-not-empty", f"{out} is not empty; choose another --out")


def _check_adapter(adapter: Adapter) -> None:
    """Check that an adapter consists only of pairs of matrices for linear modules, and is not damaged.

    Raises:
        UsageError: the adapter cannot be merged.
    """
    unsupported = adapter.find_unsupported_parts()
    embeddings = [each for each in adapter.modules if each.endswith(("lm_head", "embed_tokens"))]
    if embeddings or any("lora_embedding" in name for name in adapter.tensors):
        unsupported.append(f"it adapts {embeddings[0] if embeddings else 'embeddings'}, not only linear layers")
    if unsupported:
        raise UsageError(
            "adapters.not-mergeable",
            f"{adapter.directory} cannot be merged: {'; '.join(unsupported)}; merge it with peft",
        )
    faults = [each for each in adapter.find_layout_faults() if "Unsloth" not in each]
    if faults:
        raise UsageError("adapters.damaged", f"{adapter.directory} is damaged: {'; '.join(faults)}; save it again")
    broken = [name for name, each in adapter.weights().items() if not bool(torch.isfinite(each).all())]
    if broken:
        raise UsageError(
            "adapters.not-finite",
            f"{adapter.directory} has weights that are NaN or infinite, e.g. in {broken[0]}; train it again",
        )


@dataclass(frozen=True, slots=True)
class _BaseFiles:
    """The files of a base model."""

    name: str
    directory: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]
    quantized: frozenset[str]
    """Names of the tensors that bitsandbytes stored in 4 bits."""

    @classmethod
    def open(cls, name: str) -> "_BaseFiles":
        """Open a base model, and download it if necessary.

        Raises:
            UsageError: the model does not exist, lacks a tokenizer, or is quantized in another format.
        """
        directory = fetch_model(name)
        config, tensors = read_config(directory), find_tensors(directory)
        how = config.get("quantization_config") or {}
        if how and not (how.get("quant_method") == "bitsandbytes" and how.get("load_in_4bit")):
            raise UsageError(
                "base-models.unsupported-quantization",
                f"{name} is quantized with {how.get('quant_method', 'an unknown method')}: of quantized weights, only "
                "those of bitsandbytes in four bits can be merged into; use the full weights",
            )
        quantized = frozenset(each.removesuffix(_NF4) for each in tensors if each.endswith(_NF4))
        if how and not quantized:
            raise UsageError(
                "base-models.unsupported-quantization",
                f"{name} is marked as quantized, but no tensor of it is in NF4; use the full weights",
            )
        return cls(name, directory, config, tensors, quantized)

    def find_missing_weight(self, adapter: Adapter) -> list[str]:
        """Return the first weight that the adapter changes and the model does not have, as a list of at most one."""
        return [name for each in adapter.modules if (name := f"{each}.weight") not in self.tensors][:1]

    @property
    def weights(self) -> list[str]:
        """Names of the model's weights, without the tensors that describe quantization."""
        return [name for name in self.tensors if not self.quantized.intersection(_name_prefixes(name))]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor, after dequantization if it is stored in 4 bits."""
        if name not in self.quantized:
            return self.tensors[name].shape
        return tuple(json.loads(self.tensors[f"{name}{_NF4}"].read_first_bytes())["shape"])

    def tensor(self, name: str) -> torch.Tensor:
        """Load a tensor as it is stored; one in 4 bits is dequantized to bfloat16.

        Raises:
            UsageError: the file of the tensor is damaged.
        """
        try:
            with safe_open(self.tensors[name].file, framework="pt") as file:
                found: torch.Tensor = file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise UsageError(
                "training.weights-damaged", f"{self.tensors[name].file} is damaged: {error}; download it again"
            ) from None
        if name not in self.quantized:
            return found
        from bitsandbytes.functional import QuantState, dequantize_4bit

        about = {each: self.tensor(each) for each in self.tensors if each.startswith(f"{name}.")}
        state = QuantState.from_dict(about, device=torch.device("cpu"))
        return _to_bfloat16(dequantize_4bit(found, state))


def _name_prefixes(name: str) -> Iterator[str]:
    """Yield the prefixes of a tensor's name that end before a dot, and the name itself."""
    parts = name.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts)))


def _to_bfloat16(weights: torch.Tensor) -> torch.Tensor:
    """Convert dequantized weights to bfloat16, as QLoRA does."""
    return weights.to(torch.bfloat16)


@dataclass(frozen=True, slots=True)
class _MergePlan:
    """The tensors, dtypes and files of a merged model."""

    onto: Onto
    dtype: str
    """The dtype of most weights."""
    types: Mapping[str, torch.dtype]
    """Dtype of each tensor, in the order of the base model."""
    files: Mapping[str, list[str]]
    """Names of the tensors in each file."""
    place: Mapping[str, str]
    """File of each tensor."""
    size: int
    """Size of all weights in bytes."""
    computed: torch.dtype
    """Dtype in which logits are computed."""

    @classmethod
    def create(cls, adapter: Adapter, base: _BaseFiles, dtype: str, max_shard_size: str, onto: str) -> "_MergePlan":
        """Decide dtypes and files.

        Raises:
            UsageError: an argument is invalid, or the base model has an unsupported dtype.
        """
        trained_on = adapter.base
        if onto == "full" and base.quantized:
            raise UsageError(
                "adapters.base-quantized",
                f"{base.name} is stored in four bits, but --onto is full; omit --onto, or use the full weights",
            )
        if onto == "auto":
            was_quantized = trained_on is not None and (
                trained_on.quantization == "nf4" or trained_on.stored == "quantized"
            )
            onto = "nf4" if base.quantized or was_quantized else "full"
        if onto == "nf4" and find_spec("bitsandbytes") is None:
            raise UsageError(
                "training.package-missing",
                f"4-bit weights require bitsandbytes, which is not installed: {install_command(extra='qlora')}",
            )
        tensors: dict[str, torch.Tensor] = {}
        for name in base.weights:
            tensor = base.tensors[name]
            own = torch.bfloat16 if name in base.quantized else _DTYPES_IN_FILES.get(tensor.dtype)
            if own is None:
                raise UsageError(
                    "base-models.unsupported-dtype",
                    f"{base.name}: tensor {name} has the unsupported dtype {tensor.dtype}; convert the model first",
                )
            if own.is_floating_point:
                own = _DTYPES.get(dtype, torch.bfloat16 if base.quantized else own)
            tensors[name] = torch.empty(base.shape(name), dtype=own, device="meta")
        try:
            split = split_torch_state_dict_into_shards(tensors, max_shard_size=max_shard_size)
        except ValueError as error:
            raise UsageError(
                "adapters.invalid-shard-size",
                f"--max-shard-size must be a size such as 5GB, got {max_shard_size}: {error}",
            ) from None
        sizes: dict[torch.dtype, int] = {}
        for each in tensors.values():
            sizes[each.dtype] = sizes.get(each.dtype, 0) + each.nbytes
        return cls(
            "nf4" if onto == "nf4" else "full",
            str(max(sizes, key=lambda each: sizes[each])).removeprefix("torch."),
            {name: each.dtype for name, each in tensors.items()},
            split.filename_to_tensors,
            split.tensor_to_filename,
            sum(sizes.values()),
            _choose_compute_dtype(sum(each.numel() for each in tensors.values())),
        )

    @property
    def tolerance_key(self) -> str:
        """Key of `TOLERANCE`: what is rounded to 16 bits. Dequantized weights always are."""
        if self.computed is torch.bfloat16:
            return "all"
        return "exact" if self.dtype == "float32" and self.onto == "full" else "weights"

    def check_room(self, out: Path) -> None:
        """Check that the disk has enough free space for the merged model.

        Raises:
            UsageError: the free space is too small.
        """
        needed, free = self.size + (16 << 20), shutil.disk_usage(out.parent).free  # 16 MiB for tokenizer and configs
        if needed > free:
            raise UsageError(
                "adapters.disk-too-small",
                f"the merged model needs {needed / 1e6:,.0f} MB, but the disk of {out.parent} has {free / 1e6:,.0f} MB "
                "free; free space, or choose another --out",
            )


def _choose_compute_dtype(parameters: int) -> torch.dtype:
    """Return float32, or bfloat16 if the model would take more than half of the available memory."""
    memory = available_memory()
    return torch.float32 if memory is None or 4 * parameters <= memory / 2 else torch.bfloat16


@dataclass(frozen=True, slots=True)
class _BaseLogits:
    """Logits of the base model."""

    alone: torch.Tensor
    """[tokens, vocabulary], without the adapter."""
    adapted: torch.Tensor
    """[tokens, vocabulary], with the adapter."""
    quantized: frozenset[str]
    """Names of the weights that were quantized to 4 bits when the model was loaded."""


def _compute_base_logits(base: _BaseFiles, plan: _MergePlan, adapter: Adapter) -> _BaseLogits:
    """Compute the logits of the base model without the adapter and with it, using `peft`."""
    options = {"quantization_config": nf4_config()} if plan.onto == "nf4" and not base.quantized else {}
    model = _load_model(base.directory, plan.computed, **options)
    quantized = find_4bit_modules(model)
    for each in quantized.values():
        each.compute_dtype, each.support_avx512bf16_for_cpu = plan.computed, False  # the latter would round to 16 bits
    tokens = _test_sequences(base)
    alone = _run_model(model, tokens)
    adapted = _run_model(PeftModel.from_pretrained(model, str(adapter.directory)), tokens)
    return _BaseLogits(alone, adapted, frozenset(f"{name}.weight" for name in quantized) - base.quantized)


def _load_model(directory: Path, dtype: torch.dtype, **more: Any) -> Any:
    """Load a model for inference.

    Raises:
        UsageError: the model cannot be loaded.
    """
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(str(directory), dtype=dtype, local_files_only=True, **more)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise UsageError(
            "base-models.not-loadable", f"cannot load {directory}: {' '.join(str(error).split())}"
        ) from None
    return model.eval()


def _compute_merged_logits(directory: Path, base: _BaseFiles, plan: _MergePlan) -> torch.Tensor:
    """Load the merged model, and compute its logits.

    Raises:
        GumshoeError: its tokenizer differs from the base model's.
    """
    tokens = _test_sequences(base)
    if not torch.equal(_text_ids(directory), tokens[0]):
        raise GumshoeError(
            "adapters.merged-tokenizer-differs",
            "the merged model's tokenizer gives other tokens than the base model's; nothing was saved",
        )
    return _run_model(_load_model(directory, plan.computed), tokens)


def _text_ids(directory: Path) -> torch.Tensor:
    ids: list[int] = load_tokenizer(directory).encode(_TEXT, add_special_tokens=False)
    return torch.tensor(ids)


def _test_sequences(base: _BaseFiles) -> list[torch.Tensor]:
    """Return the token ids of a text, and random ids, which cover weights that training has hardly changed."""
    text = _text_ids(base.directory)
    generator = torch.Generator().manual_seed(0)
    vocabulary = len(load_tokenizer(base.directory))
    return [text, torch.randint(vocabulary, (_RANDOM_TOKENS,), generator=generator)]


@torch.no_grad()
def _run_model(model: Any, sequences: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the logits at all tokens of the sequences, concatenated: [tokens, vocabulary]."""
    return torch.cat([model(input_ids=ids[None].to(model.device)).logits[0].float().cpu() for ids in sequences])


@dataclass(frozen=True, slots=True)
class _Delta:
    """The change of one weight by an adapter."""

    a: torch.Tensor
    """[rank, in]"""
    b: torch.Tensor
    """[out, rank]"""
    scale: float
    is_transposed: bool
    """The weight is [in, out]."""

    def add_to(self, weights: torch.Tensor) -> torch.Tensor:
        """Return the sum of weights and change, in float32."""
        product = self.scale * (self.b.float() @ self.a.float())
        return weights.float() + (product.T if self.is_transposed else product)


def _load_deltas(adapter: Adapter) -> dict[str, _Delta]:
    """Load the changes of an adapter, by the name of the weight."""
    weights, is_transposed = adapter.weights(), bool(adapter.config.get("fan_in_fan_out"))
    return {
        f"{name}.weight": _Delta(
            weights[adapter.key(name, "A")], weights[adapter.key(name, "B")], adapter.scale(name), is_transposed
        )
        for name in adapter.modules
    }


def _merge_tensor(
    name: str, base: _BaseFiles, plan: _MergePlan, deltas: Mapping[str, _Delta], quantized: frozenset[str]
) -> torch.Tensor:
    """Return one tensor of the merged model."""
    weights = base.tensor(name)
    if name in quantized:
        weights = _round_trip_4bit(weights.to(plan.computed))
    if name in deltas:
        weights = deltas[name].add_to(weights)
    return weights.to(plan.types[name]).contiguous()


def _round_trip_4bit(weights: torch.Tensor) -> torch.Tensor:
    """Quantize weights to 4 bits as `nf4_config` does, and dequantize them."""
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    quantized, state = quantize_4bit(weights, compress_statistics=True, quant_type="nf4")
    return _to_bfloat16(dequantize_4bit(quantized, state))


def _save_weights(weights: dict[str, torch.Tensor], file: Path) -> None:
    """Save weights to a safetensors file.

    Raises:
        StorageError: the file cannot be written.
    """
    try:
        with explain_os_errors(file):
            save_file(weights, file, metadata={"format": "pt"})
    except SafetensorError as error:
        raise StorageError("adapters.merge-not-written", f"cannot write {file}: {error}; check its disk") from None


def _write_rest(partial: Path, base: _BaseFiles, plan: _MergePlan, adapter: Adapter) -> None:
    """Write all files of the merged model except the weights."""
    lineage = _combine_lineages(Lineage.read(adapter.directory), Lineage.read(base.directory))
    with explain_os_errors(partial):
        if len(plan.files) > 1:
            index = {"metadata": {"total_size": plan.size}, "weight_map": plan.place}
            (partial / INDEX).write_text(json.dumps(index, indent=2) + "\n", "utf-8")
        copy_model_files(base.directory, partial, plan.dtype)
        for name in (CHAT_SETTINGS, ENVIRONMENT):
            if (adapter.directory / name).exists():
                shutil.copyfile(adapter.directory / name, partial / name)
        if lineage is not None:
            lineage.write(partial)


def _combine_lineages(own: Lineage | None, before: Lineage | None) -> Lineage | None:
    """Return a lineage that covers both."""
    if own is None or before is None or before.questions <= own.questions:
        return own or before
    return own.model_copy(update={"before": _combine_lineages(own.before, before)})


def _compare(
    out: Path, plan: _MergePlan, adapter: Adapter, before: _BaseLogits, after: torch.Tensor, compared_by: str
) -> MergeReport:
    """Compare the logits before and after merging, and return the report.

    Raises:
        GumshoeError: the logits differ by more than rounding explains, or are not finite.
    """
    difference = (after - before.adapted).abs()
    report = MergeReport(
        directory=str(out),
        onto=plan.onto,
        dtype=plan.dtype,
        files=len(plan.files),
        bytes=plan.size,
        modules=len(adapter.modules),
        tokens=len(after),
        largest=float(difference.max()),
        mean=float(difference.mean()),
        effect=float((before.adapted - before.alone).abs().mean()),
        spread=float(before.adapted.std()),
        compared_by=compared_by,
    )
    largest, mean = TOLERANCE[plan.tolerance_key]
    if not (report.largest <= largest * report.spread and report.mean <= mean * report.spread):
        raise GumshoeError(
            "adapters.merge-differs",
            f"the merged model does not match base model and adapter: logits differ by {report.largest:.3g} at most "
            f"and {report.mean:.3g} on average, but rounding explains only {largest * report.spread:.3g} and "
            f"{mean * report.spread:.3g}; nothing was saved",
        )
    return report


def _describe_merge(base: _BaseFiles, name: str, adapter: Adapter, report: MergeReport) -> dict[str, Any]:
    """Return the facts that are stored beside a merged model."""
    facts = {each: value for each, value in asdict(report).items() if each != "directory"}
    limits = read_trained_limits(adapter.directory) or read_trained_limits(base.directory)
    return {
        **describe_origin(name, base.directory),
        "learned_on": adapter.base.quantization if adapter.base else None,
        "limits": limits and asdict(limits),
        **facts,
    }


@contextmanager
def _atomic_directory(out: Path) -> Iterator[Path]:
    """Yield a temporary directory that is renamed to `out` after the block, or deleted if the block fails."""
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with explain_os_errors(partial):
            partial.mkdir()
        yield partial
        with explain_os_errors(out):
            partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
