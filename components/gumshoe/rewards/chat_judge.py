"""Chat models that judge: one question, one checked JSON answer, its cost counted."""

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

from gumshoe.artifacts.response_cache import Cache, cache_key, default_cache
from gumshoe.endpoint import check_known, is_too_long, openai_client
from gumshoe.errors import faults_of
from gumshoe.rewards.judge import JudgeError

if TYPE_CHECKING:
    from openai import APIStatusError

Reply = TypeVar("Reply", bound=BaseModel)
Question = tuple[str, type[Reply]]
"""What the user says, and the form of the answer: the same names once each, and nothing else."""
Positive = Annotated[float, Field(gt=0)]
AtLeastOne = Annotated[int, Field(ge=1)]

_OPTIONS = {
    "maxLength": "maxLength",
    "response_format": "response_format|json_schema|structured output|guided",
    "temperature": "temperature",
    "max_completion_tokens": "max_completion_tokens",
}
"""What a request can do without, and how servers name it when they do not take it."""
_NOT_TAKEN = (
    r"unsupported|not support|does not support|unknown|unrecognized|unexpected|extra|not permitted|not allowed|invalid"
)
_SAID = 300  # characters of an error that say what is wrong; a server may repeat the request after them
_VERDICTS = {"correct", "score"}
_TRY_AGAIN = {408, 409, 425, 429}
_LONGEST = 600  # characters of a text in an answer, where a server can hold a model to that
_PAUSE = 8  # seconds: the longest between two tries


class _UnusableError(Exception):
    """One answer cannot be used; the next may be better."""


class JudgeModelSettings(BaseModel):
    """Which chat model, behind which OpenAI-compatible address, within which bounds. Its key is OPENAI_API_KEY."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Annotated[str, Field(min_length=1)]
    url: HttpUrl | None = None
    """OpenAI's own where there is none."""
    concurrency: AtLeastOne = 16
    """Requests at once."""
    deadline: Positive = 120
    """Seconds for one question, with all its tries."""
    attempts: AtLeastOne = 4
    """Tries of one question, whether the server fails or an answer cannot be used."""
    max_tokens: AtLeastOne = 4096
    """Most tokens of an answer."""
    prompt_price: Annotated[float, Field(ge=0)] = 0
    completion_price: Annotated[float, Field(ge=0)] = 0
    """Dollars for a million tokens."""
    cache: Path | None = Field(default_factory=lambda: default_cache("judge"))
    """Answers that were given are kept here, and not asked for again; None keeps none."""


@dataclass(slots=True)
class Usage:
    """What asking came to."""

    requests: int = 0
    """Answers that came from the model, usable or not."""
    cached: int = 0
    """Questions that were answered from the cache."""
    retried: int = 0
    """Requests that were sent again because the server failed."""
    unusable: int = 0
    """Answers that could not be used."""
    failed: int = 0
    """Questions that got no answer."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    """Dollars."""
    seconds: list[float] = field(default_factory=list)
    """[requests]: how long each took."""

    @property
    def latency(self) -> float:
        """The median of the requests' seconds."""
        return statistics.median(self.seconds) if self.seconds else 0.0

    def numbers(self) -> dict[str, float]:
        """All of it by name, with `latency` in place of the single requests' seconds."""
        counts = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "seconds"}
        return {**counts, "latency": self.latency}


class JudgeModel:
    """A chat model that answers in JSON, in one form, or not at all.

    Where the server knows structured output it is asked for; where it does not, the answer must be that JSON anyway.
    """

    def __init__(self, settings: JudgeModelSettings) -> None:
        self.settings = settings
        self.usage = Usage()
        url = str(settings.url) if settings.url else None
        self._client = openai_client(url, timeout=None, retries=0)  # `ask` bounds each question as a whole
        self._cache = Cache(settings.cache) if settings.cache else None
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._refused: set[str] = set()
        """Settings of a request that this server does not take."""

    def apart(self) -> "JudgeModel":
        """The same, with a count of its own: connections, cache and room for requests are shared."""
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
        """What the model answers.

        `question` gives what it is asked at each try, from 0. `check` says what is wrong with an answer, if anything.
        `version` names the prompt, so that a new one is asked anew.

        Raises:
            JudgeError: no answer could be used, or the server failed, or it took too long.
            UsageError: the server does not know the model, or the key.
        """
        from openai import APIError, APIStatusError  # takes half a second to import

        name, deadline = self.settings.model, self.settings.deadline
        tries = AsyncRetrying(
            stop=stop_after_attempt(self.settings.attempts),
            wait=wait_random_exponential(max=_PAUSE),
            retry=retry_if_exception(_may_pass),
            before_sleep=self._count,
            reraise=True,
        )
        try:
            async with self._slots, asyncio.timeout(deadline):
                async for attempt in tries:
                    with attempt:
                        user, reply = question(attempt.retry_state.attempt_number - 1)
                        return await self._answer(version, system, user, reply, check)
        except TimeoutError:
            failure = JudgeError("judges.timeout", f"the judge {name} did not answer within {deadline:g} seconds")
        except _UnusableError as error:
            attempts = self.settings.attempts
            failure = JudgeError(
                "judges.unusable-answer",
                f"the judge {name} gave no usable answer in {attempts} attempts; the last: {error}",
            )
        except APIStatusError as error:
            check_known(name, error)
            if is_too_long(error):
                failure = JudgeError("judges.context-full", f"the request is too long for the judge {name}: {error}")
            else:
                failure = JudgeError("judges.request-failed", f"the request to the judge {name} failed: {error}")
        except APIError as error:
            failure = JudgeError("judges.request-failed", f"the request to the judge {name} failed: {error}")
        self.usage.failed += 1
        raise failure

    def _count(self, state: RetryCallState) -> None:
        from openai import APIError

        failed = state.outcome.exception() if state.outcome else None
        self.usage.retried += isinstance(failed, APIError)

    async def aclose(self) -> None:
        """Close the connections and the cache."""
        await self._client.close()
        if self._cache:
            self._cache.close()

    async def _answer(
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
                answer = _read(kept.decode(), reply, check)
            except _UnusableError:  # what is asked for has changed since: ask anew
                pass
            else:
                self.usage.cached += 1
                return answer
        try:
            text = await self._requested(system, user, reply)
            answer = _read(text, reply, check)
        except _UnusableError:
            self.usage.unusable += 1
            raise
        if self._cache:
            self._cache.put({key: text.encode()})
        return answer

    async def _requested(self, system: str, user: str, reply: type[BaseModel]) -> str:
        from openai import APIStatusError

        while True:
            left_out = frozenset(self._refused)  # others may add to it while this waits
            started = time.monotonic()
            try:
                answer: Any = await self._client.chat.completions.create(
                    model=self.settings.model,
                    messages=[{"role": "system", "content": system}, {"role": "user", "content": user}],
                    **self._options(reply, left_out),
                )
            except APIStatusError as error:
                unknown = _not_taken(error) - left_out
                if not unknown:
                    raise
                self._refused |= unknown
                continue
            except ValueError as error:  # openai passes on what JSON's parser says
                raise _UnusableError(f"it is no JSON ({error})") from None
            self.usage.seconds.append(time.monotonic() - started)
            self.usage.requests += 1
            return self._text(answer)

    def _options(self, reply: type[BaseModel], left_out: frozenset[str]) -> dict[str, Any]:
        """What makes the answer the same each time, and of the right form, where a server takes it."""
        schema = reply.model_json_schema()
        for described in [] if "maxLength" in left_out else [schema, *schema.get("$defs", {}).values()]:
            for each in described["properties"].values():
                if each.get("type") == "string":
                    each["maxLength"] = _LONGEST
        form = {"name": reply.__name__.strip("_"), "schema": schema, "strict": True}
        options = {
            "temperature": 0,
            "max_completion_tokens": self.settings.max_tokens,
            "response_format": {"type": "json_schema", "json_schema": form},
        }
        return {name: value for name, value in options.items() if name not in left_out}

    def _text(self, answer: Any) -> str:
        """The text of an answer, once its tokens are counted."""
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
            raise _UnusableError("it is no answer of a chat") from None
        if refusal or not isinstance(text, str) or finish == "length":
            raise _UnusableError("it refused" if refusal else "it is cut off" if finish == "length" else "it is empty")
        return text


def _may_pass(error: BaseException) -> bool:
    """Return whether the same question may be answered the next time."""
    from openai import APIError, APIStatusError

    if isinstance(error, APIStatusError):
        return error.status_code in _TRY_AGAIN or error.status_code >= 500
    return isinstance(error, _UnusableError | APIError)


def _not_taken(error: "APIStatusError") -> set[str]:
    """The options of a request that a server says it does not take."""
    if error.status_code not in {400, 422} or is_too_long(error):
        return set()
    said = str(error)[:_SAID]
    named = {name for name, words in _OPTIONS.items() if error.param == name or re.search(words, said)}
    return named if error.param in named or re.search(_NOT_TAKEN, said, re.I) else set()


def _read(text: str, reply: type[Reply], check: Callable[[Reply], str | None]) -> Reply:
    """The answer in a text.

    Raises:
        _UnusableError: there is none, or something is wrong with it.
    """
    try:
        answer = reply.model_validate(json.loads(_unfenced(text), object_pairs_hook=_once))
        wrong = check(answer)
    except ValidationError as error:
        wrong = faults_of(error)
    except (ValueError, RecursionError) as error:
        wrong = str(error)
    if wrong:
        raise _UnusableError(wrong)
    return answer


def model_named(word: str) -> dict[str, Any]:
    """The settings in MODEL or MODEL@URL."""
    model, _, url = word.partition("@")
    return {"model": model} | ({"url": url} if url else {})


def as_data(value: object) -> str:
    """A value as JSON in which no text can end anything, or look like a tag, whatever it holds."""
    text = json.dumps(value, ensure_ascii=False)
    return (
        text.replace("<", "\\u003c").replace(">", "\\u003e").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    )


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object in which no name comes twice, for of two scores under one id none can be told to be meant; and no
    verdict before its reason, which would be made up for it.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name comes twice")
    if len(pairs) > 1 and pairs[0][0] in _VERDICTS:
        raise ValueError(f"{pairs[0][0]} comes before its reason")
    return found


def _unfenced(text: str) -> str:
    """An answer without the fence that some models put round JSON."""
    lines = text.strip().splitlines()
    return "\n".join(lines[1:-1]) if len(lines) > 2 and lines[0] in ("```", "```json") and lines[-1] == "```" else text
