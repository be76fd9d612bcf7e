"""An adapter put into its base model's weights, and seen to say what both said together.

What always holds: a merged model appears whole, in one move, after its logits have been held against those of the base
model with the adapter on it; where they differ by more than rounding does, nothing is left of it. No more than one
model is in memory at a time.
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
from huggingface_hub import snapshot_download, split_torch_state_dict_into_shards
from peft import PeftModel
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from gumshoe.artifacts.hub import find_model
from gumshoe.artifacts.storage import StorageError, explain_os_errors, make_writable_directory
from gumshoe.errors import GumshoeError, UsageError
from gumshoe.inference.policy_names import MERGE_RECORD, is_tiny, load_tokenizer
from gumshoe.scenarios.lineage import Lineage
from gumshoe.terminal import progress
from gumshoe.training.adapters.adapter_files import Adapter, check_compatible
from gumshoe.training.models.base_model import (
    CONFIG,
    INDEX,
    StoredTensor,
    find_tensors,
    identify_base_model,
    read_config,
)
from gumshoe.training.models.lora_model import find_4bit_modules, nf4_config
from gumshoe.training.planning.gpu_allocation import available_memory
from gumshoe.training.run_spec import resolve_model

Onto = Literal["full", "nf4"]
"""What an adapter is added to: the base model's weights, or those as they come back from four bits."""
_KEPT = (  # of the base model's directory, byte for byte
    "generation_config.json",
    "tokenizer*",
    "chat_template*",
    "additional_chat_templates",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "*.model",
    "LICENSE*",
    "NOTICE*",
)
_FETCHED = (CONFIG, "*.safetensors", INDEX, *_KEPT)
_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_OF_FILES = {
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
"""By how much logits may differ, at most and in the mean, as shares of their standard deviation, where nothing is
rounded to 16 bits, or the weights are, or all that is computed with them too: it adds up from layer to layer."""
_TEXT = (
    "On 12 March 2024 the harbour office asked Ann Mercer (ann@example.com) for invoice no. 40-117: £9,200 for the "
    'second quarter, due within 30 days. <tool_call>\n{"name": "search_inbox", "arguments": {"keywords": ["invoice", '
    '"harbour"]}}\n</tool_call>\nShe wrote back at 09:30: “The lease of Mill Lane is in Bob\'s name; he pays it on '
    'the first of each month.”\n\ndef total(rows):\n    return sum(row["amount"] for row in rows)\n'
)
_RANDOM_TOKENS = 96


@dataclass(frozen=True, slots=True)
class MergeReport:
    """A merged model. Differences are between logits."""

    directory: str
    onto: Onto
    dtype: str
    files: int
    """That hold weights."""
    bytes: int
    modules: int
    tokens: int
    """At whose logits the models were compared."""
    largest: float
    mean: float
    """Of base model and adapter before, and the merged model after; absolute."""
    effect: float
    """The mean of what the adapter changes, absolute."""
    spread: float
    """Standard deviation of the logits."""
    compared_by: str
    """What told that it is the adapter's base model."""

    @property
    def is_lost_in_rounding(self) -> bool:
        """Whether rounding takes more than half of what the adapter changes."""
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
    """Add an adapter to its base model's weights, and save what comes of it as a model of its own.

    `auto` keeps the base model's own type (bfloat16 where that lies quantized on the disk), and adds to the weights
    that the adapter learned on: those that come back from four bits, for QLoRA.

    Raises:
        UsageError: one of them is not there, or damaged; the adapter is for another base model, or not of a kind that
            can be merged; there is no room; or the settings cannot be.
        GumshoeError: the merged model's logits are others than those of base model and adapter.
        StorageError: it cannot be written.
    """
    disable_progress_bar()  # type: ignore[no-untyped-call]
    _check_free(out)
    source = Adapter.read(adapter)
    _check_adapter(source)
    name = model or (source.base.name if source.base else source.base_path)
    if not name:
        raise UsageError("adapters.base-unknown", f"{adapter} does not name its base model; give it with --model")
    base = _Base.open(name)
    faults, compared_by = check_compatible(source, name)
    faults += [f"{base.directory} has no tensor {each}" for each in base.lacking(source)]
    if faults:
        raise UsageError("adapters.other-base", f"{adapter} does not fit {name}: {'; '.join(faults)}")
    plan = _MergePlan.made(source, base, dtype, max_shard_size, onto)
    plan.check_room(out)
    before = _logits(base, plan, source)
    gc.collect()  # what the base model was
    with _appearing(out) as partial:
        deltas = _deltas(source)
        with progress("Merging", total=len(plan.types)) as advance:
            for file, names in plan.files.items():
                weights = {}
                for each in names:
                    weights[each] = _merged(each, base, plan, deltas, before.quantized)
                    advance(1)
                _save(weights, partial / file)
        _write_rest(partial, base, plan, source)
        after = _saved_logits(partial, base, plan)
        report = _compared(out, plan, source, before, after, compared_by)
        (partial / MERGE_RECORD).write_text(json.dumps(_origin(base, name, source, report), indent=2) + "\n", "utf-8")
    return report


def _check_free(out: Path) -> None:
    """
    Raises:
        UsageError: the directory holds files, or its parent takes none.
    """
    if not out.name:
        raise UsageError(
            "adapters.output-unnamed", f"--out must be a directory of its own for the merged model, got {str(out)!r}"
        )
    make_writable_directory(str(out.parent))
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise UsageError("adapters.directory-not-empty", f"{out} is not empty; choose another --out")


def _check_adapter(adapter: Adapter) -> None:
    """
    Raises:
        UsageError: it is not made of pairs of matrices for linear modules alone, or is damaged.
    """
    unlike = adapter.find_unsupported_parts()
    ends = [each for each in adapter.modules if each.endswith(("lm_head", "embed_tokens"))]
    if ends or any("lora_embedding" in name for name in adapter.tensors):
        unlike.append(f"it adapts {ends[0] if ends else 'embeddings'}, not only linear layers")
    if unlike:
        raise UsageError(
            "adapters.not-mergeable", f"{adapter.directory} cannot be merged: {'; '.join(unlike)}; merge it with peft"
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
class _Base:
    """A base model's files."""

    name: str
    directory: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]
    quantized: frozenset[str]
    """Tensors that lie there in four bits, by bitsandbytes."""

    @classmethod
    def open(cls, name: str) -> "_Base":
        place = find_model(resolve_model(name), CONFIG)
        directory = Path(place.name)
        if not directory.is_dir():
            directory = Path(
                snapshot_download(place.name, allow_patterns=[*_FETCHED], local_files_only=place.local_files_only)
            )
        config, tensors = read_config(directory), find_tensors(directory)
        if not (directory / "tokenizer.json").exists():
            raise UsageError(
                "base-models.no-tokenizer", f"{directory} has no tokenizer.json, which the merged model needs; add it"
            )
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

    def lacking(self, adapter: Adapter) -> list[str]:
        """What the adapter is to be added to and is not there by that name."""
        return [name for each in adapter.modules if (name := f"{each}.weight") not in self.tensors][:1]

    @property
    def weights(self) -> list[str]:
        """The model's own tensors, without those that only say how others are quantized."""
        return [name for name in self.tensors if not self.quantized.intersection(_parents(name))]

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a tensor; of one in four bits, as it comes back."""
        if name not in self.quantized:
            return self.tensors[name].shape
        return tuple(json.loads(self.tensors[f"{name}{_NF4}"].read_first_bytes())["shape"])

    def tensor(self, name: str) -> torch.Tensor:
        """As it lies there; one in four bits comes back as bfloat16.

        Raises:
            UsageError: its file is damaged.
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
        return _back(dequantize_4bit(found, state))


def _parents(name: str) -> Iterator[str]:
    """The names that a tensor's name begins with, up to a dot."""
    parts = name.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts)))


def _back(weights: torch.Tensor) -> torch.Tensor:
    """As QLoRA computes with what comes back from four bits."""
    return weights.to(torch.bfloat16)


@dataclass(frozen=True, slots=True)
class _MergePlan:
    """What is written."""

    onto: Onto
    dtype: str
    """That most weights have."""
    types: Mapping[str, torch.dtype]
    """Of each tensor, in the order of the base model's."""
    files: Mapping[str, list[str]]
    """What each holds."""
    place: Mapping[str, str]
    """The file of each tensor."""
    size: int
    """Bytes."""
    computed: torch.dtype
    """What the logits are computed in."""

    @classmethod
    def made(cls, adapter: Adapter, base: _Base, dtype: str, max_shard_size: str, onto: str) -> "_MergePlan":
        learned = adapter.base
        if onto == "full" and base.quantized:
            raise UsageError(
                "adapters.base-quantized",
                f"{base.name} is stored in four bits, but --onto is full; omit --onto, or use the full weights",
            )
        if onto == "auto":
            on_four = learned is not None and (learned.quantization == "nf4" or learned.stored == "quantized")
            onto = "nf4" if base.quantized or on_four else "full"
        if onto == "nf4" and find_spec("bitsandbytes") is None:
            raise UsageError(
                "training.package-missing",
                "4-bit weights require bitsandbytes, which is not installed: pip install 'gumshoe-agents[qlora]'",
            )
        made: dict[str, torch.Tensor] = {}
        for name in base.weights:
            tensor = base.tensors[name]
            own = torch.bfloat16 if name in base.quantized else _OF_FILES.get(tensor.dtype)
            if own is None:
                raise UsageError(
                    "base-models.unsupported-dtype",
                    f"{base.name}: tensor {name} has the unsupported dtype {tensor.dtype}; convert the model first",
                )
            if own.is_floating_point:
                own = _TYPES.get(dtype, torch.bfloat16 if base.quantized else own)
            made[name] = torch.empty(base.shape(name), dtype=own, device="meta")
        try:
            split = split_torch_state_dict_into_shards(made, max_shard_size=max_shard_size)
        except ValueError as error:
            raise UsageError(
                "adapters.invalid-shard-size",
                f"--max-shard-size must be a size such as 5GB, got {max_shard_size}: {error}",
            ) from None
        sizes: dict[torch.dtype, int] = {}
        for each in made.values():
            sizes[each.dtype] = sizes.get(each.dtype, 0) + each.nbytes
        return cls(
            "nf4" if onto == "nf4" else "full",
            str(max(sizes, key=lambda each: sizes[each])).removeprefix("torch."),
            {name: each.dtype for name, each in made.items()},
            split.filename_to_tensors,
            split.tensor_to_filename,
            sum(sizes.values()),
            _computed_in(sum(each.numel() for each in made.values())),
        )

    @property
    def rounded(self) -> str:
        """What is rounded to 16 bits, for `TOLERANCE`; what comes back from four bits is."""
        if self.computed is torch.bfloat16:
            return "all"
        return "exact" if self.dtype == "float32" and self.onto == "full" else "weights"

    def check_room(self, out: Path) -> None:
        """
        Raises:
            UsageError: the disk has none for it.
        """
        needed, free = self.size + (16 << 20), shutil.disk_usage(out.parent).free  # and some for tokenizer and rest
        if needed > free:
            raise UsageError(
                "adapters.disk-too-small",
                f"the merged model needs {needed / 1e6:,.0f} MB, but the disk of {out.parent} has {free / 1e6:,.0f} MB "
                "free; free space, or choose another --out",
            )


def _computed_in(parameters: int) -> torch.dtype:
    """Float32, but for models that would take more than half of the memory that is there."""
    memory = available_memory()
    return torch.float32 if memory is None or 4 * parameters <= memory / 2 else torch.bfloat16


@dataclass(frozen=True, slots=True)
class _Before:
    """What the base model says."""

    alone: torch.Tensor
    """[tokens, vocabulary]"""
    adapted: torch.Tensor
    quantized: frozenset[str]
    """Weights that were put into four bits as it was loaded."""


def _logits(base: _Base, plan: _MergePlan, adapter: Adapter) -> _Before:
    """Of the base model, without the adapter and with it, as `peft` computes them."""
    four = {"quantization_config": nf4_config()} if plan.onto == "nf4" and not base.quantized else {}
    model = _loaded(base.directory, plan.computed, **four)
    quantized = find_4bit_modules(model)
    for each in quantized.values():
        each.compute_dtype, each.support_avx512bf16_for_cpu = plan.computed, False  # which would round to 16 bits
    tokens = _tokens(base)
    alone = _said(model, tokens)
    adapted = _said(PeftModel.from_pretrained(model, str(adapter.directory)), tokens)
    return _Before(alone, adapted, frozenset(f"{name}.weight" for name in quantized) - base.quantized)


def _loaded(directory: Path, dtype: torch.dtype, **more: Any) -> Any:
    """
    Raises:
        UsageError: it cannot be loaded.
    """
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(str(directory), dtype=dtype, local_files_only=True, **more)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise UsageError(
            "base-models.not-loadable", f"cannot load {directory}: {' '.join(str(error).split())}"
        ) from None
    return model.eval()


def _saved_logits(directory: Path, base: _Base, plan: _MergePlan) -> torch.Tensor:
    """Of the merged model, loaded anew.

    Raises:
        GumshoeError: it has another tokenizer.
    """
    tokens = _tokens(base)
    if not torch.equal(_text_ids(directory), tokens[0]):
        raise GumshoeError(
            "adapters.merged-tokenizer-differs",
            "the merged model's tokenizer gives other tokens than the base model's; nothing was saved",
        )
    return _said(_loaded(directory, plan.computed), tokens)


def _text_ids(directory: Path) -> torch.Tensor:
    ids: list[int] = load_tokenizer(directory).encode(_TEXT, add_special_tokens=False)
    return torch.tensor(ids)


def _tokens(base: _Base) -> list[torch.Tensor]:
    """Of a text, and of chance: what training has hardly touched is looked at too."""
    text = _text_ids(base.directory)
    dice = torch.Generator().manual_seed(0)
    highest = len(load_tokenizer(base.directory))
    return [text, torch.randint(highest, (_RANDOM_TOKENS,), generator=dice)]


@torch.no_grad()
def _said(model: Any, sequences: Sequence[torch.Tensor]) -> torch.Tensor:
    """The logits at every token of some sequences, one after another: [tokens, vocabulary]."""
    return torch.cat([model(input_ids=ids[None].to(model.device)).logits[0].float().cpu() for ids in sequences])


@dataclass(frozen=True, slots=True)
class _Delta:
    """What is added to a weight."""

    a: torch.Tensor
    """[rank, in]"""
    b: torch.Tensor
    """[out, rank]"""
    scale: float
    is_turned: bool
    """The weight is [in, out]."""

    def to(self, weights: torch.Tensor) -> torch.Tensor:
        """Their sum, in float32."""
        product = self.scale * (self.b.float() @ self.a.float())
        return weights.float() + (product.T if self.is_turned else product)


def _deltas(adapter: Adapter) -> dict[str, _Delta]:
    """By the name of the weight."""
    weights, is_turned = adapter.weights(), bool(adapter.config.get("fan_in_fan_out"))
    return {
        f"{name}.weight": _Delta(
            weights[adapter.key(name, "A")], weights[adapter.key(name, "B")], adapter.scale(name), is_turned
        )
        for name in adapter.modules
    }


def _merged(
    name: str, base: _Base, plan: _MergePlan, deltas: Mapping[str, _Delta], quantized: frozenset[str]
) -> torch.Tensor:
    """One tensor of the merged model."""
    weights = base.tensor(name)
    if name in quantized:
        weights = _through_four_bits(weights.to(plan.computed))
    if name in deltas:
        weights = deltas[name].to(weights)
    return weights.to(plan.types[name]).contiguous()


def _through_four_bits(weights: torch.Tensor) -> torch.Tensor:
    """As `nf4_config` stores them, and back again."""
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    four, state = quantize_4bit(weights, compress_statistics=True, quant_type="nf4")
    return _back(dequantize_4bit(four, state))


def _save(weights: dict[str, torch.Tensor], file: Path) -> None:
    """
    Raises:
        StorageError: it cannot be written.
    """
    try:
        with explain_os_errors(file):
            save_file(weights, file, metadata={"format": "pt"})
    except SafetensorError as error:
        raise StorageError("adapters.merge-not-written", f"cannot write {file}: {error}; check its disk") from None


def _write_rest(partial: Path, base: _Base, plan: _MergePlan, adapter: Adapter) -> None:
    """All but the weights."""
    config = {name: each for name, each in base.config.items() if name not in ("quantization_config", "torch_dtype")}
    lineage = _lineage(Lineage.read(adapter.directory), Lineage.read(base.directory))
    with explain_os_errors(partial):
        (partial / CONFIG).write_text(json.dumps({**config, "dtype": plan.dtype}, indent=2) + "\n", "utf-8")
        if len(plan.files) > 1:
            index = {"metadata": {"total_size": plan.size}, "weight_map": plan.place}
            (partial / INDEX).write_text(json.dumps(index, indent=2) + "\n", "utf-8")
        for found in sorted({each for form in _KEPT for each in base.directory.glob(form)}):
            if found.is_dir():
                shutil.copytree(found, partial / found.name, copy_function=shutil.copyfile)
            else:
                shutil.copyfile(found, partial / found.name)
        if lineage is not None:
            lineage.write(partial)


def _lineage(own: Lineage | None, before: Lineage | None) -> Lineage | None:
    """What both have seen."""
    if own is None or before is None or before.questions <= own.questions:
        return own or before
    return own.model_copy(update={"before": _lineage(own.before, before)})


def _compared(
    out: Path, plan: _MergePlan, adapter: Adapter, before: _Before, after: torch.Tensor, compared_by: str
) -> MergeReport:
    """
    Raises:
        GumshoeError: the logits differ by more than rounding does, or are no numbers.
    """
    apart = (after - before.adapted).abs()
    report = MergeReport(
        directory=str(out),
        onto=plan.onto,
        dtype=plan.dtype,
        files=len(plan.files),
        bytes=plan.size,
        modules=len(adapter.modules),
        tokens=len(after),
        largest=float(apart.max()),
        mean=float(apart.mean()),
        effect=float((before.adapted - before.alone).abs().mean()),
        spread=float(before.adapted.std()),
        compared_by=compared_by,
    )
    largest, mean = TOLERANCE[plan.rounded]
    if not (report.largest <= largest * report.spread and report.mean <= mean * report.spread):
        raise GumshoeError(
            "adapters.merge-differs",
            f"the merged model does not match base model and adapter: logits differ by {report.largest:.3g} at most "
            f"and {report.mean:.3g} on average, but rounding explains only {largest * report.spread:.3g} and "
            f"{mean * report.spread:.3g}; nothing was saved",
        )
    return report


def _origin(base: _Base, name: str, adapter: Adapter, report: MergeReport) -> dict[str, Any]:
    """What is said of a merged model, beside it."""
    root = "tiny" if is_tiny(resolve_model(name)) else name
    if root != "tiny" and (base.directory / MERGE_RECORD).exists():
        root = json.loads((base.directory / MERGE_RECORD).read_bytes())["origin"]
    told = {each: value for each, value in asdict(report).items() if each != "directory"}
    return {
        "origin": root,
        "base": identify_base_model(name, str(base.directory), "none").model_dump(mode="json"),
        "learned_on": adapter.base.quantization if adapter.base else None,
        **told,
    }


@contextmanager
def _appearing(out: Path) -> Iterator[Path]:
    """A directory beside another, which takes its place in one move when the block is left; or goes."""
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
