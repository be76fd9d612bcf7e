"""Identify base models by their files, and record in an adapter which base model it is for.

Nothing here loads a model: only the headers of safetensors files and the first values of each tensor are read.
"""

import hashlib
import io
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from gumshoe.artifacts.base_models.gguf_conversion import to_bfloat16
from gumshoe.artifacts.hub import find_cached_directory
from gumshoe.artifacts.model_card import BASE_RECORD, CARD
from gumshoe.artifacts.source_files import read_json_model
from gumshoe.artifacts.storage import write_atomically
from gumshoe.environments.recorded import ENVIRONMENT
from gumshoe.errors import UsageError
from gumshoe.json_text import load_json
from gumshoe.rollouts.chat_format.chat_settings import CHAT_SETTINGS
from gumshoe.scenarios.lineage import LINEAGE_FILE
from gumshoe.training.run_spec import ADAPTER_CONFIG, ADAPTER_WEIGHTS, METADATA, base_model
from gumshoe.training.settings import TrainSettings

ADAPTER_FILES = {
    ADAPTER_WEIGHTS: "LoRA matrices, as `peft` and vLLM read them.",
    ADAPTER_CONFIG: "Rank, scale and target modules, as `peft` and vLLM read them.",
    BASE_RECORD: "The base model: its name, a fingerprint of its weights, and their quantization during training.",
    CHAT_SETTINGS: "Chat settings of the training. Evaluation and service use them, and reject others.",
    ENVIRONMENT: "Environment of the training, with its settings. Evaluation and service use it, and reject others.",
    METADATA: "The run: settings, index, scenarios, seed, step, versions of packages, and the last metrics.",
    LINEAGE_FILE: "Digests of the scenarios that the adapter was trained and selected on, which evaluations reject, "
    "and salted hashes of their inboxes, to which the adapter can be bound in service.",
    "tokenizer.json, tokenizer_config.json, chat_template.jinja": "Tokenizer and chat template of the base model.",
    CARD: "Model card: what the adapter is, what it was trained on, how good it is, and how to load it.",
    "gate.json": "Decision of the gate, with its numbers; in published adapters.",
}
"""Description of each file in the directory of an adapter."""
CONFIG = "config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_WITH_IMAGES = "ForConditionalGeneration"  # end of the names of classes that read text and images
_SERVED_EXPERTS = ("gpt_oss", "qwen3_5_moe_text")
"""Values of `model_type` for which vLLM reads LoRA matrices of experts as `peft` writes them (`is_3d_moe_weight`)."""
_COMPARED_VALUES = 2048  # per tensor: enough to tell models apart, and read in a second for a model of 15 GB
_MAX_HEADER = 100_000_000  # bytes, the limit of the safetensors library
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
"""Bytes of a value, by the dtype names of safetensors; 8-bit types that are missing here count as 1."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """The location of a tensor in a safetensors file."""

    file: Path
    dtype: str
    """Name of the dtype in safetensors, e.g. BF16."""
    shape: tuple[int, ...]
    begin: int
    """Offset of the first byte in the file."""
    size: int
    """Size in bytes."""

    def read_first_bytes(self) -> bytes:
        """Return the first values; float16 and float32 are converted to bfloat16, so that copies of a model match."""
        length = min(self.size, _COMPARED_VALUES * BYTES.get(self.dtype, 1))
        with self.file.open("rb") as file:
            file.seek(self.begin)
            raw = file.read(length)
        if self.dtype not in ("F32", "F16"):
            return raw
        found = np.frombuffer(raw, "<f4" if self.dtype == "F32" else "<f2").astype("<f4")
        return to_bfloat16(found).tobytes()


def read_tensor_headers(file: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a safetensors file by name (https://github.com/huggingface/safetensors#format).

    Raises:
        UsageError: the file does not exist, or is damaged.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > min(size, _MAX_HEADER):
                raise ValueError("no safetensors header")
            header = load_json(stream.read(length))
        begin = 8 + length
        found = {name: _read_entry(file, each, begin) for name, each in header.items() if name != "__metadata__"}
    except FileNotFoundError:
        raise UsageError("base-models.file-missing", f"{file} does not exist; download the whole model again") from None
    except (OSError, struct.error, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageError("training.weights-damaged", f"{file} is damaged: {error}; download it again") from None
    end = max((each.begin + each.size for each in found.values()), default=begin)
    if end != size:
        raise UsageError(
            "training.weights-damaged",
            f"{file} is damaged: it has {size:,} bytes, but its header describes {end:,}; download it again",
        )
    return found


def _read_entry(file: Path, entry: Mapping[str, Any], begin: int) -> StoredTensor:
    """Return the tensor that an entry of a header describes. `begin` is the offset of all data.

    Raises:
        ValueError, LookupError, TypeError: the entry is not one.
    """
    dtype, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    numbers = [*shape, start, end, end - start]
    if not isinstance(dtype, str) or any(type(each) is not int or each < 0 for each in numbers):
        raise ValueError(f"{str(entry)[:100]} describes no tensor")
    return StoredTensor(file, dtype, tuple(shape), begin + start, end - start)


def find_tensors(directory: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a model's directory by name, from one file or several.

    Raises:
        UsageError: a file or a tensor is missing, or a file is damaged.
    """
    index = directory / INDEX
    if not index.exists():
        if not (directory / WEIGHTS).exists():
            raise UsageError(
                "base-models.no-safetensors",
                f"{directory} has neither {WEIGHTS} nor {INDEX}; use a base model with weights in safetensors",
            )
        return read_tensor_headers(directory / WEIGHTS)
    try:
        wanted: dict[str, str] = load_json(index.read_bytes())["weight_map"]
        names = sorted(set(wanted.values()))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageError("base-models.index-damaged", f"{index} is damaged: {error}; download it again") from None
    found = {name: each for file in names for name, each in read_tensor_headers(directory / file).items()}
    missing = sorted(wanted.keys() - found.keys())
    if missing:
        raise UsageError(
            "base-models.tensor-missing",
            f"{directory} has no tensor {missing[0]}, which its {INDEX} lists; download the whole model again",
        )
    return found


class AdapterBase(BaseModel):
    """The base model of an adapter, and its quantization while the adapter is trained."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """As in `model.name`, e.g. a directory, a name on the hub, or `tiny`."""
    quantization: Literal["none", "nf4"]
    """Quantization of the base model's weights in training; nf4 is QLoRA (https://arxiv.org/abs/2305.14314)."""
    stored: Literal["full", "quantized"] | None = None
    """Storage of the weights on disk; None if they were not on this machine."""
    fingerprint: str | None = None
    """SHA-256 of names, shapes and first values of all tensors, regardless of how they are split into files."""
    revision: str | None = None
    """Commit on the hub, if it is a model of the hub and was on this machine."""
    outside: str | None = None
    """The same for embeddings, norms and biases only, which quantization does not change."""

    def write(self, directory: Path) -> None:
        """Write this into an adapter's directory."""
        write_atomically(directory / BASE_RECORD, io.BytesIO(self.model_dump_json(indent=2).encode() + b"\n"))

    @classmethod
    def read(cls, directory: Path) -> "AdapterBase | None":
        """Read the base model from an adapter's directory; None if it is not recorded there.

        Raises:
            UsageError: the file cannot be read.
        """
        return read_json_model(cls, directory / BASE_RECORD, "a base model")

    def compare(self, other: "AdapterBase") -> tuple[bool | None, str]:
        """Return True if both have the same weights, or None if that is unknown, and what was compared."""
        if self.fingerprint and other.fingerprint and self.stored == other.stored:
            return self.fingerprint == other.fingerprint, "the weights' fingerprint"
        if self.outside and other.outside:
            return self.outside == other.outside, "the fingerprint of embeddings, norms and biases"
        return None, "names and shapes only, as not both have a fingerprint"


def identify_adapter_base(settings: TrainSettings) -> AdapterBase:
    """Return the base model that an adapter of these settings is for.

    Raises:
        UsageError: the base model's files are damaged.
    """
    return identify_base_model(settings.model.name, base_model(settings), settings.model.quantization)


def check_same_base(settings: TrainSettings) -> None:
    """Check that the adapter to start from, if one is set, was made for the base model of the settings.

    Raises:
        UsageError: the adapter was made for another base model.
    """
    start = settings.lora.start
    known = None if start is None else AdapterBase.read(start)
    if known is None:
        return
    is_same, by = known.compare(identify_adapter_base(settings))
    if is_same is False:
        raise UsageError(
            "adapters.other-base",
            f"lora.start: {start} was made for {known.name}, and {settings.model.name} is another model according to "
            f"{by}; set model.name to the adapter's base model",
        )


def check_servable(settings: TrainSettings) -> None:
    """Check that vLLM can use the adapters of a run, if it runs the rollouts.

    A model that is not on this machine yet is not checked.

    Raises:
        UsageError: vLLM would ignore the adapters, or it reads LoRA matrices of this model's experts in another format
            than `peft` writes.
    """
    directory = find_local_directory(base_model(settings))
    if settings.rollouts.engine != "vllm" or settings.mode == "simple" or directory is None:
        return
    config = read_config(directory)
    kind, stored = str(config.get("model_type")), (config.get("architectures") or [""])[0]
    if stored.endswith(_WITH_IMAGES) and (trained := _find_text_class(kind)) not in {None, stored}:
        raise UsageError(
            "adapters.text-part-not-servable",
            f"{settings.model.name} is stored as {stored}, of which {trained}, the text part, is trained: vLLM would "
            "ignore its adapters without a message. Save the text part as a model, with "
            f"AutoModelForCausalLM.from_pretrained({settings.model.name!r}).save_pretrained('DIR'), and train and "
            "serve DIR; or set rollouts.engine to transformers, for an adapter that vLLM never serves",
        )
    if settings.lora.target_parameters != "none" and kind not in _SERVED_EXPERTS:
        raise UsageError(
            "adapters.experts-not-servable",
            f"lora.target_parameters {settings.lora.target_parameters} with rollouts.engine vllm is supported for "
            f"{', '.join(_SERVED_EXPERTS)}, but model_type of {settings.model.name} is {kind}; set "
            "lora.target_parameters to none, or rollouts.engine to transformers",
        )


def _find_text_class(kind: str) -> str | None:
    """Return the name of the class that transformers loads as a causal language model for a `model_type`."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    found: str | None = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind)
    return found


def identify_base_model(name: str, place: str, quantization: Literal["none", "nf4"]) -> AdapterBase:
    """Identify a base model by its name and its place, a directory or a name on the hub.

    A model on the hub gets a fingerprint only if it is in the local cache.

    Raises:
        UsageError: the model's files are damaged.
    """
    directory = find_local_directory(place)
    if directory is None or not any((directory / each).exists() for each in (WEIGHTS, INDEX)):
        return AdapterBase(name=name, quantization=quantization, revision=directory and _find_commit(directory))
    config, tensors = read_config(directory), find_tensors(directory)
    is_quantized = bool(config.get("quantization_config"))
    fingerprint, outside = _compute_fingerprints(tensors, is_tied=bool(config.get("tie_word_embeddings")))
    return AdapterBase(
        name=name,
        quantization=quantization,
        stored="quantized" if is_quantized else "full",
        fingerprint=fingerprint,
        outside=outside,
        revision=_find_commit(directory),
    )


def _find_commit(directory: Path) -> str | None:
    """Return the commit of a directory in the hub's cache, `models--OWNER--NAME/snapshots/COMMIT`; None for others."""
    snapshots = directory.parent
    is_cached = snapshots.name == "snapshots" and snapshots.parent.name.startswith("models--")
    return directory.name if is_cached else None


def find_local_directory(place: str) -> Path | None:
    """Return the local directory of a model, its own or in the hub's cache; None if it has none. No network is used."""
    directory = Path(place).expanduser()
    if directory.is_dir():
        return directory
    return find_cached_directory(place, CONFIG)


def read_config(directory: Path) -> dict[str, Any]:
    """Read a model's `config.json`.

    Raises:
        UsageError: the file cannot be read, or is not a JSON object.
    """
    path = directory / CONFIG
    try:
        read = load_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(
            "base-models.invalid-config", f"cannot read {path}: {error}; give the directory of a model"
        ) from None
    if not isinstance(read, dict):
        raise UsageError("base-models.invalid-config", f"{path} is not a JSON object; download it again")
    return read


def _compute_fingerprints(tensors: Mapping[str, StoredTensor], *, is_tied: bool) -> tuple[str, str]:
    """Return the fingerprint of all tensors, and that of the tensors that quantization does not change."""
    whole, outside = hashlib.sha256(), hashlib.sha256()
    for name, tensor in _iterate_saved(tensors, is_tied=is_tied):
        content = f"{name} {tensor.shape}\n".encode() + tensor.read_first_bytes()
        whole.update(content)
        if ".weight." not in name and (len(tensor.shape) == 1 or "embed" in name):
            outside.update(content)
    return whole.hexdigest()[:32], outside.hexdigest()[:32]


def _iterate_saved(tensors: Mapping[str, StoredTensor], *, is_tied: bool) -> Iterator[tuple[str, StoredTensor]]:
    """Yield tensors sorted by name, except a tied copy of the embeddings, which is omitted when a model is saved."""
    for name in sorted(tensors):
        if not (is_tied and name == "lm_head.weight"):
            yield name, tensors[name]
