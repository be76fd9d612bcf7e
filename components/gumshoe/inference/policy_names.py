"""Parse policy names, start policies on this machine, and load their tokenizers.

The names are `tiny[#ADAPTER-DIR]`, `local:MODEL[#ADAPTER-DIR]`, `vllm:URL[#ADAPTER]`,
`transformers:DIR[#ADAPTER-DIR]`, `chat:MODEL[@URL]` and `keywords`.
"""

import asyncio
import hashlib
import logging
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from gumshoe.artifacts.adapter_layout import round_up_lora_rank
from gumshoe.artifacts.base_models import resolve_base_model
from gumshoe.artifacts.base_models.named_models import NAMED_MODELS
from gumshoe.artifacts.hub import find_model
from gumshoe.artifacts.manifest import file_digest
from gumshoe.errors import UsageError
from gumshoe.inference.vllm_server import (
    ServerOptions,
    VLLMServer,
    describe_served,
    is_vllm_installed,
)
from gumshoe.json_text import load_json

KEYWORDS = "keywords"
"""The policy that searches for words of the question, without a model."""
TINY = Path(__file__).parents[1] / "tiny" / "policy"
"""Directory of the tiny policy; its `made.json` records how it was built."""
ENGINE_VARIABLE = "GUMSHOE_ENGINE"
"""Environment variable with the engine for `tiny` and `local:` policies: `vllm` or `transformers`."""
MERGE_RECORD = "merged.json"
"""File in the directory of a merged model: what it was merged from, and its original base model (`origin`)."""
ORIGIN_RECORD = "origin.json"
"""File in the directory of a model whose own weights were trained: its base model, and the original one (`origin`)."""
_WEIGHTS = ("*.safetensors", "*.bin", "adapter_config.json")
FORMS = (
    "tiny[#ADAPTER-DIR], local:MODEL[#ADAPTER-DIR], vllm:URL[,URL...][#ADAPTER] (with --tokenizer), "
    "transformers:DIR[#ADAPTER-DIR], chat:MODEL[@URL] or keywords (search without a model)"
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PolicyName:
    """Parsed name of a policy, as it is given on the command line."""

    kind: str
    model: str
    """Name of the model on its server, or its directory."""
    urls: tuple[str, ...] = ()
    adapter: Path | None = None
    version_override: str = ""
    """Version to report instead of the names of model and adapter; empty for none."""

    @classmethod
    def parse(cls, word: str) -> "PolicyName":
        """Parse the name of a policy, e.g. `local:Qwen/Qwen2.5-7B-Instruct`.

        Raises:
            UsageError: if it has no known form.
        """
        if word == KEYWORDS:
            return cls(KEYWORDS, KEYWORDS)
        if word.partition("#")[0] == "tiny" and word != "tiny#":
            word = f"local:{word}"
        kind, _, rest = word.partition(":")
        if kind == "vllm" and rest:
            places, _, adapter = rest.partition("#")
            urls = tuple(place.strip() for place in places.split(","))
            if all(map(_is_address, urls)):
                return cls(kind, adapter or "base", urls)
        if kind in ("local", "transformers") and rest:
            model, _, adapter = rest.partition("#")
            if model:
                return cls(kind, model, adapter=Path(adapter) if adapter else None)
        if kind == "chat" and rest:
            model, _, url = rest.partition("@")
            if model and (not url or _is_address(url)):
                return cls(kind, model, (url,) if url else ())
        raise UsageError("inference.invalid-policy", f"not a policy: {word!r}; use {FORMS}")

    @property
    def takes_tokenizer(self) -> bool:
        """True if the user may, or must, name the tokenizer."""
        return self.kind in ("vllm", "transformers")

    @property
    def version(self) -> str:
        """Version of the policy, as recorded in its trajectories."""
        name = "tiny" if self.model == str(TINY) else self.model
        return self.version_override or (f"{name}#{self.adapter}" if self.adapter else name)

    @property
    def base(self) -> Path | str:
        """Directory of the base model, or its name on the hub. See `resolve_base_model` for what it may raise."""
        return TINY if self.model == "tiny" else resolve_base_model(self.model)

    @property
    def directories(self) -> tuple[Path, ...]:
        """Directories on this machine with records about it: that of its adapter, and that of its model."""
        model = Path(self.base).expanduser() if self.kind in ("local", "transformers") else None
        return tuple(each for each in (self.adapter, model) if each is not None and each.is_dir())

    @property
    def trained_directories(self) -> tuple[Path, ...]:
        """Directories with records of its training: as `directories`, but without fetching or converting a model.

        A model that must be converted was not trained here.
        """
        is_own = self.kind in ("local", "transformers") and self.model != "tiny" and self.model not in NAMED_MODELS
        model = Path(self.model).expanduser() if is_own else None
        return tuple(each for each in (self.adapter, model) if each is not None and each.is_dir())

    @property
    def is_tiny(self) -> bool:
        """True if it is the tiny policy, or an adapter for it, on this machine."""
        return self.kind in ("local", "transformers") and is_tiny(self.base)

    @property
    def weights_digest(self) -> str | None:
        """First 16 hex digits of the SHA-256 of the weights, or None if they are not on this machine.

        Other weights may be put under the same name. Reads all files.
        """
        return digest_weights(reversed(self.directories))

    def describe_served(self) -> list[str]:
        """Return what the servers of a `vllm` policy have under its name. See `describe_served`; empty for others."""
        return describe_served(self.urls, self.model) if self.kind == "vllm" else []


def digest_weights(directories: Iterable[Path]) -> str | None:
    """Return the first 16 hex digits of the SHA-256 of the weights in directories, or None without weights."""
    files = [file for place in directories for form in _WEIGHTS for file in sorted(place.glob(form))]
    return hashlib.sha256("".join(map(file_digest, files)).encode()).hexdigest()[:16] if files else None


def is_tiny(model: Path | str) -> bool:
    """Return True if a base model is the tiny policy, or was made from it by merging adapters or by training.

    Raises:
        UsageError: if the record of the model's origin cannot be read.
    """
    return str(model) in ("tiny", str(TINY)) or read_origin(Path(model).expanduser()) == "tiny"


def read_origin(directory: Path) -> str | None:
    """Return the name of the first base model that a model was made from, or None without a record of it.

    Raises:
        UsageError: if the record cannot be read.
    """
    for path in (directory / MERGE_RECORD, directory / ORIGIN_RECORD):
        try:
            return str(load_json(path.read_bytes())["origin"])
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise UsageError(
                "inference.merge-record-damaged",
                f"cannot read the base model's name from {path}: {error}; make the model again",
            ) from None
    return None


@asynccontextmanager
async def start_local_policy(name: PolicyName, max_context: int) -> AsyncIterator[PolicyName]:
    """Run a `local` policy while the block runs, on its own vLLM server or in this process.

    The environment variable GUMSHOE_ENGINE chooses the engine, `vllm` or `transformers`. If it is not set, vLLM is
    used if it is installed. `max_context` is the maximum number of tokens per episode. The yielded policy uses the
    tokenizer of `name.base`.

    Raises:
        UsageError: if GUMSHOE_ENGINE is invalid, or the policy's files do not exist.
        UnavailableError: if the server does not start.
    """
    if _choose_engine() == "transformers":
        yield PolicyName("transformers", str(name.base), adapter=name.adapter, version_override=name.version)
        return
    rank = _read_rank(name.adapter) if name.adapter is not None else 1
    with TemporaryDirectory(prefix="gumshoe-local-") as logs:
        options = ServerOptions(
            name.model,
            max_model_len=max_context,
            max_lora_rank=round_up_lora_rank(rank),
            adapter_directories=() if name.adapter is None else (name.adapter,),
        )
        server = VLLMServer(name.base, log=Path(logs) / "vllm.log", options=options)
        try:
            await asyncio.to_thread(server.__enter__)
            if name.adapter is not None:
                await asyncio.to_thread(server.load_adapter, name.version, name.adapter)
            monitor = asyncio.create_task(_warn_on_exit(server))
            try:
                yield PolicyName("vllm", name.version, (server.url,))
            finally:
                monitor.cancel()
        finally:
            await asyncio.to_thread(server.stop)


def _choose_engine() -> str:
    """Return the engine for local policies: `vllm` or `transformers`.

    Raises:
        UsageError: if GUMSHOE_ENGINE has another value.
    """
    chosen = os.environ.get(ENGINE_VARIABLE)
    if not chosen:
        return "vllm" if is_vllm_installed() else "transformers"
    if chosen not in ("vllm", "transformers"):
        raise UsageError(
            "inference.invalid-engine",
            f"{ENGINE_VARIABLE} must be vllm or transformers, got {chosen!r}; correct or unset it",
        )
    return chosen


def _read_rank(adapter: Path) -> int:
    """Return the LoRA rank of an adapter.

    Raises:
        UsageError: if the adapter does not exist, or its configuration is damaged.
    """
    path = Path(find_model(adapter, "adapter_config.json").name) / "adapter_config.json"
    try:
        rank = load_json(path.read_bytes())["r"]
        if type(rank) is int and rank > 0:
            return rank
        fault = f"its rank r must be an integer >= 1, got {str(rank)[:40]}"
    except (OSError, ValueError, LookupError, TypeError) as error:
        fault = f"{type(error).__name__}: {error}"
    raise UsageError("inference.adapter-damaged", f"{path} is damaged: {fault}; publish or fetch the adapter again")


async def _warn_on_exit(server: VLLMServer) -> None:
    while server.is_running():
        await asyncio.sleep(1)
    _log.warning("vLLM exited; %s", server.log_tail())


def load_tokenizer(place: Path | str) -> Any:
    """Load a model's tokenizer from its directory or the hub.

    Raises:
        UsageError: if the tokenizer does not exist, or cannot be read.
    """
    found = find_model(place, "tokenizer.json")
    # The import takes a second, and that of AutoTokenizer three. `tokenizer.json` is all that is needed.
    from transformers import PreTrainedTokenizerFast

    try:
        return PreTrainedTokenizerFast.from_pretrained(found.name, **found.options)
    except Exception as error:  # noqa: BLE001 - damaged files raise KeyError and others
        reason = " ".join(str(error).split())
        raise UsageError(
            "inference.tokenizer-unreadable",
            f"cannot load a tokenizer from {place}: {reason}; use a model's directory or its hub name",
        ) from None


def _is_address(text: str) -> bool:
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        return False
    return url.scheme in {"http", "https"} and bool(url.host) and not any(map(str.isspace, text))
