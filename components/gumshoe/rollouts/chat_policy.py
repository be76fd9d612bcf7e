"""Any chat model behind an OpenAI-compatible address: to compare with, and to write expert trajectories."""

import asyncio
import json
from typing import TYPE_CHECKING, Any

from gumshoe.endpoint import check_known, is_too_long
from gumshoe.inference.policy import PolicyError, Sampling
from gumshoe.rollouts.episode import Turn
from gumshoe.rollouts.trajectory import Segment, TokenUsage

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

_NOT_FOUND = 404


class ApiChatSession:
    """A chat model's side of one conversation. Its turns have text and no ids: nothing can be trained on them.

    Tool calls come back through the API's own fields; a turn is shown in the text form that token policies use, so
    that everything behind it is the same. `sampling` is sent as far as the API knows it. `deadline`, in seconds, is for
    one turn with all its tries.
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
        self._called: str | None = None
        described = [json.dumps(tool, ensure_ascii=False) for tool in tools]
        self._coming = Segment("prompt", "\n\n".join([system, *described, question]))

    def add_tool_result(self, result: str) -> None:
        """As `ChatSession.add_tool_result`."""
        asked = {"role": "tool", "tool_call_id": self._called} if self._called else {"role": "user"}
        self._messages.append({**asked, "content": result})  # a call that was written as text has no id
        self._coming = Segment("injected", result)

    async def next_turn(self) -> Turn | None:
        """As `ChatSession.next_turn`; the model's own server says when the context is full."""
        answer = await self._answer()
        if answer is None:
            return None
        text, calls, usage = answer
        self._messages.append(
            {"role": "assistant", "content": text or None, **({"tool_calls": calls} if calls else {})}
        )
        self._called = calls[-1]["id"] if calls else None
        for call in calls:
            text += f"\n<tool_call>\n{_as_json(**call['function'])}\n</tool_call>"
        text = text.strip()
        return Turn((self._coming, Segment("sampled", text)), text, self._model, cut=False, usage=usage)

    async def _answer(self) -> tuple[str, list[dict[str, Any]], TokenUsage | None] | None:
        """Return the text and the calls of the next turn; None if the context is full."""
        from openai import APIError, APIStatusError  # takes half a second to import

        try:
            async with asyncio.timeout(self._deadline):  # the client's own is for each read
                answer: Any = await self._client.chat.completions.create(
                    model=self._model,
                    messages=self._messages,
                    tools=self._tools,
                    temperature=_unless_plain(self._sampling.temperature),
                    top_p=_unless_plain(self._sampling.top_p),
                    max_completion_tokens=self._sampling.max_tokens,
                )
        except TimeoutError:
            said = f"{self._model} did not answer in {self._deadline:g} seconds"
            raise PolicyError("models.timeout", said) from None
        except APIStatusError as error:
            if is_too_long(error):
                return None
            check_known(self._model, error)
            raise _status_error(self._model, error) from None
        except (APIError, ValueError) as error:  # openai passes on what JSON's parser says
            raise _no_answer(self._model, error) from None
        try:
            message = answer.choices[0].message
            text = (
                (message.content or "").encode(errors="replace").decode()
            )  # halves of code points cannot be sent back
            calls = [_kept(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or []]
        except (AttributeError, IndexError, TypeError):
            raise PolicyError("models.invalid-answer", f"{self._model}: the answer is not a chat completion") from None
        return text, calls, _billed(answer)


async def check_chat(client: "AsyncOpenAI", model: str) -> None:
    """Check that a model's server answers and accepts the key.

    Raises:
        UsageError: it rejects the key.
        PolicyError: it does not answer.
    """
    from openai import APIError, APIStatusError

    try:
        await client.models.list()
    except APIStatusError as error:
        if error.status_code == _NOT_FOUND:  # it lists none, and is there
            return
        check_known(model, error)
        raise _status_error(str(client.base_url), error) from None
    except (APIError, ValueError) as error:
        raise _no_answer(str(client.base_url), error) from None


def _status_error(name: str, error: "APIStatusError") -> PolicyError:
    """Return the error for a model or an address that answered with an error status."""
    return PolicyError("models.request-failed", f"{name} answered {error.status_code}", str(error))


def _no_answer(name: str, error: Exception) -> PolicyError:
    """Return the error for a model or an address that cannot be reached, or whose answer cannot be read."""
    from openai import APIConnectionError

    if isinstance(error, APIConnectionError):
        return PolicyError("models.unreachable", f"{name} does not answer: {type(error).__name__}", str(error))
    return PolicyError("models.invalid-answer", f"{name}: unreadable answer: {type(error).__name__}", str(error))


def _billed(answer: Any) -> TokenUsage | None:
    read, written = (getattr(answer.usage, name, None) for name in ("prompt_tokens", "completion_tokens"))
    return TokenUsage(read, written) if isinstance(read, int) and isinstance(written, int) else None


def _unless_plain(value: float) -> Any:
    """Leave out a value of 1: some models accept no temperature or top-p, or not both, and 1 is the usual default."""
    from openai import omit

    return omit if value == 1 else value


def _kept(call: str, name: str, arguments: str | None) -> dict[str, Any]:
    """A call as it is sent back with the conversation."""
    if not (isinstance(call, str) and isinstance(name, str) and isinstance(arguments, str | None)):
        raise TypeError
    return {"id": call, "type": "function", "function": {"name": name, "arguments": arguments or "{}"}}


def _as_json(name: str, arguments: str) -> str:
    """A call as token policies write it; arguments that are not JSON are kept as they came, to be told of."""
    try:
        return json.dumps({"name": name, "arguments": json.loads(arguments)}, ensure_ascii=False)
    except (ValueError, RecursionError):
        return f'{{"name": {json.dumps(name)}, "arguments": {arguments}}}'
