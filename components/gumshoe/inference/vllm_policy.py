"""A policy behind vLLM's OpenAI-compatible server, token ids in and out."""

import asyncio
import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Protocol

import httpx
import orjson
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from gumshoe.errors import UsageError
from gumshoe.inference.policy import Completion, PolicyError, Sampling
from gumshoe.inference.vllm_server import server_address

_TRY_AGAIN = {408, 409, 425, 429}
_GONE = {502, 503}  # what a proxy says whose server is not there, and a server that is not ready
_NEVER = {501, 505}  # of all that begin with a 5, those that no second try helps
_NO_MODEL = "does not exist"  # vLLM's words, with a 404: also while a server that was restarted loads its adapters

_JSON = {"Content-Type": "application/json"}
_MOST_IDS = 1 << 31
_PROBED = 16  # tokens: a model is not sure of all of them
_SURE = -1e-3  # of a token, where no other could be sampled

_log = logging.getLogger(__name__)


class _TryAgainError(Exception):
    """The same request may succeed the next time; `code`, `plain` and `said` are as those of a PolicyError."""

    def __init__(self, code: str, plain: str, said: str = "") -> None:
        super().__init__(f"{plain} ({said})" if said else plain)
        self.code, self.plain, self.said = code, plain, said


class _GoneError(_TryAgainError):
    """No server was there to take the request, or it has no such model: one that is started again will."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Bounds on one request. Times are in seconds."""

    deadline: float = 300
    """For one try, from sending it to the last byte of its answer."""
    connect: float = 10
    attempts: int = 4
    """Tries of one request, with exponential backoff and jitter between them."""
    backoff: float = 8
    """Longest pause between two tries."""
    patience: float = 120
    """For a server that is gone to come back, as when it is started again, from the first request that missed it; one
    that lacks the model is gone too, since it may load its adapter after it has started. Until then requests wait,
    however often they have been tried; after that, `attempts` holds for each."""


@dataclass(slots=True)
class _Server:
    """One of the servers, and what this process has there."""

    client: httpx.AsyncClient
    seated: int = 0
    """Conversations."""
    busy: int = 0
    """Requests that are under way."""
    sent: int = 0
    """Requests so far."""
    rests_until: float = 0.0
    """By the monotonic clock."""

    @property
    def rests(self) -> bool:
        """Whether it has just failed."""
        return self.rests_until > time.monotonic()


class VLLMPolicy:
    """One model or adapter, on one or more servers that all have it. A conversation stays with one server, which
    remembers how it began, and a new one goes to the server that has fewest; a request of none goes to the least busy
    server. One that has just failed is left alone for a while, as long as there is another: what it had goes on there
    at once.

    `model` is the name that the adapter (or the base model) is served under, and an answer from any other is
    refused. Use as an async context manager, or call `aclose`.
    """

    def __init__(self, urls: Sequence[str], model: str, limits: RequestLimits | None = None) -> None:
        self._limits = limits or RequestLimits()
        self._model = model
        timeout = httpx.Timeout(self._limits.deadline, connect=self._limits.connect)
        pool = httpx.Limits(max_connections=None, max_keepalive_connections=256)
        bases = [server_address(url) for url in urls]
        self._servers = [
            _Server(httpx.AsyncClient(base_url=base, timeout=timeout, limits=pool, trust_env=not _is_near(base)))
            for base in bases
        ]
        self._gone_since: float | None = None
        self._told = False

    async def __aenter__(self) -> "VLLMPolicy":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every connection."""
        await asyncio.gather(*(server.client.aclose() for server in self._servers))

    async def sample(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        *,
        stop_ids: Sequence[int],
        seed: int,  # noqa: ARG002
    ) -> Completion:
        """As `Policy.sample`. Each request carries every sampling parameter and the stop ids, but no seed: a seed of
        its own ends vLLM's CPU build (0.31: "CPU Generator does not use offset"), and batches of changing size make
        no promise of the same tokens anyway.
        """
        return await self._sampled(prompt_ids, sampling, stop_ids, None)

    @contextmanager
    def member(self) -> Iterator["_Member"]:
        """What one conversation samples from, until the block ends."""
        member = _Member(self)
        try:
            yield member
        finally:
            member.sit(None)

    async def _sampled(
        self, prompt_ids: Sequence[int], sampling: Sampling, stop_ids: Sequence[int], member: "_Member | None"
    ) -> Completion:
        request = self._request(prompt_ids, sampling, stop_ids)
        return self._checked(await self._answer(request, member), request, sampling)

    def _request(self, prompt_ids: Sequence[int], sampling: Sampling, stop_ids: Sequence[int]) -> dict[str, Any]:
        return {
            "model": self._model,
            "prompt": list(prompt_ids),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "max_tokens": sampling.max_tokens,
            "stop_token_ids": list(stop_ids),
            "ignore_eos": True,  # a turn ends with the chat template's token, not with what a model's file says
            "logprobs": 0,
            "return_token_ids": True,
            "add_special_tokens": False,
            "skip_special_tokens": False,
            "n": 1,
            "stream": False,
        }

    async def check(self, context: int) -> None:
        """See whether every server has the model, and takes requests of `context` tokens, answer included.

        Raises:
            UsageError: one has or does not; the message says what it has.
            PolicyError: one does not answer.
        """
        for client in (each.client for each in self._servers):
            try:
                response = await client.get("/v1/models", timeout=self._limits.connect)
                served = response.raise_for_status().json()["data"]
                names = [each["id"] for each in served]
                longest = min((each["max_model_len"] for each in served if each.get("max_model_len")), default=context)
            except (httpx.HTTPError, KeyError, TypeError, ValueError) as error:
                raise _no_answer(client, error) from None
            if self._model not in names:
                raise UsageError(
                    "inference.model-not-served",
                    f"{client.base_url} does not serve {self._model!r}: it serves {', '.join(names)}; use "
                    "vllm:URL#NAME",
                )
            if longest < context:
                raise UsageError(
                    "inference.context-too-small",
                    f"{client.base_url} accepts {longest} tokens, but an episode may have {context}; use "
                    f"--max-context {longest}, or start the server with --max-model-len {context}",
                )

    async def check_vocabulary(self, tokenizer: "Vocabulary", text: str, needed: Sequence[int]) -> None:
        """See whether every server's model has a tokenizer's vocabulary: each token that a server makes of a text has
        the same id there and here, and `needed` [tokens] are among them.

        Where the text is parted is left aside: that does not matter to ids. A server without /tokenize is let pass.

        Raises:
            UsageError: one has another vocabulary.
            PolicyError: one does not answer.
        """
        request = {"model": self._model, "prompt": text, "add_special_tokens": False, "return_token_strs": True}
        for client in (each.client for each in self._servers):
            try:
                response = await client.post("/tokenize", json=request, timeout=self._limits.connect)
                if response.status_code != httpx.codes.OK:  # 404: no such route; others: a proxy keeps it to itself
                    continue
                answer = response.json()
                theirs = dict(zip(answer["token_strs"] or (), answer["tokens"], strict=True))
            except (httpx.HTTPError, KeyError, TypeError, ValueError) as error:
                raise _no_answer(client, error) from None
            other = [
                f"its id of {token!r} is {number}"
                for token, number in theirs.items()
                if tokenizer.convert_tokens_to_ids(token) != number
            ]
            missing = [f"it has no token {number}" for number in needed if number not in theirs.values()]
            if theirs and (other or missing):
                raise UsageError(
                    "inference.tokenizer-mismatch",
                    f"{client.base_url} serves {self._model!r} with a vocabulary that differs from this tokenizer's: "
                    f"{(other + missing)[0]}; use the tokenizer of the served model",
                )

    async def check_logprobs(self, prompt_ids: Sequence[int], stop_ids: Sequence[int]) -> None:
        """See whether every server's log-probabilities are those of the distribution that it samples from: where one
        token alone is left to choose from (top-k 1), they are 0.

        Raises:
            UsageError: one gives those of the model as it is.
            PolicyError: one does not answer.
        """
        greedy = Sampling(top_k=1, max_tokens=_PROBED)
        request = self._request(prompt_ids, greedy, stop_ids)
        for client in (each.client for each in self._servers):
            try:
                probed = self._checked(await self._tried(client, request), request, greedy)
            except _TryAgainError as error:
                raise PolicyError(error.code, error.plain, error.said) from None
            if min(probed.logprobs) < _SURE:
                raise UsageError(
                    "inference.logprobs-not-processed",
                    f"{client.base_url} returns log-probabilities of a distribution that it does not sample from; "
                    "start the server with --logprobs-mode processed_logprobs",
                )

    async def _answer(self, request: dict[str, Any], member: "_Member | None") -> Any:
        """The answer to a request, which is made again where that may help."""
        failures = tries = 0

        def is_over(state: RetryCallState) -> bool:
            nonlocal failures, tries
            tries = state.attempt_number
            if state.outcome is not None and isinstance(state.outcome.exception(), _GoneError):
                return tries >= self._limits.attempts and self._gone_for() >= self._limits.patience
            failures += 1
            return failures >= self._limits.attempts

        pause = wait_random_exponential(max=self._limits.backoff)
        retrying = AsyncRetrying(
            stop=is_over,
            wait=lambda state: 0.0 if self._has_another() else pause(state),
            retry=retry_if_exception_type(_TryAgainError),
            reraise=True,
        )
        try:
            async for attempt in retrying:
                with attempt:
                    answer = await self._post(request, self._server_of(member))
        except _TryAgainError as error:
            plain = f"{self._model}: {error.plain}, after {tries} tries"
            raise PolicyError(error.code, plain, error.said) from None
        return answer

    def _gone_for(self) -> float:
        """Seconds for which no server has been there."""
        return 0.0 if self._gone_since is None else time.monotonic() - self._gone_since

    def _note_gone(self, error: _GoneError) -> None:
        if self._gone_since is None:
            self._gone_since = time.monotonic()
        elif not self._told and self._limits.backoff < self._gone_for() < self._limits.patience:
            self._told = True
            _log.warning("%s; waiting up to %g seconds for it to come back", error, self._limits.patience)

    def _note_there(self, client: httpx.AsyncClient) -> None:
        if self._told:
            _log.warning("%s is reachable again after %.0f seconds", client.base_url, self._gone_for())
        self._gone_since, self._told = None, False

    def _has_another(self) -> bool:
        """Whether there is a server that has not just failed."""
        return not all(each.rests for each in self._servers)

    def _server_of(self, member: "_Member | None") -> _Server:
        """Which server a request goes to."""
        if member is not None and member.server is not None and not member.server.rests:
            return member.server
        server = min(self._servers, key=lambda each: (each.rests, each.seated, each.busy, each.sent))
        if member is not None:
            member.sit(server)
        return server

    async def _post(self, request: dict[str, Any], server: _Server) -> Any:
        server.busy += 1
        server.sent += 1
        try:
            answer = await self._tried(server.client, request)
        except _TryAgainError as error:
            if isinstance(error, _GoneError):
                self._note_gone(error)
            server.rests_until = time.monotonic() + self._limits.backoff
            raise
        finally:
            server.busy -= 1
        server.rests_until = 0.0
        return answer

    async def _tried(self, client: httpx.AsyncClient, request: dict[str, Any]) -> Any:
        """The answer of one server to one try."""
        try:
            async with asyncio.timeout(self._limits.deadline):
                response = await client.post("/v1/completions", content=orjson.dumps(request), headers=_JSON)
        except TimeoutError:
            raise _TryAgainError(
                "inference.timeout", f"{client.base_url} did not answer in {self._limits.deadline:g} seconds"
            ) from None
        except httpx.TransportError as error:
            kind = _GoneError if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout) else _TryAgainError
            raise kind(
                "inference.server-unreachable", f"{client.base_url} does not answer: {type(error).__name__}: {error}"
            ) from None
        except httpx.RequestError as error:
            raise _TryAgainError(
                "inference.invalid-answer",
                f"cannot read the answer of {client.base_url}: {type(error).__name__}: {error}",
            ) from None
        code = response.status_code
        if code in _GONE or (code == httpx.codes.NOT_FOUND and _NO_MODEL in response.text):
            problem = "inference.server-unavailable" if code in _GONE else "inference.model-not-served"
            raise _GoneError(problem, f"{client.base_url} answered {code}", response.text[:200])
        self._note_there(client)
        if code in _TRY_AGAIN or (code >= httpx.codes.INTERNAL_SERVER_ERROR and code not in _NEVER):
            raise _TryAgainError("inference.server-error", f"{client.base_url} answered {code}", response.text[:200])
        if code != httpx.codes.OK:
            raise PolicyError("inference.request-rejected", f"{client.base_url} answered {code}", response.text[:500])
        try:
            return response.json()
        except ValueError:
            raise _TryAgainError("inference.invalid-answer", f"the answer of {client.base_url} is not JSON") from None

    def _checked(self, answer: Any, request: dict[str, Any], sampling: Sampling) -> Completion:
        """The answer, if it is whole and from the policy that was asked.

        Raises:
            PolicyError: it is not.
        """
        try:
            model, (choice,) = answer["model"], answer["choices"]
            ids, prompt_ids = choice["token_ids"], choice["prompt_token_ids"]
            logprobs, finish = choice["logprobs"]["token_logprobs"], choice["finish_reason"]
            if not (_are_ids(ids) and _are_ids(prompt_ids) and isinstance(logprobs, list)):
                raise TypeError
        except (KeyError, TypeError, ValueError):
            raise PolicyError(
                "inference.token-ids-missing",
                f"{self._model}: the answer has no token ids or log-probabilities; use a current vLLM server",
            ) from None
        stops = request["stop_token_ids"]
        faults = {
            f"model is {model!r}": model != self._model,
            "prompt_token_ids are not those of the request": prompt_ids != request["prompt"],
            f"{len(logprobs)} log-probabilities for {len(ids)} tokens": len(logprobs) != len(ids),
            "token_ids is empty": not ids,
            "token_logprobs has a value that is not a finite number": not all(map(_is_number, logprobs)),
            f"finish_reason is {finish!r}": finish not in ("stop", "length"),
            f"{len(ids)} tokens, but max_tokens is {sampling.max_tokens}": len(ids) > sampling.max_tokens,
            "the last token is not in stop_token_ids": finish == "stop" and (not ids or ids[-1] not in stops),
        }
        wrong = [fault for fault, holds in faults.items() if holds]
        if wrong:
            raise PolicyError("inference.invalid-answer", f"{self._model}: unusable answer: {'; '.join(wrong)}")
        return Completion(tuple(ids), tuple(map(float, logprobs)), finish, model)


@dataclass(slots=True)
class _Member:
    """A policy's part in one conversation."""

    _policy: VLLMPolicy
    server: _Server | None = None

    def sit(self, server: _Server | None) -> None:
        """From now on that server has the conversation; or none has it."""
        if self.server is not None:
            self.server.seated -= 1
        if server is not None:
            server.seated += 1
        self.server = server

    async def sample(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        *,
        stop_ids: Sequence[int],
        seed: int,  # noqa: ARG002
    ) -> Completion:
        """As `VLLMPolicy.sample`."""
        return await self._policy._sampled(prompt_ids, sampling, stop_ids, self)


def _no_answer(client: httpx.AsyncClient, error: Exception) -> PolicyError:
    """Return the error for a server that cannot be reached, or does not answer as vLLM does."""
    if isinstance(error, httpx.TransportError):
        said = f"{client.base_url} does not answer: {type(error).__name__}: {error}"
        return PolicyError("inference.server-unreachable", said)
    return PolicyError("inference.not-vllm", f"{client.base_url} does not answer as a vLLM server: {error}")


class Vocabulary(Protocol):
    """What is used of a tokenizer: the ids of its tokens, and None or that of the unknown token for all others."""

    def convert_tokens_to_ids(self, tokens: Any) -> Any: ...


def _is_near(url: str) -> bool:
    """Whether an address is this machine's or its network's own, which no proxy is to be asked for: a private one, or a
    name without a domain, as a Service has in its namespace.
    """
    host = httpx.URL(url).host
    try:
        return ip_address(host).is_private
    except ValueError:
        return "." not in host


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(each) is int and 0 <= each < _MOST_IDS for each in value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
