"""Files of a base model other than its weights, and their copies in a model that is made from it."""

import json
import shutil
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download

from gumshoe.artifacts.hub import find_model
from gumshoe.errors import UsageError
from gumshoe.inference.policy_names import is_tiny, read_origin
from gumshoe.training.models.base_model import CONFIG, INDEX, identify_base_model, read_config
from gumshoe.training.run_spec import resolve_model

_COPIED_FILES = (  # copied without changes
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
_DOWNLOADED_FILES = (CONFIG, "*.safetensors", INDEX, *_COPIED_FILES)


def fetch_model(name: str) -> Path:
    """Return the directory of a base model, and download it if necessary.

    Raises:
        UsageError: the model does not exist, or lacks a tokenizer.
    """
    place = find_model(resolve_model(name), CONFIG)
    directory = Path(place.name)
    if not directory.is_dir():
        downloaded = snapshot_download(place.name, allow_patterns=[*_DOWNLOADED_FILES], **place.options)
        directory = Path(downloaded)
    if not (directory / "tokenizer.json").exists():
        raise UsageError(
            "base-models.no-tokenizer", f"{directory} has no tokenizer.json, which a model made from it needs; add it"
        )
    return directory


def copy_model_files(base: Path, target: Path, dtype: str) -> None:
    """Write the files of a model that is made from another one, except its weights.

    These are its `config.json`, with the dtype of its weights, and copies of all files about tokens and sampling.
    """
    config = {
        name: each for name, each in read_config(base).items() if name not in ("quantization_config", "torch_dtype")
    }
    for found in sorted({each for form in _COPIED_FILES for each in base.glob(form)}):
        if found.is_dir():
            shutil.copytree(found, target / found.name, copy_function=shutil.copyfile)
        else:
            shutil.copyfile(found, target / found.name)
    (target / CONFIG).write_text(json.dumps({**config, "dtype": dtype}, indent=2) + "\n", "utf-8")


def describe_origin(name: str, directory: Path) -> dict[str, Any]:
    """Return the record of a model's base model: `base`, and `origin`, the first model that it was made from."""
    origin = "tiny" if is_tiny(resolve_model(name)) else read_origin(directory) or name
    return {"origin": origin, "base": identify_base_model(name, str(directory), "none").model_dump(mode="json")}
