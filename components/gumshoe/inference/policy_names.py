"""Name a policy in one word, start one on this machine, and load its tokenizer.

The words are `tiny`, `local:MODEL[#adapter-dir]`, `vllm:URL[#adapter]`, `transformers:DIR[#adapter-dir]` and
`chat:MODEL[@URL]`.
"""

import asyncio
import hashlib
import json
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from gumshoe.artifacts.hub import find_model
from gumshoe.artifacts.manifest import file_digest
from gumshoe.errors import UsageError
from gumshoe.inference.vllm_server import ServerOptions, VLLMServer, is_installed, lora_rank_slot

TINY = Path(__file__).parents[1] / "tiny" / "policy"
"""The directory of the tiny policy; `made.json` in it says what made it."""
ENGINE = "GUMSHOE_ENGINE"
"""The environment variable that chooses the engine for `tiny` and `local:` policies: `vllm` or `transformers`."""
MERGED = "merged.json"
"""In the directory of a model that adapters were merged into: what it was made of, and what it was before all of them
(`origin`)."""
_WEIGHTS = ("*.safetensors", "*.bin", "adapter_config.json")
FORMS = (
    "tiny[#ADAPTER-DIR], local:MODEL[#ADAPTER-DIR], vllm:URL[,URL...][#ADAPTER] (with --tokenizer), "
    "transformers:DIR[#ADAPTER-DIR] or chat:MODEL[@URL]"
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PolicyName:
    """A policy as it is named on the command line."""

    kind: str
    model: str
    """The name that a server knows it by, or its directory."""
    urls: tuple[str, ...] = ()
    adapter: Path | None = None
    called: str = ""
    """Its version, where that is not told by model and adapter."""

    @classmethod
    def parse(cls, word: str) -> "PolicyName":
        """
        Raises:
            UsageError: it is of no known form.
        """
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
        """Whether the caller may, or must, say which tokenizer it has."""
        return self.kind in ("vllm", "transformers")

    @property
    def version(self) -> str:
        """What trajectories of this policy name as theirs."""
        name = "tiny" if self.model == str(TINY) else self.model
        return self.called or (f"{name}#{self.adapter}" if self.adapter else name)

    @property
    def base(self) -> Path | str:
        """The base model's directory, or its name on the hub."""
        return TINY if self.model == "tiny" else self.model

    @property
    def is_tiny(self) -> bool:
        """Whether it is the tiny policy, or an adapter for it, on this machine."""
        return self.kind in ("local", "transformers") and is_tiny(self.base)

    @property
    def weights(self) -> str | None:
        """A SHA-256 of the weights that lie on this machine, which others may take the place of under the same name;
        None where none do. Reads all of them.
        """
        model = Path(self.base) if self.kind in ("local", "transformers") else None
        places = [place for place in (model, self.adapter) if place is not None and place.is_dir()]
        files = [file for place in places for form in _WEIGHTS for file in sorted(place.glob(form))]
        return hashlib.sha256("".join(map(file_digest, files)).encode()).hexdigest()[:16] if files else None


def is_tiny(model: Path | str) -> bool:
    """Whether a base model is the tiny policy, or what became of it by merging adapters into it.

    Raises:
        UsageError: the model's directory says what it is made of, and that cannot be read.
    """
    if str(model) in ("tiny", str(TINY)):
        return True
    path = Path(model).expanduser() / MERGED
    try:
        return bool(json.loads(path.read_bytes())["origin"] == "tiny")
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UsageError(
            "inference.merge-record-damaged", f"cannot read the base model's name from {path}: {error}; merge it again"
        ) from None


@asynccontextmanager
async def start_local_policy(name: PolicyName, max_context: int) -> AsyncIterator[PolicyName]:
    """Run a `local` policy as long as the block runs, on a vLLM server of its own or in this process.

    The environment variable GUMSHOE_ENGINE chooses the engine, `vllm` or `transformers`; without it, vLLM is used if
    it is installed. `max_context` is the most tokens of an episode. What is given has the tokenizer of `name.base`.

    Raises:
        UsageError: GUMSHOE_ENGINE names no engine, or the policy's files are not there.
        UnavailableError: the server does not start.
    """
    if _engine() == "transformers":
        yield PolicyName("transformers", str(name.base), adapter=name.adapter, called=name.called)
        return
    rank = _rank(name.adapter) if name.adapter is not None else 1
    with TemporaryDirectory(prefix="gumshoe-local-") as logs:
        options = ServerOptions(name.model, max_model_len=max_context, max_lora_rank=lora_rank_slot(rank))
        server = VLLMServer(name.base, log=Path(logs) / "vllm.log", options=options)
        try:
            await asyncio.to_thread(server.__enter__)
            if name.adapter is not None:
                await asyncio.to_thread(server.load_adapter, name.version, name.adapter)
            watching = asyncio.create_task(_warn_when_it_ends(server))
            try:
                yield PolicyName("vllm", name.version, (server.url,))
            finally:
                watching.cancel()
        finally:
            await asyncio.to_thread(server.stop)


def _engine() -> str:
    """Return the engine for local policies: `vllm` or `transformers`.

    Raises:
        UsageError: GUMSHOE_ENGINE has another value.
    """
    chosen = os.environ.get(ENGINE)
    if not chosen:
        return "vllm" if is_installed() else "transformers"
    if chosen not in ("vllm", "transformers"):
        raise UsageError(
            "inference.invalid-engine", f"{ENGINE} must be vllm or transformers, got {chosen!r}; correct or unset it"
        )
    return chosen


def _rank(adapter: Path) -> int:
    """
    Raises:
        UsageError: there is no adapter.
    """
    place = find_model(adapter, "adapter_config.json")
    return int(json.loads((Path(place.name) / "adapter_config.json").read_bytes())["r"])


async def _warn_when_it_ends(server: VLLMServer) -> None:
    while server.is_running():
        await asyncio.sleep(1)
    _log.warning("vLLM exited; %s", server.log_tail())


def load_tokenizer(place: Path | str) -> Any:
    """A model's tokenizer, from its directory or the hub.

    Raises:
        UsageError: there is none.
    """
    found = find_model(place, "tokenizer.json")
    # Takes a second to import, and AutoTokenizer three. Its `tokenizer.json` is all that a tokenizer is.
    from transformers import PreTrainedTokenizerFast

    try:
        return PreTrainedTokenizerFast.from_pretrained(found.name, local_files_only=found.local_files_only)
    except Exception as error:  # noqa: BLE001 - what is wrong with its files comes as KeyError and others
        said = " ".join(str(error).split())
        raise UsageError(
            "inference.tokenizer-unreadable",
            f"cannot load a tokenizer from {place}: {said}; use a model's directory or its hub name",
        ) from None


def _is_address(text: str) -> bool:
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        return False
    return url.scheme in {"http", "https"} and bool(url.host) and not any(map(str.isspace, text))
