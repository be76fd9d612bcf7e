"""Any chat model behind an OpenAI-compatible address: to compare with, and to write expert trajectories."""

import json
import os
from typing import Any

from openai import APIError, APIStatusError, AsyncOpenAI

from gumshoe.agent.episode import Said
from gumshoe.agent.policy import PolicyError, Sampling
from gumshoe.agent.trajectory import Segment
from gumshoe.errors import UsageError


class ChatSpeaker:
    """A chat model's side of one conversation. Its turns have text and no ids: nothing can be trained on them.

    Tool calls come back through the API's own fields; a turn is shown in the text form that token policies use, so
    that everything behind it is the same. `sampling` is sent as far as the API knows it.
    """

    def __init__(
        self,
        client: AsyncOpenAI,
        model: str,
        system: str,
        question: str,
        tools: list[Any],
        sampling: Sampling,
    ) -> None:
        self._client, self._model, self._tools, self._sampling = client, model, tools, sampling
        self._messages: list[Any] = [
            {"role": "system", "content": system},
            {"role": "user", "content": question},
        ]
        self._called = ""
        self._coming = Segment("prompt", f"{system}\n\n{question}")

    async def say(self, result: str | None) -> Said | None:
        """As `Speaker.say`; the model's own server says when the context is full."""
        if result is not None:
            self._messages.append({"role": "tool", "tool_call_id": self._called, "content": result})
            self._coming = Segment("injected", result)
        answer = await self._answer()
        if answer is None:
            return None
        choice = answer.choices[0]
        text, kept = choice.message.content or "", []
        for call in choice.message.tool_calls or []:
            kept.append(call.model_dump(include={"id", "type", "function"}))
            text += f"\n<tool_call>\n{_as_json(call.function.name, call.function.arguments)}\n</tool_call>"
            self._called = call.id
        message = {"role": "assistant", "content": choice.message.content}
        self._messages.append(message | ({"tool_calls": kept} if kept else {}))
        text = text.strip()
        return Said((self._coming, Segment("sampled", text)), text, self._model, cut=False)

    async def _answer(self) -> Any:
        try:
            answer = await self._client.chat.completions.create(
                model=self._model,
                messages=self._messages,
                tools=self._tools,
                temperature=self._sampling.temperature,
                top_p=self._sampling.top_p,
                max_completion_tokens=self._sampling.max_tokens,
            )
        except APIStatusError as error:
            if error.code == "context_length_exceeded":
                return None
            if error.status_code in {401, 403, 404}:
                hint = "check its name, OPENAI_API_KEY and the address"
                raise UsageError(f"{self._model} cannot be asked ({error}); {hint}") from None
            raise PolicyError(f"{self._model} failed ({error})") from None
        except APIError as error:
            raise PolicyError(f"{self._model} failed ({error})") from None
        if not answer.choices:
            raise PolicyError(f"{self._model} answered with nothing")
        return answer


def _as_json(name: str, arguments: str) -> str:
    """A call as token policies write it; arguments that are not JSON are kept as they came, to be told of."""
    try:
        return json.dumps({"name": name, "arguments": json.loads(arguments or "{}")}, ensure_ascii=False)
    except ValueError:
        return f'{{"name": {json.dumps(name)}, "arguments": {arguments}}}'


def chat_client(url: str | None, *, timeout: float = 120, retries: int = 4) -> AsyncOpenAI:
    """A client for `url` (OpenAI's own where it is None), with its key from OPENAI_API_KEY.

    Raises:
        UsageError: there is no key for OpenAI itself.
    """
    key = os.environ.get("OPENAI_API_KEY") or ("none" if url else "")
    if not key:
        raise UsageError("OPENAI_API_KEY is not set; set it, or name a server of your own as chat:MODEL@URL")
    return AsyncOpenAI(base_url=url, api_key=key, timeout=timeout, max_retries=retries)
