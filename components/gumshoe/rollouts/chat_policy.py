"""Chat models on OpenAI-compatible servers, for comparison and for expert trajectories."""

import json
from collections.abc import Sequence
from typing import Any

from gumshoe.environments.tools import Call
from gumshoe.rollouts.call_forms import UnusableCallError, find_form
from gumshoe.rollouts.chat_answers import EXTRA_CONTENT, REASONING_DETAILS, ApiAnswer, ApiCall
from gumshoe.rollouts.chat_model import ApiChatModel
from gumshoe.rollouts.control_tokens import break_control_tokens
from gumshoe.rollouts.episode import Turn
from gumshoe.rollouts.trajectory import Span

_HERMES = find_form("hermes")


class ApiChatSession:
    """Chat session with a chat model. Its turns have text but no token ids, so they cannot be trained on.

    Tool calls arrive in the API's own fields. In the trajectory they are text in the form of Hermes, without reasoning,
    so that all other code is the same as for token policies. Only the sampling parameters that the API has are sent.

    Control tokens of known model families in the question and in results of tools are broken up, so that a message
    cannot end a result or begin another turn.
    """

    def __init__(self, model: ApiChatModel, system: str, question: str, tools: list[Any]) -> None:
        self._model, self._tools = model, tools
        question = break_control_tokens(question)
        self.settings = model.settings
        self._messages: list[Any] = [
            {"role": "system", "content": system},
            {"role": "user", "content": question},
        ]
        self._call_ids: list[str] = []
        self._prompt_tokens = 0  # of the last request
        described = [json.dumps(tool, ensure_ascii=False) for tool in tools]
        self._next_input: tuple[Span, ...] = (Span("prompt", "\n\n".join([system, *described, question])),)

    def add_results(self, calls: Sequence[Call], results: Sequence[str]) -> Sequence[str]:  # noqa: ARG002 - the ids are known
        """Add the results of the last turn's calls. A turn that has no usable call may have one for all of them."""
        shown = list(map(break_control_tokens, results))
        is_paired = len(shown) == len(self._call_ids)
        texts = shown if is_paired else ["\n\n".join(shown)] * len(self._call_ids)
        self._messages += [
            {"role": "tool", "tool_call_id": call, "content": text}
            for call, text in zip(self._call_ids, texts, strict=True)
        ]
        if not self._call_ids:  # calls that were written as text have no ids
            self._messages.append({"role": "user", "content": "\n\n".join(shown)})
            self._prompt_tokens = 0  # templates may leave out the reasoning before a message of the user
        self._next_input = tuple(Span("injected", result) for result in shown)
        return results

    async def next_turn(self) -> Turn | None:
        """Return the next turn, or None if the model's server reports that the context is full."""
        answer = await self._model.answer(self._messages, self._tools)
        if answer is None:
            return None
        self._model.warn_if_cut(self._prompt_tokens, answer.prompt_tokens)
        self._prompt_tokens = answer.prompt_tokens
        if answer.text or answer.calls:  # some servers reject empty messages
            self._messages.append(self._to_message(answer))
        self._call_ids = [call.id for call in answer.calls]
        text = "\n".join([answer.text, *map(_write_call, answer.calls)]).strip()
        span = Span("sampled", text, calls=answer.parsed.calls, has_reasoning=answer.has_reasoning)
        return Turn(
            (*self._next_input, span),
            answer.parsed,
            self._model.name,
            is_truncated=False,
            usage=answer.usage,
            is_cut_off=answer.is_cut_off,
        )

    def _to_message(self, answer: ApiAnswer) -> dict[str, Any]:
        """Return an answer as a message of the history, with its reasoning if the settings keep it."""
        is_kept = self.settings.reasoning_history == "keep"
        message: dict[str, Any] = {"role": "assistant", "content": (answer.content if is_kept else answer.text) or None}
        if answer.calls:
            message["tool_calls"] = [_to_api(call) for call in answer.calls]
        if answer.reasoning_field and is_kept:
            message[answer.reasoning_field] = answer.parsed.reasoning
        if answer.reasoning_details and is_kept:
            message[REASONING_DETAILS] = answer.reasoning_details
        return message


def _write_call(call: ApiCall) -> str:
    """Return a call in the form of Hermes. Arguments that cannot be used stay as they are."""
    try:
        return _HERMES.write([call.parse()])
    except UnusableCallError:
        return f'<tool_call>\n{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}\n</tool_call>'


def _to_api(call: ApiCall) -> dict[str, Any]:
    """Return a call as the API has it. Servers reject arguments that cannot be used, so these are quoted."""
    arguments = call.arguments
    try:
        call.parse()
    except UnusableCallError:
        arguments = json.dumps({"unparseable": arguments})
    made = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
    return made | ({EXTRA_CONTENT: call.extra_content} if call.extra_content else {})
