"""Chat models as judges: ask a question, get a validated JSON answer, and count its cost."""

import asyncio
import copy
import json
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, HttpUrl, ValidationError
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_random_exponential

from gumshoe.artifacts.response_cache import Cache, cache_key, default_cache_path
from gumshoe.endpoint import error_text, is_too_long, openai_client, raise_if_misconfigured
from gumshoe.json_text import load_json
from gumshoe.model_validation import describe_validation_error
from gumshoe.network import raise_if_untrusted
from gumshoe.rewards.judge import JudgeError

if TYPE_CHECKING:
    from openai import APIStatusError

Reply = TypeVar("Reply", bound=BaseModel)
Question = tuple[str, type[Reply]]
"""The user message, and the model of the answer: exactly its fields, each once."""
Positive = Annotated[float, Field(gt=0)]
AtLeastOne = Annotated[int, Field(ge=1)]

_OPTIONS = {
    "maxLength": "maxLength",
    "response_format": "response_format|json_schema|structured output|guided",
    "temperature": "temperature",
    "max_completion_tokens": "max_completion_tokens",
}
"""Optional parts of a request, and patterns of how servers name them in an error if they do not support them."""
_UNSUPPORTED = (
    r"unsupported|not support|does not support|unknown|unrecognized|unexpected|extra|not permitted|not allowed|invalid"
)
_ERROR_LENGTH = 300  # characters of an error to search; a server may repeat the request after them
_VERDICTS = {"correct", "score"}
_RETRYABLE = {408, 409, 425, 429}
_MAX_LENGTH = 600  # maximum characters of a string in an answer, if the server can enforce it
_MAX_PAUSE = 8  # maximum seconds between two attempts


class _UnusableError(Exception):
    """Report an answer that cannot be used; another attempt may succeed."""


class JudgeModelSettings(BaseModel):
    """A chat model, its OpenAI-compatible server, and limits of its use. The API key is OPENAI_API_KEY."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    model: Annotated[str, Field(min_length=1)]
    url: HttpUrl | None = None
    """None for OpenAI itself."""
    concurrency: AtLeastOne = 16
    """Maximum number of concurrent requests."""
    deadline: Positive = 120
    """Seconds for one question, with all its attempts."""
    attempts: AtLeastOne = 4
    """Attempts per question, after failures of the server and unusable answers."""
    max_tokens: AtLeastOne = 4096
    """Maximum number of tokens per answer."""
    prompt_price: Annotated[float, Field(ge=0)] = 0
    """Dollars per million prompt tokens."""
    completion_price: Annotated[float, Field(ge=0)] = 0
    """Dollars per million completion tokens."""
    cache: Path | None = Field(default_factory=lambda: default_cache_path("judge"))
    """File that caches answers; None for no cache."""


@dataclass(slots=True)
class Usage:
    """Counts, cost and latency of the requests to a model."""

    requests: int = 0
    """Answers of the model, usable or not."""
    cached: int = 0
    """Questions answered from the cache."""
    retried: int = 0
    """Retries after failures of the server."""
    unusable: int = 0
    """Answers that could not be used."""
    failed: int = 0
    """Questions without an answer."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    """Dollars."""
    seconds: list[float] = field(default_factory=list)
    """Duration of each request [requests]."""

    @property
    def latency(self) -> float:
        """Median duration of a request in seconds."""
        return statistics.median(self.seconds) if self.seconds else 0.0

    def to_dict(self) -> dict[str, float]:
        """Return all values by name, with `latency` instead of `seconds`."""
        counts = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "seconds"}
        return {**counts, "latency": self.latency}


class JudgeModel:
    """Ask a chat model for answers in JSON with a given schema.

    Structured output is requested if the server supports it. Otherwise the answer must be valid JSON anyway.
    """

    def __init__(self, settings: JudgeModelSettings) -> None:
        self.settings = settings
        self.usage = Usage()
        url = str(settings.url) if settings.url else None
        self._client = openai_client(url)  # `ask` limits each question as a whole
        self._cache = Cache(settings.cache) if settings.cache else None
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._unsupported: set[str] = set()
        """Options of a request that the server does not support."""

    def with_own_usage(self) -> "JudgeModel":
        """Return a copy with its own `usage`. Connections, cache and the concurrency limit are shared."""
        other = copy.copy(self)
        other.usage = Usage()
        return other

    async def ask(
        self,
        version: str,
        system: str,
        question: Callable[[int], Question[Reply]],
        check: Callable[[Reply], str | None] = lambda _: None,
    ) -> Reply:
        """Ask the model and return its answer.

        `question` returns the question of each attempt, from 0. `check` returns what is wrong with an answer, or None.
        `version` names the prompt; a new version does not use cached answers of an old one.

        Raises:
            JudgeError: if no answer can be used, the server fails, or the deadline is exceeded.
            UsageError: if the server does not know the model or the key.
        """
        from openai import APIError, APIStatusError  # takes half a second to import

        name, deadline = self.settings.model, self.settings.deadline
        tries = AsyncRetrying(
            stop=stop_after_attempt(self.settings.attempts),
            wait=wait_random_exponential(max=_MAX_PAUSE),
            retry=retry_if_exception(_is_retryable),
            before_sleep=self._count_retry,
            reraise=True,
        )
        try:
            async with self._slots, asyncio.timeout(deadline):
                async for attempt in tries:
                    with attempt:
                        user, reply = question(attempt.retry_state.attempt_number - 1)
                        return await self._ask_once(version, system, user, reply, check)
        except TimeoutError:
            failure = JudgeError("judges.timeout", f"the judge {name} did not answer within {deadline:g} seconds")
        except _UnusableError as error:
            attempts = self.settings.attempts
            failure = JudgeError(
                "judges.unusable-answer",
                f"the judge {name} gave no usable answer in {attempts} attempts; the last: {error}",
            )
        except APIStatusError as error:
            raise_if_misconfigured(name, error)
            if is_too_long(error):
                failure = JudgeError(
                    "judges.context-full", f"the request is too long for the judge {name}: {error_text(error)}"
                )
            else:
                failure = JudgeError(
                    "judges.request-failed", f"the request to the judge {name} failed: {error_text(error)}"
                )
        except APIError as error:
            failure = JudgeError("judges.request-failed", f"the request to the judge {name} failed: {error}")
        self.usage.failed += 1
        raise failure

    def _count_retry(self, state: RetryCallState) -> None:
        from openai import APIError

        failed = state.outcome.exception() if state.outcome else None
        self.usage.retried += isinstance(failed, APIError)

    async def aclose(self) -> None:
        """Close the connections and the cache."""
        await self._client.close()
        if self._cache:
            self._cache.close()

    async def _ask_once(
        self,
        version: str,
        system: str,
        user: str,
        reply: type[Reply],
        check: Callable[[Reply], str | None],
    ) -> Reply:
        url = str(self.settings.url)
        key = cache_key(self.settings.model, url, version, system, user, reply.model_json_schema())
        kept = self._cache.get([key]).get(key) if self._cache else None
        if kept:
            try:
                answer = _parse_reply(kept.decode(), reply, check)
            except _UnusableError:  # the checks have changed since
                pass
            else:
                self.usage.cached += 1
                return answer
        try:
            text = await self._request(system, user, reply)
            answer = _parse_reply(text, reply, check)
        except _UnusableError:
            self.usage.unusable += 1
            raise
        if self._cache:
            self._cache.put({key: text.encode()})
        return answer

    async def _request(self, system: str, user: str, reply: type[BaseModel]) -> str:
        from openai import APIConnectionError, APIStatusError

        while True:
            left_out = frozenset(self._unsupported)  # concurrent requests may add to it
            started = time.monotonic()
            try:
                answer: Any = await self._client.chat.completions.create(
                    model=self.settings.model,
                    messages=[{"role": "system", "content": system}, {"role": "user", "content": user}],
                    **self._options(reply, left_out),
                )
            except APIStatusError as error:
                unknown = _find_unsupported(error) - left_out
                if not unknown:
                    raise
                self._unsupported |= unknown
                continue
            except APIConnectionError as error:
                raise_if_untrusted(error, f"the judge {self.settings.model}")
                raise
            except ValueError as error:  # openai passes on errors of the JSON parser
                raise _UnusableError(f"it is not JSON ({error})") from None
            self.usage.seconds.append(time.monotonic() - started)
            self.usage.requests += 1
            return self._text(answer)

    def _options(self, reply: type[BaseModel], left_out: frozenset[str]) -> dict[str, Any]:
        """Return the options of a request for a reproducible answer in the right form, if the server supports them."""
        schema = reply.model_json_schema()
        for described in [] if "maxLength" in left_out else [schema, *schema.get("$defs", {}).values()]:
            for each in described["properties"].values():
                if each.get("type") == "string":
                    each["maxLength"] = _MAX_LENGTH
        form = {"name": reply.__name__.strip("_"), "schema": schema, "strict": True}
        options = {
            "temperature": 0,
            "max_completion_tokens": self.settings.max_tokens,
            "response_format": {"type": "json_schema", "json_schema": form},
        }
        return {name: value for name, value in options.items() if name not in left_out}

    def _text(self, answer: Any) -> str:
        """Count the tokens of an answer, and return its text."""
        used = getattr(answer, "usage", None)
        prompt, completion = (getattr(used, name, None) or 0 for name in ("prompt_tokens", "completion_tokens"))
        self.usage.prompt_tokens += prompt
        self.usage.completion_tokens += completion
        self.usage.cost += (prompt * self.settings.prompt_price + completion * self.settings.completion_price) / 1e6
        try:
            choice = answer.choices[0]
            text, refusal, finish = (
                choice.message.content,
                getattr(choice.message, "refusal", None),
                choice.finish_reason,
            )
        except (AttributeError, IndexError, TypeError):
            raise _UnusableError("it is not a chat completion") from None
        if refusal or not isinstance(text, str) or finish == "length":
            raise _UnusableError("a refusal" if refusal else "it is cut off" if finish == "length" else "it is empty")
        return text


def _is_retryable(error: BaseException) -> bool:
    """Return True if another attempt at the same question may succeed."""
    from openai import APIError, APIStatusError

    if isinstance(error, APIStatusError):
        return error.status_code in _RETRYABLE or error.status_code >= 500
    return isinstance(error, _UnusableError | APIError)


def _find_unsupported(error: "APIStatusError") -> set[str]:
    """Return the options of a request that a server's error reports as not supported."""
    if error.status_code not in {400, 422} or is_too_long(error):
        return set()
    text = error_text(error)[:_ERROR_LENGTH]
    named = {name for name, words in _OPTIONS.items() if error.param == name or re.search(words, text)}
    return named if error.param in named or re.search(_UNSUPPORTED, text, re.I) else set()


def _parse_reply(text: str, reply: type[Reply], check: Callable[[Reply], str | None]) -> Reply:
    """Parse and check an answer.

    Raises:
        _UnusableError: if it is not valid.
    """
    try:
        answer = reply.model_validate(load_json(_strip_fence(text), object_pairs_hook=_build_object))
        wrong = check(answer)
    except ValidationError as error:
        wrong = describe_validation_error(error)
    except ValueError as error:
        wrong = str(error)
    if wrong:
        raise _UnusableError(wrong)
    return answer


def parse_model_name(word: str) -> dict[str, Any]:
    """Return the settings in MODEL or MODEL@URL."""
    model, _, url = word.partition("@")
    return {"model": model} | ({"url": url} if url else {})


def to_safe_json(value: object) -> str:
    """Return a value as JSON in which no text can close a string or look like a tag."""
    text = json.dumps(value, ensure_ascii=False)
    return (
        text.replace("<", "\\u003c").replace(">", "\\u003e").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    )


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object, and reject duplicate keys and a verdict before its reason.

    Of two scores under one id, neither is certain to be meant. A reason after the verdict is made up to justify it.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice")
    if len(pairs) > 1 and pairs[0][0] in _VERDICTS:
        raise ValueError(f"{pairs[0][0]} comes before its reason")
    return found


def _strip_fence(text: str) -> str:
    """Remove the Markdown fence that some models put around JSON."""
    lines = text.strip().splitlines()
    return "\n".join(lines[1:-1]) if len(lines) > 2 and lines[0] in ("```", "```json") and lines[-1] == "```" else text
