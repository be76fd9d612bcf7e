"""Rerank search results with a cross-encoder in this process, or a server with a `/rerank` endpoint.

The endpoint has the form that Cohere, Jina and vLLM share: a query and documents in, an index and a relevance score of
each document out.

vLLM (0.31, with a BERT cross-encoder) serves it as /rerank, /v1/rerank and /v2/rerank. It answers 404 for another
model, 400 for all texts if one has more tokens than the model reads, and does not listen while it loads the model.
"""

import asyncio
import math
import os
import threading
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Protocol

import httpx
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from gumshoe.artifacts.hub import find_model
from gumshoe.embeddings.text_limits import MAX_CHARACTERS, MAYBE_TOO_LONG, halve_limit
from gumshoe.errors import UnavailableError, UsageError
from gumshoe.installation import install_command
from gumshoe.json_text import load_json
from gumshoe.network import clean_credential, raise_if_untrusted

API_KEY = "RERANK_API_KEY"
"""Environment variable with the key of the endpoint. It is optional."""
_MAX_RESPONSE = 8 << 20  # bytes
_MISCONFIGURED = {400, 401, 403, 404, 405, 413, 422}
_OK, _DENIED = 200, {401, 403}
_PAUSE = 0.2  # seconds before another attempt, doubled each time


class RerankError(UnavailableError):
    """An endpoint returned no usable scores."""


class RerankSettings(BaseModel):
    """Model that reranks search results."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(min_length=1)
    """Name of the model on the server of `url`; without one, a cross-encoder: a hub model or a directory."""
    url: str | None = None
    """Full address of the endpoint, e.g. http://reranker:8000/v1/rerank."""
    candidates: int = Field(default=50, ge=1, le=100)
    """Number of search results that are reranked. The others keep their order below them."""
    deadline: float = Field(default=10.0, gt=0, le=600)
    """Maximum duration of one call in seconds, including its attempts."""
    attempts: int = Field(default=3, ge=1, le=10)
    """Attempts per call, if the failure may be temporary."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str | None) -> str | None:
        if url is None:
            return None
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise ValueError(f"is not a URL ({error})") from None
        if parsed.scheme not in {"http", "https"} or not parsed.host:
            raise ValueError("must be an http:// or https:// URL, e.g. http://reranker:8000/v1/rerank")
        if parsed.userinfo:
            raise ValueError(f"must not contain credentials; set {API_KEY}")
        return url


class Reranker(Protocol):
    """Score texts by their relevance to a query. Thread-safe."""

    candidates: int
    """Number of search results that are reranked."""

    def score(self, query: str, texts: Sequence[str]) -> list[float]:
        """Return one score per text: [texts]. Higher is more relevant.

        Raises:
            RerankError: if there are no scores.
            UsageError: if the model or its access is misconfigured.
        """
        ...


@lru_cache(8)
def open_reranker(settings: RerankSettings) -> Reranker:
    """Return the reranker with some settings. It is loaded once per process.

    Raises:
        UsageError: if the model does not exist, or the key of the endpoint is malformed.
    """
    return EndpointReranker(settings) if settings.url else CrossEncoderReranker(settings)


def parse_rerank_option(value: str) -> RerankSettings:
    """Return the settings of `MODEL` or `MODEL@URL`.

    Raises:
        UsageError: if it is neither.
    """
    model, _, url = value.partition("@")
    try:
        return RerankSettings(model=model, url=url or None)
    except ValidationError as error:
        fault = error.errors()[0]
        raise UsageError(
            "embeddings.invalid-reranker",
            f"reranker must be MODEL or MODEL@URL, got {value!r}: {'.'.join(map(str, fault['loc']))} {fault['msg']}",
        ) from None


class CrossEncoderReranker:
    """Score pairs of query and text with a cross-encoder of sentence-transformers in this process.

    Raises:
        UsageError: if the model does not exist, or sentence-transformers is not installed.
    """

    def __init__(self, settings: RerankSettings) -> None:
        if find_spec("sentence_transformers") is None:
            raise UsageError(
                "embeddings.not-installed",
                f"a cross-encoder requires sentence-transformers: {install_command('torch', extra='embeddings')}; or "
                "use MODEL@URL",
            )
        place = find_model(settings.model, "config.json")
        from sentence_transformers import CrossEncoder

        try:
            self._model: Any = CrossEncoder(place.name, **place.options)
        except (OSError, ValueError) as error:
            raise UsageError(
                "embeddings.model-not-loaded",
                f"cannot load the reranker {settings.model}: {' '.join(str(error).split())}; name another model",
            ) from None
        self.candidates = settings.candidates
        self._lock = threading.Lock()

    def score(self, query: str, texts: Sequence[str]) -> list[float]:
        """See `Reranker.score`."""
        if not texts:
            return []
        pairs = [(query, text[:MAX_CHARACTERS]) for text in texts]
        with self._lock:
            found = self._model.predict(pairs, show_progress_bar=False)
        scores = [float(each) for each in found.reshape(len(texts), -1)[:, 0]]
        if not all(map(math.isfinite, scores)):
            raise RerankError("embeddings.invalid-rerank-scores", "the reranker returned scores that are not finite")
        return scores


class EndpointReranker:
    """Score texts with a model behind a `/rerank` endpoint. Inside an event loop, call it in a thread.

    If the server rejects a request, it may be too long for the model: texts and query are cut off at half of their
    length, and again, down to 250 characters.

    Raises:
        UsageError: if RERANK_API_KEY is malformed.
    """

    def __init__(self, settings: RerankSettings) -> None:
        if settings.url is None:
            raise ValueError("an endpoint needs a URL")
        key = clean_credential(os.environ.get(API_KEY, ""))
        if key is None:
            raise UsageError(
                "embeddings.malformed-rerank-key",
                f"{API_KEY} contains white space or characters other than ASCII; copy the whole key again",
            )
        self.candidates = settings.candidates
        self._settings, self._url = settings, settings.url
        self._name = f"{settings.model}@{settings.url}"
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    def score(self, query: str, texts: Sequence[str]) -> list[float]:
        """See `Reranker.score`."""
        if not texts:
            return []
        content = asyncio.run(self._request(query, [text[:MAX_CHARACTERS] for text in texts]))
        return _parse_scores(content, len(texts), self._name)

    async def _request(self, query: str, texts: Sequence[str]) -> bytes:
        """Return the body of the response, after several attempts if necessary."""
        failure, attempt = "", 0
        limit = max(map(len, (query, *texts)))
        try:
            async with (
                asyncio.timeout(self._settings.deadline),
                httpx.AsyncClient(timeout=self._settings.deadline, headers=self._headers) as client,
            ):
                while attempt < self._settings.attempts:
                    if attempt:
                        await asyncio.sleep(_PAUSE * 2**attempt)
                    try:
                        status, content = await _post(client, self._url, self._make_body(query, texts, limit))
                    except httpx.TransportError as error:
                        raise_if_untrusted(error, self._name)
                        failure = f"cannot be reached: {error or type(error).__name__}"
                        attempt += 1
                        continue
                    if status == _OK:
                        return content
                    failure = f"answered with status {status}: {_shorten(content)}"
                    if status in MAYBE_TOO_LONG and (half := halve_limit(limit)):
                        limit = half
                        continue
                    self._raise_if_misconfigured(status, failure)
                    attempt += 1
        except TimeoutError:
            raise RerankError(
                "embeddings.rerank-timeout",
                f"{self._name} returned no scores within {self._settings.deadline:g} seconds"
                f"{f' ({failure})' if failure else ''}; try again, or use fewer candidates",
            ) from None
        raise RerankError("embeddings.rerank-failed", f"{self._name} {failure}; see the server's log, or try again")

    def _make_body(self, query: str, texts: Sequence[str], limit: int) -> dict[str, Any]:
        """Return the request for a query and texts, of `limit` characters at most each."""
        documents = [text[:limit] or " " for text in texts]
        return {"model": self._settings.model, "query": query[:limit], "documents": documents, "top_n": len(texts)}

    def _raise_if_misconfigured(self, status: int, failure: str) -> None:
        if status in _DENIED:
            raise UsageError("embeddings.rerank-denied", f"{self._name} {failure}; check {API_KEY}")
        if status in _MISCONFIGURED:
            raise UsageError(
                "embeddings.rerank-rejected", f"{self._name} {failure}; check the model's name and the address"
            )


async def _post(client: httpx.AsyncClient, url: str, body: dict[str, Any]) -> tuple[int, bytes]:
    """Return status and body of a response, of which no more than the limit is read. Redirects are not followed."""
    async with client.stream("POST", url, json=body) as response:
        content = bytearray()
        async for piece in response.aiter_bytes():
            content += piece
            if len(content) > _MAX_RESPONSE:
                break
        return response.status_code, bytes(content)


def _shorten(content: bytes) -> str:
    return " ".join(content[:300].decode("utf-8", "replace").split()) or "(empty)"


def _parse_scores(content: bytes, count: int, name: str) -> list[float]:
    """Return the score of each text by its index: [texts].

    Raises:
        RerankError: if a text has no finite score, or there are scores of other texts.
    """
    try:
        loaded = load_json(content)
        results = loaded["results"] if isinstance(loaded, dict) else loaded
        scores = {int(each["index"]): float(each.get("relevance_score", each.get("score"))) for each in results}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise RerankError(
            "embeddings.invalid-rerank-scores",
            f"{name} returned an invalid response ({type(error).__name__}: {_shorten(content)}); check that the "
            "address is that of a /rerank endpoint",
        ) from None
    if set(scores) != set(range(count)) or len(results) != count or not all(map(math.isfinite, scores.values())):
        raise RerankError(
            "embeddings.invalid-rerank-scores", f"{name} returned no score for each of {count} texts; check the server"
        )
    return [scores[index] for index in range(count)]
