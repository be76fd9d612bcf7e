"""Read GGUF files, the format of llama.cpp (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md)."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gumshoe.errors import UsageError
from gumshoe.installation import install_command

_FULL_TYPES = {"F32", "F16", "BF16", "F64"}
_OTHER_TYPE = "use a file with F32, F16, BF16, Q8_0 or a K quantization"
_UNKNOWN_TYPE = re.compile(r"\b(\d+)\)? is not a valid GGMLQuantizationType")
_UNKNOWN_VERSION = re.compile(r"\bversion (\d+) which we cannot handle")
_MAX_NUMBER = 256  # of types and versions; higher ones are damage


def check_installed() -> None:
    """Check that the package `gguf` is installed.

    Raises:
        UsageError: it is not.
    """
    if find_spec("gguf") is None:
        raise UsageError(
            "gguf.not-installed", f"GGUF files require the package gguf: {install_command(extra='smollm2')}"
        )


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """The metadata and the tensors of a GGUF file. Tensors are mapped into memory and read when they are used."""

    path: Path
    _fields: Mapping[str, Any]
    _tensors: Mapping[str, Any]

    @classmethod
    def open(cls, path: Path) -> "GGUFFile":
        """Open a file.

        Raises:
            UsageError: the package `gguf` is not installed; or the file does not exist, is not a GGUF file, is
                damaged, has a version or a type of tensor that the package does not read, or is one part of a model.
        """
        check_installed()
        from gguf import GGUFReader

        try:
            reader = GGUFReader(path)
        except OSError as error:
            raise UsageError(
                "gguf.not-readable", f"cannot read {path}: {error.strerror or error}; check the path"
            ) from None
        except (ValueError, LookupError, OverflowError, MemoryError) as error:  # numpy's, wherever the file ends
            raise _explain(path, " ".join(str(error).split())) from None
        file = cls(path, reader.fields, {each.name: each for each in reader.tensors})
        parts = file.get("split.count", 1)
        if parts > 1:
            raise UsageError(
                "gguf.split",
                f"{path} is one of {parts} parts of a model; join them with `llama-gguf-split --merge`",
            )
        return file

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a metadata key, or `default` if the file does not have it.

        Raises:
            UsageError: it is not UTF-8.
        """
        field = self._fields.get(key)
        try:
            return default if field is None else field.contents()
        except UnicodeDecodeError:
            raise self.damage(f"the metadata key {key} is not UTF-8") from None

    def require(self, key: str) -> Any:
        """Return the value of a metadata key.

        Raises:
            UsageError: the file does not have it.
        """
        value = self.get(key)
        if value is None:
            raise self.damage(f"there is no metadata key {key}")
        return value

    def damage(self, problem: str) -> UsageError:
        """Return the error for a file whose content is not that of a model."""
        return UsageError("gguf.damaged", f"{self.path}: {problem}; download or convert it again")

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all tensors by name, e.g. [out, in] of a matrix."""
        return {name: tuple(map(int, reversed(each.shape))) for name, each in self._tensors.items()}

    def tensor_type(self, name: str) -> str:
        """Return the type in which a tensor is stored, e.g. Q4_1; empty if the file does not have it."""
        return self._tensors[name].tensor_type.name if name in self._tensors else ""

    @property
    def quantization(self) -> str:
        """The quantization of most tensors, e.g. Q4_1; empty if none is quantized."""
        types = Counter(map(self.tensor_type, self._tensors))
        return next((kind for kind, _ in types.most_common() if kind not in _FULL_TYPES), "")

    def read_tensor(self, name: str) -> NDArray[np.float32]:
        """Return a tensor as float32, dequantized if necessary.

        Raises:
            UsageError: `gguf` cannot dequantize its type, or not all its values are finite.
        """
        from gguf import dequantize

        tensor = self._tensors[name]
        try:
            values = dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError:
            raise UsageError(
                "gguf.unsupported-quantization",
                f"{self.path}: cannot dequantize {name}, which is stored as {tensor.tensor_type.name}; {_OTHER_TYPE}",
            ) from None
        found = np.asarray(values, np.float32).reshape(self.shapes()[name])
        if not np.isfinite(found).all():
            raise self.damage(f"{name} has values that are not finite")
        return found


def _explain(path: Path, problem: str) -> UsageError:
    """Return the error for a file that the package `gguf` cannot read, from what it says."""
    kind, version = _UNKNOWN_TYPE.search(problem), _UNKNOWN_VERSION.search(problem)
    if kind and int(kind[1]) < _MAX_NUMBER:
        return UsageError(
            "gguf.unsupported-quantization",
            f"{path}: a tensor is stored as type {kind[1]}, which was removed from GGUF or is newer than the installed "
            f"package gguf; {_OTHER_TYPE}",
        )
    if version and 0 < int(version[1]) < _MAX_NUMBER:
        return UsageError(
            "gguf.unsupported-version",
            f"{path} is a file of GGUF version {version[1]}, which the installed package gguf does not read; use a "
            "file of version 2 or 3",
        )
    return UsageError("gguf.damaged", f"{path} is not a complete GGUF file: {problem}; download it again")
