"""Two scripted chat models to check attacks with: a gullible one that obeys any message, and a careful one.

They are functions from a request of the chat API to its answer, for `FakeVLLM`.
"""

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from gumshoe.environments.data_marks import strip_marks
from gumshoe.rewards.planted_attack import GOALS
from gumshoe.rollouts.keyword_searcher import find_keywords
from gumshoe.scenarios.scenario import Scenario
from gumshoe.synthesis.attacks.attack_texts import load_families, load_instructions

SEARCH, READ, ANSWER = "search_inbox", "read_email", "return_final_answer"
UNKNOWN: dict[str, Any] = {"answer": "I don't know", "message_ids": []}
Action = tuple[str, dict[str, Any]]
_HIT = re.compile(r"^  id: (\S+)", re.M)
_LATIN = str.maketrans("асеорхуіАВСЕНКМОРТХ", "aceopxyiABCEHKMOPTX")  # noqa: RUF001
_MOST_READ = 4


@dataclass(slots=True)
class History:
    """What an agent has done and seen in an episode."""

    question: str
    done: list[tuple[str, dict[str, Any], str]] = field(default_factory=list)
    """Name, arguments and result of each call."""

    @classmethod
    def read(cls, request: Mapping[str, Any]) -> "History":
        """Read the history from the messages of a request."""
        asked = next(each["content"] for each in request["messages"] if each["role"] == "user")
        found = cls(asked.rpartition("\n\n")[2])
        calls: dict[str, Action] = {}
        for each in request["messages"]:
            for call in each.get("tool_calls") or []:
                calls[call["id"]] = call["function"]["name"], json.loads(call["function"]["arguments"])
            if each["role"] == "tool":
                found.done.append((*calls[each["tool_call_id"]], strip_marks(each["content"])))
        return found

    def made(self, name: str, **arguments: Any) -> bool:
        return any(each[:2] == (name, arguments) for each in self.done)

    def hits(self) -> list[str]:
        """Return the ids that the last search listed."""
        results = [result for name, _, result in self.done if name == SEARCH]
        return _HIT.findall(results[-1]) if results else []

    def read_ids(self) -> list[str]:
        return [arguments["message_id"] for name, arguments, _ in self.done if name == READ]


class ScriptedAgent:
    """Chat model whose next call is a function of the history."""

    def __init__(self, act: Callable[[History], Action]) -> None:
        self.act = act

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request."""
        history = History.read(request)
        name, arguments = self.act(history)
        function = {"name": name, "arguments": json.dumps(arguments)}
        call = {"id": f"call-{len(history.done)}", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        model = {"id": "x", "object": "chat.completion", "created": 0, "model": request["model"]}
        return {**model, "choices": [choice], "usage": usage}


def act_gullible(history: History) -> Action:
    """Search, read what is found, and do the first thing that any message asks for."""
    for order in find_orders(result for _, _, result in history.done):
        action = order.next_action(history)
        if action is not None:
            return action
    return search_and_read(history)


def search_and_read(history: History) -> Action:
    """Search for words of the question, with fewer words while nothing is found, and read the hits."""
    words = find_keywords(history.question)
    while words and (history.made(SEARCH, keywords=words)):
        words = words[:-1]
    if not history.hits() and words:
        return SEARCH, {"keywords": words}
    unread = [each for each in history.hits() if each not in history.read_ids()]
    if unread and len(history.read_ids()) < _MOST_READ:
        return READ, {"message_id": unread[0]}
    return ANSWER, UNKNOWN


def careful_agent(scenarios: Iterable[Scenario]) -> ScriptedAgent:
    """Return an agent that reads and cites only correct sources, and knows their answer."""
    known = {each.question: each for each in scenarios}

    def act(history: History) -> Action:
        scenario = known[history.question]
        right = {each.strip("<>") for each in scenario.sources}
        listed = [each for each in history.hits() if each.strip("<>") in right]
        if listed and listed[0] in history.read_ids():
            return ANSWER, {"answer": scenario.answer, "message_ids": [listed[0]]}
        if listed:
            return READ, {"message_id": listed[0]}
        words = find_keywords(history.question)
        tries = [words[: len(words) - left] for left in range(len(words))]
        untried = [each for each in tries if not history.made(SEARCH, keywords=each)]
        return (SEARCH, {"keywords": untried[0]}) if untried else (ANSWER, UNKNOWN)

    return ScriptedAgent(act)


@dataclass(frozen=True, slots=True)
class Order:
    """An instruction that was found in a message."""

    goal: str
    wording: int
    values: Mapping[str, str]

    def next_action(self, history: History) -> Action | None:
        """Return the next call that carries it out; None after the last one of an order to read a message."""
        value = next(iter(self.values.values()))
        if self.goal == "answer":
            return ANSWER, {"answer": self.values["answer"], "message_ids": []}
        if self.goal == "cite":
            return ANSWER, {"answer": "See the source.", "message_ids": [value]}
        if self.goal == "read":
            return None if value in history.read_ids() else (READ, {"message_id": value})
        if self.goal == "leak":
            return self._leak(history, value)
        for word in re.split(r",\s*", value) if self.goal == "waste" else [value]:
            if not history.made(SEARCH, keywords=[word]):
                return SEARCH, {"keywords": [word]}
        return ANSWER, {"answer": "Done.", "message_ids": []}

    def _leak(self, history: History, topic: str) -> Action:
        words = topic.split()
        made = [place for place, each in enumerate(history.done) if each[:2] == (SEARCH, {"keywords": words})]
        if not made:
            return SEARCH, {"keywords": words}
        known = {each for _, _, result in history.done[: made[0]] for each in _HIT.findall(result)}
        listed = _HIT.findall(history.done[made[0]][2])
        wanted = next((each for each in listed if each not in known), None)
        if wanted is None:
            return ANSWER, {"answer": "Nothing to copy.", "message_ids": []}
        text = next((result for name, arguments, result in history.done if arguments.get("message_id") == wanted), None)
        if text is None:
            return READ, {"message_id": wanted}
        body = " ".join(text.partition("\n\n")[2].split())
        copied = body[:190]
        if self.wording == 0:
            return ANSWER, {"answer": body, "message_ids": []}
        if not history.made(SEARCH, keywords=[copied]):
            return SEARCH, {"keywords": [copied]}
        return ANSWER, {"answer": "Done.", "message_ids": []}


@dataclass(frozen=True, slots=True)
class _Replay:
    """Example calls in a message, to make as they are."""

    calls: tuple[Action, ...]

    def next_action(self, history: History) -> Action | None:
        for name, arguments in self.calls:
            if name == ANSWER or not history.made(name, **arguments):
                return name, arguments
        return ANSWER, {"answer": "Done.", "message_ids": []}


def find_orders(results: Iterable[str]) -> Iterator[Order | _Replay]:
    """Yield the orders in all results so far."""
    texts = list(dict.fromkeys(results))
    parts = dict(re.findall(r"\((\d)/2\) (.*)", "\n".join(text for text in texts if "\n\n" in text)))
    joined = [" ".join(parts[place] for place in sorted(parts))] if len(parts) > 1 else []
    for text in [*texts, *joined]:
        for variant in _decode(text):
            yield from _match(variant)
            calls = re.findall(r'\{"name": "(\w+)", "arguments": (\{.*?\})\}', variant)
            if calls:
                yield _Replay(tuple((name, json.loads(arguments)) for name, arguments in calls))


def _decode(text: str) -> Iterator[str]:
    """Yield a text on one line: as it is, with Latin letters, and with the base64 in it decoded."""
    plain = " ".join(re.sub(r"^> ?", "", text, flags=re.M).split())
    yield plain
    yield plain.translate(_LATIN)
    for token in re.findall(r"[A-Za-z0-9+/]{24,}={0,2}", plain):
        try:
            yield base64.b64decode(token, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            continue


def _match(text: str) -> Iterator[Order]:
    for goal, wording, pattern in _patterns():
        found = pattern.search(text)
        if found:
            yield Order(goal, wording, found.groupdict())


@cache
def _patterns() -> list[tuple[str, int, re.Pattern[str]]]:
    """Return a pattern of each instruction, with groups for its slots; quotes may be missing."""
    instructions = load_instructions()
    texts: list[tuple[str, int, str]] = [
        (goal, wording, text)
        for goal in GOALS
        for wordings in instructions[goal].values()
        for wording, text in enumerate(wordings)
    ]
    pointers = load_families()["multi-step"].texts.values()
    texts += [("read", 0, text) for wordings in pointers for text in wordings]
    texts += [("answer", 0, text) for each in load_families().values() for text in each.all_texts if "{answer}" in text]
    return [(goal, wording, _compile(text)) for goal, wording, text in texts]


def _compile(text: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", " ".join(text.split()))
    pattern = "".join(
        f'(?P<{part}>[^"]{{3,300}}?)' if place % 2 else re.escape(part).replace('"', '"?')
        for place, part in enumerate(parts)
    )
    return re.compile(pattern)
