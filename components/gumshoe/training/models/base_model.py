"""What an adapter is for: the files of a base model, which base model they are, and what an adapter says of its own.

Nothing here loads a model: of its safetensors files the headers are read, and the beginning of each tensor.
"""

import hashlib
import io
import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from gumshoe.artifacts.source_files import read_model
from gumshoe.artifacts.storage import write_atomically
from gumshoe.errors import UsageError
from gumshoe.training.run_spec import base_model
from gumshoe.training.settings import TrainSettings

BASE = "base_model.json"
"""In the directory of each adapter that is trained or made here, beside what `peft` writes."""
CONFIG = "config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_LOOKED_AT = 2048  # values of each tensor: enough to tell models apart, and read in a second of 15 GB
_LONGEST_HEADER = 100_000_000  # bytes, as the library of safetensors has it
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
"""Of a value, by the names that safetensors has for types; the sorts of 8 bits that are not here count as 1."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies."""

    file: Path
    dtype: str
    """As safetensors names it: BF16."""
    shape: tuple[int, ...]
    begin: int
    """The place of its first byte in the file."""
    size: int
    """Bytes."""

    def beginning(self) -> bytes:
        """Its first values; numbers of 16 and 32 bits as bfloat16, so that a copy of another precision has the same."""
        length = min(self.size, _LOOKED_AT * BYTES.get(self.dtype, 1))
        with self.file.open("rb") as file:
            file.seek(self.begin)
            raw = file.read(length)
        if self.dtype not in ("F32", "F16"):
            return raw
        found = np.frombuffer(raw, "<f4" if self.dtype == "F32" else "<f2").astype("<f4").view("<u4")
        return bytes(((found + 0x7FFF + ((found >> 16) & 1)) >> 16).astype("<u2").tobytes())  # to the nearest, or even


def stored_in(file: Path) -> dict[str, StoredTensor]:
    """The tensors of a safetensors file (https://github.com/huggingface/safetensors#format), by name.

    Raises:
        UsageError: it is not there, or damaged.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > min(size, _LONGEST_HEADER):
                raise ValueError("no safetensors header")
            header = json.loads(stream.read(length))
        begin = 8 + length
        found = {
            name: StoredTensor(
                file,
                each["dtype"],
                tuple(each["shape"]),
                begin + each["data_offsets"][0],
                each["data_offsets"][1] - each["data_offsets"][0],
            )
            for name, each in header.items()
            if name != "__metadata__"
        }
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


def stored_tensors(directory: Path) -> dict[str, StoredTensor]:
    """The tensors of a model's directory, in one file or several.

    Raises:
        UsageError: some are not there, or damaged.
    """
    index = directory / INDEX
    if not index.exists():
        if not (directory / WEIGHTS).exists():
            raise UsageError(
                "base-models.no-safetensors",
                f"{directory} has neither {WEIGHTS} nor {INDEX}; use a base model with weights in safetensors",
            )
        return stored_in(directory / WEIGHTS)
    try:
        wanted: dict[str, str] = json.loads(index.read_bytes())["weight_map"]
        names = sorted(set(wanted.values()))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageError("base-models.index-damaged", f"{index} is damaged: {error}; download it again") from None
    found = {name: each for file in names for name, each in stored_in(directory / file).items()}
    missing = sorted(wanted.keys() - found.keys())
    if missing:
        raise UsageError(
            "base-models.tensor-missing",
            f"{directory} has no tensor {missing[0]}, which its {INDEX} lists; download the whole model again",
        )
    return found


class AdapterBase(BaseModel):
    """The base model that an adapter is for, and how that was held while the adapter learned."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """A directory, a name on the hub, or `tiny`."""
    quantization: Literal["none", "nf4"]
    """Of the weights that the adapter learns on; nf4 is QLoRA's (https://arxiv.org/abs/2305.14314)."""
    stored: Literal["full", "quantized"] | None = None
    """The weights as they are on the disk; None where they were not on this machine."""
    fingerprint: str | None = None
    """A SHA-256 of the names, the shapes and the beginnings of all tensors, whichever files they are in."""
    outside: str | None = None
    """The same of embeddings, norms and biases alone, which quantization leaves as they are."""

    def write(self, directory: Path) -> None:
        """Into an adapter's directory."""
        write_atomically(directory / BASE, io.BytesIO(self.model_dump_json(indent=2).encode() + b"\n"))

    @classmethod
    def read(cls, directory: Path) -> "AdapterBase | None":
        """That of an adapter's directory; None where it says nothing of it.

        Raises:
            UsageError: it cannot be read.
        """
        return read_model(cls, directory / BASE, "a base model")

    def compared(self, other: "AdapterBase") -> tuple[bool | None, str]:
        """Whether both have the same weights, and what tells; None where nothing does."""
        if self.fingerprint and other.fingerprint and self.stored == other.stored:
            return self.fingerprint == other.fingerprint, "the weights' fingerprint"
        if self.outside and other.outside:
            return self.outside == other.outside, "the fingerprint of embeddings, norms and biases"
        return None, "names and shapes only, as there are not fingerprints of both"


def adapter_base(settings: TrainSettings) -> AdapterBase:
    """What an adapter of these settings is for.

    Raises:
        UsageError: the base model's files are damaged.
    """
    return base_of(settings.model.name, base_model(settings), settings.model.quantization)


def check_same_base(settings: TrainSettings) -> None:
    """
    Raises:
        UsageError: training is to begin at an adapter that was made for other weights than those of the base model.
    """
    start = settings.lora.start
    known = None if start is None else AdapterBase.read(start)
    if known is None:
        return
    is_same, by = known.compared(adapter_base(settings))
    if is_same is False:
        raise UsageError(
            "adapters.other-base",
            f"lora.start: {start} was made for {known.name}, and {settings.model.name} is another model according to "
            f"{by}; set model.name to the adapter's base model",
        )


def base_of(name: str, place: str, quantization: Literal["none", "nf4"]) -> AdapterBase:
    """A base model: what it is called, and where it is. A model of the hub has a fingerprint where it is in the cache.

    Raises:
        UsageError: its files are damaged.
    """
    directory = on_this_machine(place)
    if directory is None or not any((directory / each).exists() for each in (WEIGHTS, INDEX)):
        return AdapterBase(name=name, quantization=quantization)
    config, tensors = read_config(directory), stored_tensors(directory)
    is_quantized = bool(config.get("quantization_config"))
    fingerprint, outside = _fingerprints(tensors, is_tied=bool(config.get("tie_word_embeddings")))
    return AdapterBase(
        name=name,
        quantization=quantization,
        stored="quantized" if is_quantized else "full",
        fingerprint=fingerprint,
        outside=outside,
    )


def on_this_machine(place: str) -> Path | None:
    """The directory of a model: its own, or that of the hub's cache; None where it has none here. Asks no network."""
    directory = Path(place).expanduser()
    if directory.is_dir():
        return directory
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(place, CONFIG)
    except HFValidationError:  # it can only be a directory's
        return None
    return Path(found).parent if isinstance(found, str) else None


def read_config(directory: Path) -> dict[str, Any]:
    """A model's `config.json`.

    Raises:
        UsageError: it cannot be read.
    """
    path = directory / CONFIG
    try:
        read = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(
            "base-models.invalid-config", f"cannot read {path}: {error}; give the directory of a model"
        ) from None
    if not isinstance(read, dict):
        raise UsageError("base-models.invalid-config", f"{path} is not a JSON object; download it again")
    return read


def _fingerprints(tensors: Mapping[str, StoredTensor], *, is_tied: bool) -> tuple[str, str]:
    """Of all tensors, and of those that quantization leaves as they are."""
    whole, outside = hashlib.sha256(), hashlib.sha256()
    for name, tensor in _lasting(tensors, is_tied=is_tied):
        said = f"{name} {tensor.shape}\n".encode() + tensor.beginning()
        whole.update(said)
        if ".weight." not in name and (len(tensor.shape) == 1 or "embed" in name):
            outside.update(said)
    return whole.hexdigest()[:32], outside.hexdigest()[:32]


def _lasting(tensors: Mapping[str, StoredTensor], *, is_tied: bool) -> Iterator[tuple[str, StoredTensor]]:
    """Tensors by name, but for a copy of the embeddings that is left out when a model is saved again."""
    for name in sorted(tensors):
        if not (is_tied and name == "lm_head.weight"):
            yield name, tensors[name]
