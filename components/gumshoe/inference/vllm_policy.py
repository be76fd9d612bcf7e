"""A policy on vLLM's OpenAI-compatible servers, with token ids in and out."""

import asyncio
import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

import orjson
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from gumshoe.errors import UsageError
from gumshoe.inference.http_options import raise_if_denied
from gumshoe.inference.policy import Completion, PolicyError, Sampling, check_not_empty
from gumshoe.inference.server_client import ServerClient, ServerRequestError
from gumshoe.inference.vllm_server import server_address

_RETRYABLE = {408, 409, 425, 429}
_UNAVAILABLE = {502, 503}  # sent by a proxy if its server is down, or by a server that is not ready
_NOT_RETRYABLE = {501, 505}  # status codes from 500 that a retry cannot help
_NO_MODEL = "does not exist"  # vLLM's text with a 404; also sent while a restarted server loads its adapters

_ID_LIMIT = 1 << 31
_PROBE_TOKENS = 16  # tokens; a model is not certain of all of them
_SCORED_AT_ONCE = 64  # requests
_MIN_CERTAIN_LOGPROB = -1e-3  # minimum log-probability of a token if no other could be sampled

_TOKENS_BEFORE_DEADLINE = 1500
_MOST_TIME = 5.0  # times the deadline, so that a server that hangs is left before a training counts as stalled

_log = logging.getLogger(__name__)


class _RetryableError(Exception):
    """Report a failure that a retry may fix. The arguments are those of PolicyError."""

    def __init__(self, code: str, public_message: str, server_message: str = "") -> None:
        super().__init__(f"{public_message} ({server_message})" if server_message else public_message)
        self.code, self.public_message, self.server_message = code, public_message, server_message


class _ServerGoneError(_RetryableError):
    """Report that the server is not reachable, is stopping, or does not have the model. A restart may fix each."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits of one request. Times are in seconds."""

    deadline: float = 300
    """Maximum duration of one attempt, from sending the request to the last byte of the answer, if it may have up to
    1,500 tokens. Longer ones have more time, in proportion, up to five times as much."""
    connect: float = 10
    attempts: int = 4
    """Attempts per request, with exponential backoff and jitter between them."""
    backoff: float = 8
    """Maximum pause between two attempts."""
    patience: float = 120
    """Maximum wait for an unreachable server, e.g. while it restarts, from the first request that failed.

    A server without the model counts as unreachable, because it may load its adapter after the start. Until then
    requests are retried without limit; after that, `attempts` limits each."""


@dataclass(slots=True)
class _Server:
    """State of one server: its client, and the load that this process puts on it."""

    client: ServerClient
    conversations: int = 0
    """Open conversations."""
    in_flight: int = 0
    """Requests in progress."""
    total_requests: int = 0
    """Total number of requests."""
    avoid_until: float = 0.0
    """Time of the monotonic clock until which other servers are preferred, after a failure."""

    @property
    def is_avoided(self) -> bool:
        """True if the server failed recently."""
        return self.avoid_until > time.monotonic()


class VLLMPolicy:
    """Sample from one model or adapter, on one or more vLLM servers that all serve it.

    A conversation stays with one server, whose prefix cache holds its earlier turns. A new conversation goes to the
    server with the fewest. A request without a conversation goes to the least busy server. A server that failed is
    avoided for a while, if there is another; its conversations move there.

    `model` is the served name of the adapter or the base model. An answer from any other model is rejected. Use as an
    async context manager, or call `aclose`.
    """

    def __init__(self, urls: Sequence[str], model: str, limits: RequestLimits | None = None) -> None:
        self._limits = limits or RequestLimits()
        self._model = model
        self._servers = [_Server(ServerClient(server_address(url), self._limits.connect)) for url in urls]
        self._unavailable_since: float | None = None
        self._has_warned = False

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
        """Sample a turn (see `Policy.sample`).

        Each request has every sampling parameter and the stop ids, but no seed: a seed per request crashes vLLM's CPU
        build (0.31: "CPU Generator does not use offset"), and batches of changing size are not reproducible anyway.
        """
        return await self._sample(prompt_ids, sampling, stop_ids, None)

    async def score(self, prompt_ids: Sequence[int], continuations: Sequence[Sequence[int]]) -> list[float]:
        """Return the log-probability of each continuation after a prompt (see `ContinuationScorer.score`)."""
        check_not_empty(prompt_ids, continuations)
        limit, sampling = asyncio.Semaphore(_SCORED_AT_ONCE), Sampling(max_tokens=1)

        async def score_one(continuation: Sequence[int]) -> float:
            whole = [*prompt_ids, *continuation]
            request = self._request(whole, sampling, ()) | {"prompt_logprobs": 0}
            async with limit:
                answer = await self._request_with_retries(request, None)
            self._parse_answer(answer, request, sampling)
            return sum(self._parse_prompt_logprobs(answer, whole)[len(prompt_ids) :])

        return list(await asyncio.gather(*map(score_one, continuations)))

    def _parse_prompt_logprobs(self, answer: Any, ids: Sequence[int]) -> list[float]:
        """Return the log-probabilities of the tokens of a prompt [tokens]; 0 for the first, which has none.

        Raises:
            PolicyError: if the answer does not have them.
        """
        try:
            given = answer["choices"][0]["prompt_logprobs"]
            found = [float(each[str(token)]["logprob"]) for each, token in zip(given[1:], ids[1:], strict=True)]
            if not _are_numbers(found):
                raise ValueError
        except (KeyError, TypeError, ValueError):
            raise PolicyError(
                "inference.prompt-logprobs-missing",
                f"{self._model}: the answer has no log-probabilities of the prompt; use a current vLLM server",
            ) from None
        return [0.0, *found]

    @contextmanager
    def open_conversation(self) -> Iterator["VLLMConversation"]:
        """Yield the policy of one conversation, which ends with the block."""
        conversation = VLLMConversation(self)
        try:
            yield conversation
        finally:
            conversation.assign(None)

    async def _sample(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        stop_ids: Sequence[int],
        conversation: "VLLMConversation | None",
    ) -> Completion:
        request = self._request(prompt_ids, sampling, stop_ids)
        return self._parse_answer(await self._request_with_retries(request, conversation), request, sampling)

    def _request(self, prompt_ids: Sequence[int], sampling: Sampling, stop_ids: Sequence[int]) -> dict[str, Any]:
        return {
            **_constrain(sampling),
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
            "ignore_eos": True,  # a turn ends with the chat template's token, not with the model's EOS
            "logprobs": 0,
            "return_token_ids": True,
            "add_special_tokens": False,
            "skip_special_tokens": False,
            "n": 1,
            "stream": False,
        }

    async def check(self, context: int) -> None:
        """Check that every server has the model and accepts `context` tokens per request, answer included.

        Raises:
            UsageError: if a server lacks the model, or accepts fewer tokens.
            PolicyError: if a server does not answer.
        """
        for client in (each.client for each in self._servers):
            try:
                async with asyncio.timeout(self._limits.connect):
                    response = await client.get("/v1/models")
                raise_if_denied(response.status, client.url)
                if response.status != HTTPStatus.OK:
                    raise ValueError(f"status {response.status}")
                served = response.json()["data"]
                names = [each["id"] for each in served]
                longest = min((each["max_model_len"] for each in served if each.get("max_model_len")), default=context)
            except (ServerRequestError, TimeoutError, KeyError, TypeError, ValueError) as error:
                raise _connection_error(client, error) from None
            if self._model not in names:
                raise UsageError(
                    "inference.model-not-served",
                    f"{client.url} does not serve {self._model!r}: it serves {', '.join(names)}; use vllm:URL#NAME",
                )
            if longest < context:
                raise UsageError(
                    "inference.context-too-small",
                    f"{client.url} accepts {longest} tokens, but an episode may have {context}; use "
                    f"--max-context {longest}, or start the server with --max-model-len {context}",
                )

    async def check_vocabulary(self, tokenizer: "Vocabulary", text: str, needed: Sequence[int]) -> None:
        """Check that the model of every server has the vocabulary of `tokenizer`.

        Each server tokenizes `text`. Its tokens must have the same ids here, and include `needed` [tokens]. Servers
        without /tokenize are not checked.

        Raises:
            UsageError: if a server has another vocabulary.
            PolicyError: if a server does not answer.
        """
        request = {"model": self._model, "prompt": text, "add_special_tokens": False, "return_token_strs": True}
        for client in (each.client for each in self._servers):
            try:
                async with asyncio.timeout(self._limits.connect):
                    response = await client.post("/tokenize", request)
                if response.status != HTTPStatus.OK:  # 404: no such route; others: blocked by a proxy
                    continue
                answer = response.json()
                theirs = dict(zip(answer["token_strs"] or (), answer["tokens"], strict=True))
            except (ServerRequestError, TimeoutError, KeyError, TypeError, ValueError) as error:
                raise _connection_error(client, error) from None
            other = [
                f"its id of {token!r} is {number}"
                for token, number in theirs.items()
                if tokenizer.convert_tokens_to_ids(token) != number
            ]
            missing = [f"it has no token {number}" for number in needed if number not in theirs.values()]
            if theirs and (other or missing):
                raise UsageError(
                    "inference.tokenizer-mismatch",
                    f"{client.url} serves {self._model!r} with a vocabulary that differs from this tokenizer's: "
                    f"{(other + missing)[0]}; use the tokenizer of the served model",
                )

    async def check_logprobs(self, prompt_ids: Sequence[int], stop_ids: Sequence[int]) -> None:
        """Check that the log-probabilities of every server are of the distribution that it samples from.

        With top-k 1 there is only one token to sample, so they must be 0.

        Raises:
            UsageError: if a server returns the model's raw log-probabilities.
            PolicyError: if a server does not answer.
        """
        greedy = Sampling(top_k=1, max_tokens=_PROBE_TOKENS)
        request = self._request(prompt_ids, greedy, stop_ids)
        for client in (each.client for each in self._servers):
            try:
                probed = self._parse_answer(await self._request_once(client, request), request, greedy)
            except _RetryableError as error:
                raise PolicyError(error.code, error.public_message, error.server_message) from None
            if min(probed.logprobs) < _MIN_CERTAIN_LOGPROB:
                raise UsageError(
                    "inference.logprobs-not-processed",
                    f"{client.url} returns log-probabilities of a distribution that it does not sample from; "
                    "start the server with --logprobs-mode processed_logprobs",
                )

    async def _request_with_retries(self, request: dict[str, Any], conversation: "VLLMConversation | None") -> Any:
        """Return the answer to a request, with retries."""
        try:
            return await self._post(request, self._choose_server(conversation))
        except _RetryableError as error:
            return await self._retry(request, conversation, error)

    async def _retry(
        self, request: dict[str, Any], conversation: "VLLMConversation | None", error: _RetryableError
    ) -> Any:
        """Return the answer to a request whose first attempt has failed with an error.

        Raises:
            PolicyError: if the other attempts fail too.
        """
        failures = tries = 0
        first: _RetryableError | None = error

        def is_over(state: RetryCallState) -> bool:
            nonlocal failures, tries
            tries = state.attempt_number
            if state.outcome is not None and isinstance(state.outcome.exception(), _ServerGoneError):
                return tries >= self._limits.attempts and self._unavailable_seconds() >= self._limits.patience
            failures += 1
            return failures >= self._limits.attempts

        pause = wait_random_exponential(max=self._limits.backoff)
        retrying = AsyncRetrying(
            stop=is_over,
            wait=lambda state: 0.0 if self._has_healthy_server() else pause(state),
            retry=retry_if_exception_type(_RetryableError),
            reraise=True,
        )
        try:
            async for attempt in retrying:
                with attempt:
                    if first is not None:
                        failed, first = first, None
                        raise failed
                    answer = await self._post(request, self._choose_server(conversation))
        except _RetryableError as error:
            message = f"{self._model}: {error.public_message}, after {tries} tries"
            raise PolicyError(error.code, message, error.server_message) from None
        return answer

    def _unavailable_seconds(self) -> float:
        """Return the seconds since no server was reachable."""
        return 0.0 if self._unavailable_since is None else time.monotonic() - self._unavailable_since

    def _record_unavailable(self, error: _ServerGoneError) -> None:
        if self._unavailable_since is None:
            self._unavailable_since = time.monotonic()
        elif not self._has_warned and self._limits.backoff < self._unavailable_seconds() < self._limits.patience:
            self._has_warned = True
            _log.warning("%s; waiting up to %g seconds for it to come back", error, self._limits.patience)

    def _record_available(self, client: ServerClient) -> None:
        if self._has_warned:
            _log.warning("%s is reachable again after %.0f seconds", client.url, self._unavailable_seconds())
        self._unavailable_since, self._has_warned = None, False

    def _has_healthy_server(self) -> bool:
        """Return True if a server has not failed recently."""
        return not all(each.is_avoided for each in self._servers)

    def _choose_server(self, conversation: "VLLMConversation | None") -> _Server:
        """Choose the server for a request."""
        if conversation is not None and conversation.server is not None and not conversation.server.is_avoided:
            return conversation.server
        server = min(
            self._servers,
            key=lambda each: (each.is_avoided, each.conversations, each.in_flight, each.total_requests),
        )
        if conversation is not None:
            conversation.assign(server)
        return server

    async def _post(self, request: dict[str, Any], server: _Server) -> Any:
        server.in_flight += 1
        server.total_requests += 1
        try:
            answer = await self._request_once(server.client, request)
        except _RetryableError as error:
            if isinstance(error, _ServerGoneError):
                self._record_unavailable(error)
            server.avoid_until = time.monotonic() + self._limits.backoff
            raise
        finally:
            server.in_flight -= 1
        server.avoid_until = 0.0
        return answer

    async def _request_once(self, client: ServerClient, request: dict[str, Any]) -> Any:
        """Return the answer of one server to one attempt."""
        deadline = self._limits.deadline * min(_MOST_TIME, max(1.0, request["max_tokens"] / _TOKENS_BEFORE_DEADLINE))
        try:
            async with asyncio.timeout(deadline):
                response = await client.post("/v1/completions", request)
        except TimeoutError:
            raise _RetryableError("inference.timeout", f"{client.url} did not answer in {deadline:g} seconds") from None
        except ServerRequestError as failure:
            if failure.kind == "unreadable":
                raise _RetryableError(
                    "inference.invalid-answer", f"cannot read the answer of {client.url}: {failure}"
                ) from None
            if failure.kind == "aborted":
                raise _ServerGoneError("inference.server-stopping", f"{client.url} is stopping: {failure}") from None
            kind = _ServerGoneError if failure.kind == "unreachable" else _RetryableError
            raise kind("inference.server-unreachable", f"{client.url} does not answer: {failure}") from None
        code = response.status
        if code in _UNAVAILABLE or (code == HTTPStatus.NOT_FOUND and _NO_MODEL in response.text):
            problem = "inference.server-unavailable" if code in _UNAVAILABLE else "inference.model-not-served"
            raise _ServerGoneError(problem, f"{client.url} answered {code}", response.text[:200])
        self._record_available(client)
        if code in _RETRYABLE or (code >= HTTPStatus.INTERNAL_SERVER_ERROR and code not in _NOT_RETRYABLE):
            raise _RetryableError("inference.server-error", f"{client.url} answered {code}", response.text[:200])
        try:
            raise_if_denied(code, client.url)
        except UsageError as error:  # the server was restarted with another key; questions fail until it is back
            raise PolicyError(error.code, error.message) from None
        if code == HTTPStatus.BAD_REQUEST and "structured_outputs" in request:
            raise UsageError(
                "inference.schema-rejected", f"the vLLM server cannot follow this JSON schema: {response.text[:500]}"
            )
        if code != HTTPStatus.OK:
            raise PolicyError("inference.request-rejected", f"{client.url} answered {code}", response.text[:500])
        try:
            return response.json()
        except ValueError:
            raise _RetryableError("inference.invalid-answer", f"the answer of {client.url} is not JSON") from None

    def _parse_answer(self, answer: Any, request: dict[str, Any], sampling: Sampling) -> Completion:
        """Check an answer, and return it as a completion.

        Raises:
            PolicyError: if it is incomplete, or from another policy.
        """
        try:
            model, (choice,) = answer["model"], answer["choices"]
            ids, prompt_ids = choice["token_ids"], choice["prompt_token_ids"]
            logprobs, finish = choice["logprobs"]["token_logprobs"], choice["finish_reason"]
            if not (_are_ids(ids) and isinstance(logprobs, list)):
                raise TypeError
            # As JSON, which tells 1 from 1.0 and is quicker than to check the type of each of thousands.
            is_own_prompt = orjson.dumps(prompt_ids) == orjson.dumps(request["prompt"])
            if not is_own_prompt and not _are_ids(prompt_ids):
                raise TypeError
        except (KeyError, TypeError, ValueError):
            raise PolicyError(
                "inference.token-ids-missing",
                f"{self._model}: the answer has no token ids or log-probabilities; use a current vLLM server",
            ) from None
        stops = request["stop_token_ids"]
        faults = {
            f"model is {model!r}": model != self._model,
            "prompt_token_ids are not those of the request": not is_own_prompt,
            f"{len(logprobs)} log-probabilities for {len(ids)} tokens": len(logprobs) != len(ids),
            "token_ids is empty": not ids,
            "token_logprobs has a value that is not a finite number": not _are_numbers(logprobs),
            f"finish_reason is {finish!r}": finish not in ("stop", "length"),
            f"{len(ids)} tokens, but max_tokens is {sampling.max_tokens}": len(ids) > sampling.max_tokens,
            "the last token is not in stop_token_ids": finish == "stop" and (not ids or ids[-1] not in stops),
        }
        wrong = [fault for fault, holds in faults.items() if holds]
        if wrong:
            raise PolicyError("inference.invalid-answer", f"{self._model}: unusable answer: {'; '.join(wrong)}")
        return Completion(tuple(ids), tuple(map(float, logprobs)), finish, model)


@dataclass(slots=True)
class VLLMConversation:
    """Policy for one conversation of a `VLLMPolicy`."""

    _policy: VLLMPolicy
    server: _Server | None = None

    def assign(self, server: _Server | None) -> None:
        """Move the conversation to a server, or to none if it ends."""
        if self.server is not None:
            self.server.conversations -= 1
        if server is not None:
            server.conversations += 1
        self.server = server

    async def sample(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        *,
        stop_ids: Sequence[int],
        seed: int,  # noqa: ARG002
    ) -> Completion:
        """Sample a turn (see `VLLMPolicy.sample`)."""
        return await self._policy._sample(prompt_ids, sampling, stop_ids, self)


def _connection_error(client: ServerClient, error: Exception) -> PolicyError:
    """Return the error for a server that cannot be reached, or does not answer as vLLM does."""
    if isinstance(error, ServerRequestError | TimeoutError):
        found = str(error) or "no answer in time"
        return PolicyError("inference.server-unreachable", f"{client.url} does not answer: {found}")
    return PolicyError("inference.not-vllm", f"{client.url} does not answer as a vLLM server: {error}")


class Vocabulary(Protocol):
    """A tokenizer that returns the ids of its tokens, and None or the unknown token's id for all others."""

    def convert_tokens_to_ids(self, tokens: Any) -> Any: ...


def _are_ids(value: Any) -> bool:
    """Return True for a list of token ids. A prompt has thousands, so no Python code runs for each."""
    if not isinstance(value, list) or not set(map(type, value)) <= {int}:
        return False
    return not value or (min(value) >= 0 and max(value) < _ID_LIMIT)


def _constrain(sampling: Sampling) -> dict[str, Any]:
    """Return the parameter that makes vLLM follow a JSON schema, if there is one."""
    if sampling.json_schema is None:
        return {}
    if not sampling.json_alternatives:
        return {"structured_outputs": {"json": sampling.json_schema}}
    free = [
        {"type": "sequence", "elements": [{"type": "const_string", "value": each}, {"type": "any_text"}]}
        for each in sampling.json_alternatives
    ]
    schema = {"type": "json_schema", "json_schema": orjson.loads(sampling.json_schema)}
    tag = {"type": "structural_tag", "format": {"type": "or", "elements": [schema, *free]}}
    return {"structured_outputs": {"structural_tag": orjson.dumps(tag).decode()}}


def _are_numbers(values: list[Any]) -> bool:
    """Return True if all are finite numbers."""
    try:
        return set(map(type, values)) <= {int, float} and math.isfinite(sum(values))
    except OverflowError:  # an integer that is larger than any float
        return False
