"""Requests to a chat model on an OpenAI-compatible server."""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gumshoe.endpoint import error_text, is_too_long, raise_if_misconfigured
from gumshoe.inference.policy import PolicyError, Sampling
from gumshoe.network import raise_if_untrusted
from gumshoe.rollouts.chat_answers import (
    EXTRA_CONTENT,
    REASONING_DETAILS,
    REASONING_FIELDS,
    ApiAnswer,
    check_not_broken_off,
    read_answer,
    read_rejected_turn,
)
from gumshoe.rollouts.chat_format.chat_settings import ChatSettings
from gumshoe.rollouts.chat_retries import RequestRetries, is_too_large
from gumshoe.terminal import err, printable

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

DEFAULT_THINKING_BUDGET = 16_384
"""Tokens of reasoning per turn, in addition to `max_tokens`, of a model that reasons, if the settings have none."""
_MIN_THINKING_BUDGET = 256
_CLEARLY_FEWER = 0.9
_NOT_FOUND, _INVALID = 404, {400, 422}
_UNSUPPORTED = re.compile(
    r"unsupported|not support|unknown|unrecognized|unexpected|extra|not permitted|not allowed|only the default", re.I
)
_ERROR_LENGTH = 300  # characters of an error to search for common words; a server may repeat the request after them
_OLD_LIMIT = "max_tokens"  # name of max_completion_tokens on older servers
_SAMPLING = {"temperature", "top_p"}
_SENT_BACK = {*REASONING_FIELDS, REASONING_DETAILS, EXTRA_CONTENT}
"""Fields of answers that are sent back in the history."""
_COMMON = {*_SAMPLING, "max_completion_tokens"}
"""Optional parameters that errors about other things may name too."""
_TOO_MANY_TOKENS = re.compile(r"max_(completion_|output_)?tokens|(completion|output) tokens", re.I)


class ApiChatModel:
    """A chat model, with the settings of all its conversations and what its answers showed about it.

    Parameters that a server rejects are left out of all later requests: reasoning models take no temperature, and some
    servers only know `max_tokens`. `deadline`, in seconds, is for one turn with all its requests. `retries` repeats
    those that fail, so `client` repeats none.

    Reasoning counts towards the maximum number of tokens of a request. If an answer was cut off because of it, and the
    settings have no thinking budget, all later requests have `DEFAULT_THINKING_BUDGET` in addition, or as much of it as
    the server accepts.
    """

    def __init__(
        self,
        client: "AsyncOpenAI",
        name: str,
        sampling: Sampling,
        settings: ChatSettings | None = None,
        deadline: float = 900,
        retries: RequestRetries | None = None,
    ) -> None:
        self._client, self.name, self._sampling = client, name, sampling
        self._deadline, self._retries = deadline, retries or RequestRetries()
        self.settings = settings or ChatSettings()
        self._thinking_budget = self.settings.thinking_budget
        self._rejected = set[str]()
        self._has_answered = self._has_warned_of_cuts = False

    async def answer(self, messages: Sequence[Any], tools: Sequence[Any]) -> ApiAnswer | None:
        """Return the answer to a conversation, or None if it does not fit into the model's context.

        Raises:
            PolicyError: if there is no usable answer.
            UsageError: if the model, the key or the address is wrong.
        """
        deadline = asyncio.get_running_loop().time() + self._deadline
        try:
            async with asyncio.timeout_at(deadline):  # the only limit; the client has none
                budget = self._thinking_budget
                answer = await self._request(messages, tools, deadline)
                if answer is None or budget is not None or not _is_reasoning_cut_off(answer):
                    return answer
                if self._thinking_budget is None:  # another conversation may have set it by now
                    self._thinking_budget = DEFAULT_THINKING_BUDGET
                again = await self._request(messages, tools, deadline)
        except TimeoutError:
            message = f"{self.name} did not answer in {self._deadline:g} seconds"
            raise PolicyError("models.timeout", message) from None
        if again is None:
            return answer
        return replace(again, usage=again.usage + answer.usage if again.usage and answer.usage else None)

    async def _request(self, messages: Sequence[Any], tools: Sequence[Any], deadline: float) -> ApiAnswer | None:
        """Return an answer, or None if the conversation does not fit. Repeat the request without what is rejected."""
        from openai import APIError, APIStatusError  # takes half a second to import

        budget: int | None = self._thinking_budget or 0
        while budget is not None:
            options = self._options(budget)
            kept = _leave_out_fields(messages, self._rejected & _SENT_BACK)
            try:
                answer = await self._retries.run(partial(self._create, kept, tools, options), deadline)
                self._has_answered = True
                return read_answer(self.name, answer, tools, len(messages), self.settings)
            except APIStatusError as error:
                if rejected := read_rejected_turn(error):
                    return rejected
                budget = self._adapt(error, options, _find_fields(kept, _SENT_BACK), budget)
            except (APIError, ValueError) as error:  # openai passes on errors of the JSON parser
                raise _connection_error(self.name, error) from None
        return None

    async def _create(self, messages: Sequence[Any], tools: Sequence[Any], options: dict[str, Any]) -> Any:
        # openai converts its own parameters field by field, which takes milliseconds for a long conversation. These are
        # in the form of the API already, and `extra_body` is sent as it is.
        body: dict[str, Any] = {"messages": [*messages], "tools": [*tools], **options}
        answer = await self._client.chat.completions.create(model=self.name, messages=[], extra_body=body)
        check_not_broken_off(self.name, answer)
        return answer

    def _options(self, thinking_budget: int) -> dict[str, Any]:
        """Return the parameters that not all servers know, without those that this one has rejected."""
        most = self._sampling.max_tokens + thinking_budget
        options: dict[str, Any] = {"max_completion_tokens": most}
        # The usual default is left out: some models reject temperature or top-p, or both together.
        sampling = {"temperature": self._sampling.temperature, "top_p": self._sampling.top_p}
        options |= {name: value for name, value in sampling.items() if value != 1}
        if self.settings.parallel_calls == "refuse":  # they are allowed by default
            options["parallel_tool_calls"] = False
        if self.settings.template_kwargs:
            options["chat_template_kwargs"] = self.settings.template_kwargs
        if "max_completion_tokens" in self._rejected:
            options[_OLD_LIMIT] = most
        return {name: value for name, value in options.items() if name not in self._rejected}

    def _adapt(
        self, error: "APIStatusError", options: Mapping[str, Any], sent_back: set[str], thinking_budget: int
    ) -> int | None:
        """Return the thinking budget with which to repeat a request, or None if the conversation does not fit.

        If the server rejects one of the options, or a field that is sent back, it is left out from now on.

        Raises:
            PolicyError: if the request is not to be repeated.
            UsageError: if the model, the key or the address is wrong.
        """
        if is_too_long(error):
            return _halve(thinking_budget) if thinking_budget else None
        is_invalid = error.status_code in _INVALID
        if is_invalid and (rejected := _find_rejected(error, {*options, *sent_back} - {_OLD_LIMIT})):
            self._leave_out(rejected, options)
            return thinking_budget
        asks_too_much = (is_invalid and _TOO_MANY_TOKENS.search(error_text(error))) or is_too_large(error)
        if thinking_budget and asks_too_much:
            lower = _halve(thinking_budget)
            self._thinking_budget = min(lower, self._thinking_budget or 0)
            return lower
        if not self._has_answered:  # after that, name, key and address are right
            raise_if_misconfigured(self.name, error)
        raise _status_error(self.name, error) from None

    def _leave_out(self, rejected: set[str], options: Mapping[str, Any]) -> None:
        for name in sorted(rejected - self._rejected - {"max_completion_tokens"}):  # this one has another name instead
            if name in _SAMPLING:
                self._warn(f"does not accept {name} {options[name]:g} and samples with its own")
            elif name in options:
                self._warn(f"does not accept {name} {json.dumps(options[name])}, which is left out")
            else:
                self._warn(f"does not accept {name} in the history, which is left out")
        self._rejected |= rejected

    def warn_if_cut(self, before: int, now: int) -> None:
        """Warn once if a history that has grown has clearly fewer tokens than before. 0 stands for an unknown number.

        Servers such as Ollama leave out the beginning of a history that does not fit, and say nothing.
        """
        if 0 < now < _CLEARLY_FEWER * before and not self._has_warned_of_cuts:
            self._has_warned_of_cuts = True
            self._warn(
                f"read {now:,} tokens of a history of more than {before:,}, so its server seems to leave out the "
                "beginning: give it a larger context (of Ollama, OLLAMA_CONTEXT_LENGTH or num_ctx)"
            )

    def _warn(self, what: str) -> None:
        err.print(f"[bold yellow]warning:[/] {printable(self.name)} {printable(what)}", soft_wrap=True)


async def check_chat_server(client: "AsyncOpenAI", model: str) -> None:
    """Check that a model's server answers and accepts the key.

    Raises:
        UsageError: if it rejects the key.
        PolicyError: if it does not answer.
    """
    from openai import APIError, APIStatusError

    try:
        await client.models.list()
    except APIStatusError as error:
        if error.status_code == _NOT_FOUND:  # the server answers, but has no list of models
            return
        raise_if_misconfigured(model, error)
        raise _status_error(str(client.base_url), error) from None
    except (APIError, ValueError) as error:
        raise _connection_error(str(client.base_url), error) from None


def _is_reasoning_cut_off(answer: ApiAnswer) -> bool:
    """Return True if reasoning left no tokens for a usable call."""
    return answer.is_cut_off and not answer.parsed.calls and (answer.has_reasoning or not answer.text)


def _leave_out_fields(messages: Sequence[Any], names: set[str]) -> list[Any]:
    """Return messages without fields of these names, in the messages and in their calls."""
    if not names:
        return [*messages]
    kept = [{name: value for name, value in each.items() if name not in names} for each in messages]
    return [
        each | {"tool_calls": _leave_out_fields(each["tool_calls"], names)} if "tool_calls" in each else each
        for each in kept
    ]


def _find_fields(messages: Sequence[Any], names: set[str]) -> set[str]:
    """Return those of the names that are fields of messages or of their calls."""
    return {name for each in messages for part in (each, *each.get("tool_calls", ())) for name in names & set(part)}


def _halve(budget: int) -> int:
    return budget // 2 if budget >= 2 * _MIN_THINKING_BUDGET else 0


def _find_rejected(error: "APIStatusError", optional: set[str]) -> set[str]:
    """Return those of the optional parameters that an error reports as not supported."""
    text = error_text(error)
    beginning = text[:_ERROR_LENGTH]
    named = {each for each in optional - _COMMON if re.search(rf"\b{each}\b", text)}
    if _UNSUPPORTED.search(beginning):
        named |= {each for each in optional & _COMMON if error.param == each or re.search(rf"\b{each}\b", beginning)}
    return named


def _status_error(name: str, error: "APIStatusError") -> PolicyError:
    """Return the error for a model or an address that answered with an error status."""
    return PolicyError("models.request-failed", f"{name} answered {error.status_code}", error_text(error))


def _connection_error(name: str, error: Exception) -> PolicyError:
    """Return the error for a model or an address that cannot be reached, or whose answer cannot be read.

    Raises:
        UsageError: if the server's certificate is not trusted.
    """
    from openai import APIConnectionError

    if isinstance(error, APIConnectionError):
        raise_if_untrusted(error, name)
        return PolicyError("models.unreachable", f"{name} does not answer: {type(error).__name__}", str(error))
    return PolicyError("models.invalid-answer", f"{name}: unreadable answer: {type(error).__name__}", str(error))
