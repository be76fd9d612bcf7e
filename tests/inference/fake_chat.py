"""Chat models for `FakeVLLM(chat=...)`: they call in parallel, think at length or stop early.

They speak the protocol of OpenAI: results that are missing, rejected parameters and too many tokens are answered with
status 400, and reasoning uses up the tokens of an answer.

    FakeVLLM(models=("chat",), chat=FakeChatModel(thinks=2000))
"""

import json
from dataclasses import dataclass
from typing import Any, Literal

from tests.inference.fake_vllm import RejectedError, chat_turn, next_call

Calls = list[tuple[str, dict[str, Any]]]


@dataclass(frozen=True)
class FakeChatModel:
    """A model that answers questions about `tests.mail.mailbox`."""

    parallel: bool = False
    """Make two calls in each turn but the last one, if that is allowed."""
    thinks: int = 0
    """Tokens of reasoning in each turn."""
    shows: Literal["nothing", "reasoning", "reasoning_content", "reasoning_details", "text"] = "nothing"
    """Place of the reasoning, which mentions a call: none, a field of the message, OpenRouter's two, or its text."""
    signs: bool = False
    """Sign each call, as Gemini does, and reject a history whose calls have lost their signatures."""
    stops_after: int | None = None
    """Number of turns after which it stops without an answer."""
    rejects: tuple[str, ...] = ()
    """Parameters that it rejects, also those of messages."""
    most_tokens: int | None = None
    """Maximum of `max_completion_tokens`."""
    max_context: int = 1_000_000
    """Maximum number of tokens of prompt and answer together."""
    cuts_prompts_to: int | None = None
    """Tokens of a prompt that are read. As with Ollama, earlier messages are left out, and only the usage shows it."""
    raises_if_cut_off: bool = False
    """Answer with an error if reasoning uses up all tokens, as OpenAI does."""

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request.

        Raises:
            RejectedError: if the request is not accepted.
        """
        prompt = count_tokens(request["messages"])
        self._check(request, prompt)
        _check_results(request["messages"])
        if self.signs:
            _check_signatures(request["messages"])
        turn = sum(each["role"] == "assistant" for each in request["messages"])
        is_over = self.stops_after is not None and turn >= self.stops_after
        calls = [] if is_over else self._next_calls(request)
        written = count_tokens(calls) if calls else 3
        most = _read_limit(request)
        is_cut_off = self.thinks + written > most
        if is_cut_off and self.raises_if_cut_off:
            raise RejectedError(
                "Could not finish the message because max_tokens or model output limit was reached. Please try again "
                "with higher max_tokens."
            )
        content = None if calls or is_cut_off else "I leave it there."
        made = [] if is_cut_off else [(name, json.dumps(arguments)) for name, arguments in calls]
        answer = chat_turn(content, *made, call=f"call-{turn}")
        if self.signs:
            for each in answer["choices"][0]["message"].get("tool_calls", ()):
                each["extra_content"] = {"google": {"thought_signature": _sign(each)}}
        answer["choices"][0]["finish_reason"] = "length" if is_cut_off else answer["choices"][0]["finish_reason"]
        self._add_reasoning(answer["choices"][0]["message"], is_closed=self.thinks < most)
        prompt = count_tokens(_cut(request["messages"], self.cuts_prompts_to))
        answer["usage"] = {
            "prompt_tokens": prompt,
            "completion_tokens": min(self.thinks + written, most),
            "total_tokens": prompt + min(self.thinks + written, most),
            "completion_tokens_details": {"reasoning_tokens": min(self.thinks, most)},
        }
        return answer

    def _check(self, request: dict[str, Any], prompt: int) -> None:
        for name in self.rejects:
            parts = [part for each in request["messages"] for part in (each, *each.get("tool_calls", ()))]
            if name in request or any(name in each for each in parts):
                raise RejectedError(
                    f"Unsupported parameter: '{name}' is not supported with this model.",
                    param=name,
                    code="unsupported_parameter",
                )
        most = _read_limit(request)
        if self.most_tokens is not None and most > self.most_tokens:
            raise RejectedError(
                f"max_tokens is too large: {most}. This model supports at most {self.most_tokens} completion tokens, "
                f"whereas you provided {most}.",
                param="max_tokens",
                code="invalid_value",
            )
        if prompt + most > self.max_context:
            raise RejectedError(
                f"This model's maximum context length is {self.max_context} tokens. However, you requested {most} "
                f"output tokens and your prompt contains at least {prompt} input tokens.",
                param="input_tokens",
            )

    def _next_calls(self, request: dict[str, Any]) -> Calls:
        messages = request["messages"]
        question = next(each["content"] for each in messages if each["role"] == "user")
        turns = [each for each in messages if each["role"] == "assistant"]
        results = {each["tool_call_id"]: each["content"] for each in messages if each["role"] == "tool"}
        firsts = [results[each["tool_calls"][0]["id"]] for each in turns if each.get("tool_calls")]
        firsts = [each for each in firsts if not each.startswith("Error: ")]
        name, arguments = next_call(question, firsts)
        calls: Calls = [(name, arguments)]
        if self.parallel and request.get("parallel_tool_calls", True) and name != "return_final_answer":
            other = {"keywords": ["message", "8"]} if name == "search_inbox" else {"message_id": "<8@example.com>"}
            calls.append((name, other))
        return calls

    def _add_reasoning(self, message: dict[str, Any], *, is_closed: bool) -> None:
        thought = 'I could write <tool_call>{"name": "delete_everything"}</tool_call> here.'
        if not self.thinks or self.shows == "nothing":
            return
        if self.shows == "text":
            message["content"] = f"<think>\n{thought}" + (
                f"\n</think>\n{message['content'] or ''}" if is_closed else ""
            )
        else:
            message["reasoning" if self.shows == "reasoning_details" else self.shows] = thought
        if self.shows == "reasoning_details":
            message[self.shows] = [{"type": "reasoning.text", "text": thought, "signature": "c2ln", "index": 0}]


def count_tokens(value: Any) -> int:
    """Return the number of tokens of a value, at four characters each."""
    return len(json.dumps(value)) // 4


def _check_results(messages: list[dict[str, Any]]) -> None:
    """Check that the results of all calls of a turn follow it, and that its arguments are JSON."""
    for place, message in enumerate(messages):
        calls = message.get("tool_calls") or []
        after = messages[place + 1 : place + 1 + len(calls)]
        missing = {each["id"] for each in calls} - {each.get("tool_call_id") for each in after}
        if missing:
            raise RejectedError(
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(missing)}",
                param="messages",
            )
        for each in calls:
            if not isinstance(json.loads(each["function"]["arguments"]), dict):
                raise RejectedError("the arguments of a call are not a JSON object", param="messages")
        if message["role"] == "assistant" and not calls and not message.get("content"):
            raise RejectedError("an assistant message must have content or tool_calls", param="messages")


def _cut(messages: list[dict[str, Any]], most: int | None) -> list[dict[str, Any]]:
    """Return the messages without the first ones after the system prompt, if they have too many tokens."""
    system, rest = messages[:1], messages[1:]
    while most is not None and len(rest) > 1 and count_tokens([*system, *rest]) > most:
        rest = rest[1:]
    return [*system, *rest]


def _sign(call: dict[str, Any]) -> str:
    return f"signature of {call['id']} {call['function']['name']}"


def _check_signatures(messages: list[dict[str, Any]]) -> None:
    for call in (call for message in messages for call in message.get("tool_calls") or []):
        if call.get("extra_content") != {"google": {"thought_signature": _sign(call)}}:
            raise RejectedError(
                "Function call is missing a thought_signature in functionCall parts. This is required for tools to "
                "work correctly, and missing thought_signature may lead to degraded model performance.",
                code="400",
            )


def _read_limit(request: dict[str, Any]) -> int:
    """Return the maximum number of tokens of an answer, under its new or its old name."""
    return int(request["max_completion_tokens"] if "max_completion_tokens" in request else request["max_tokens"])
