"""Chat models on OpenAI-compatible servers, for comparison and for expert trajectories."""

import asyncio
import json
from typing import TYPE_CHECKING, Any

from gumshoe.endpoint import is_too_long, raise_if_misconfigured
from gumshoe.inference.policy import PolicyError, Sampling
from gumshoe.rollouts.episode import Turn
from gumshoe.rollouts.trajectory import Segment, TokenUsage

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

_NOT_FOUND = 404


class ApiChatSession:
    """Chat session with a chat model. Its turns have text but no token ids, so they cannot be trained on.

    Tool calls arrive in the API's own fields. They are converted to the text form of token policies, so that all other
    code is the same. Only the sampling parameters that the API has are sent. `deadline`, in seconds, is for one turn
    with all its attempts.
    """

    def __init__(
        self,
        client: "AsyncOpenAI",
        model: str,
        system: str,
        question: str,
        tools: list[Any],
        sampling: Sampling,
        deadline: float = 900,
    ) -> None:
        self._client, self._model, self._tools, self._sampling = client, model, tools, sampling
        self._deadline = deadline
        self._messages: list[Any] = [
            {"role": "system", "content": system},
            {"role": "user", "content": question},
        ]
        self._call_id: str | None = None
        described = [json.dumps(tool, ensure_ascii=False) for tool in tools]
        self._next_input = Segment("prompt", "\n\n".join([system, *described, question]))

    def add_tool_result(self, result: str) -> None:
        """Add a tool's result. See `ChatSession.add_tool_result`."""
        sender = {"role": "tool", "tool_call_id": self._call_id} if self._call_id else {"role": "user"}
        self._messages.append({**sender, "content": result})  # a call that was written as text has no id
        self._next_input = Segment("injected", result)

    async def next_turn(self) -> Turn | None:
        """Return the next turn, or None if the model's server reports that the context is full."""
        answer = await self._request_turn()
        if answer is None:
            return None
        text, calls, usage = answer
        self._messages.append(
            {"role": "assistant", "content": text or None, **({"tool_calls": calls} if calls else {})}
        )
        self._call_id = calls[-1]["id"] if calls else None
        for call in calls:
            text += f"\n<tool_call>\n{_format_call(**call['function'])}\n</tool_call>"
        text = text.strip()
        return Turn((self._next_input, Segment("sampled", text)), text, self._model, is_truncated=False, usage=usage)

    async def _request_turn(self) -> tuple[str, list[dict[str, Any]], TokenUsage | None] | None:
        """Return the text, the calls and the token usage of the next turn, or None if the context is full."""
        from openai import APIError, APIStatusError  # takes half a second to import

        try:
            async with asyncio.timeout(self._deadline):  # the client's timeout is per read
                answer: Any = await self._client.chat.completions.create(
                    model=self._model,
                    messages=self._messages,
                    tools=self._tools,
                    temperature=_omit_default(self._sampling.temperature),
                    top_p=_omit_default(self._sampling.top_p),
                    max_completion_tokens=self._sampling.max_tokens,
                )
        except TimeoutError:
            message = f"{self._model} did not answer in {self._deadline:g} seconds"
            raise PolicyError("models.timeout", message) from None
        except APIStatusError as error:
            if is_too_long(error):
                return None
            raise_if_misconfigured(self._model, error)
            raise _status_error(self._model, error) from None
        except (APIError, ValueError) as error:  # openai passes on errors of the JSON parser
            raise _connection_error(self._model, error) from None
        try:
            message = answer.choices[0].message
            text = (message.content or "").encode(errors="replace").decode()  # lone surrogates cannot be sent back
            calls = [
                _to_api_call(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or []
            ]
        except (AttributeError, IndexError, TypeError):
            raise PolicyError("models.invalid-answer", f"{self._model}: the answer is not a chat completion") from None
        return text, calls, _read_usage(answer)


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


def _status_error(name: str, error: "APIStatusError") -> PolicyError:
    """Return the error for a model or an address that answered with an error status."""
    return PolicyError("models.request-failed", f"{name} answered {error.status_code}", str(error))


def _connection_error(name: str, error: Exception) -> PolicyError:
    """Return the error for a model or an address that cannot be reached, or whose answer cannot be read."""
    from openai import APIConnectionError

    if isinstance(error, APIConnectionError):
        return PolicyError("models.unreachable", f"{name} does not answer: {type(error).__name__}", str(error))
    return PolicyError("models.invalid-answer", f"{name}: unreadable answer: {type(error).__name__}", str(error))


def _read_usage(answer: Any) -> TokenUsage | None:
    read, written = (getattr(answer.usage, name, None) for name in ("prompt_tokens", "completion_tokens"))
    return TokenUsage(read, written) if isinstance(read, int) and isinstance(written, int) else None


def _omit_default(value: float) -> Any:
    """Omit a value of 1, the usual default: some models reject temperature or top-p, or both together."""
    from openai import omit

    return omit if value == 1 else value


def _to_api_call(call: str, name: str, arguments: str | None) -> dict[str, Any]:
    """Return a call in the form of the API, to send it back with the conversation."""
    if not (isinstance(call, str) and isinstance(name, str) and isinstance(arguments, str | None)):
        raise TypeError
    return {"id": call, "type": "function", "function": {"name": name, "arguments": arguments or "{}"}}


def _format_call(name: str, arguments: str) -> str:
    """Return a call in the form of token policies. Arguments that are not JSON stay unchanged, to be reported."""
    try:
        return json.dumps({"name": name, "arguments": json.loads(arguments)}, ensure_ascii=False)
    except (ValueError, RecursionError):
        return f'{{"name": {json.dumps(name)}, "arguments": {arguments}}}'
