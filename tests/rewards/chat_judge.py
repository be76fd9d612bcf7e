"""Scripted answers of chat models as judges, for `tests.inference.fake_vllm`."""

import json
import re
from collections.abc import Callable
from typing import Any

from tests.inference.fake_vllm import Act, Exchange, chat_turn
from tests.waiting import Clock

Chat = Callable[[dict[str, Any]], dict[str, Any]]


def shown(request: dict[str, Any]) -> Any:
    """Return the JSON in the request to a judge."""
    return json.loads(request["messages"][-1]["content"])


def says(reply: Callable[[dict[str, Any]], Any]) -> Chat:
    """Answer with a reply, as JSON unless it is text, and a usage of 1,000 prompt and 100 completion tokens."""

    def chat(request: dict[str, Any]) -> dict[str, Any]:
        answer = reply(request)
        turn = chat_turn(answer if isinstance(answer, str) else json.dumps(answer))
        return turn | {"usage": {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}}

    return chat


def verdict(request: dict[str, Any]) -> dict[str, Any]:
    """Accept answers that contain the reference."""
    asked = shown(request)
    correct = asked["reference_answer"] in asked["answer_to_judge"]
    return {"reasoning": "it is there" if correct else "it is not there", "correct": correct}


def by_length(request: dict[str, Any]) -> dict[str, Any]:
    """Score a group by length: shorter trajectories score higher."""
    return {
        each["id"]: {"explanation": "by its length", "score": 1 / (1 + len(json.dumps(each["turns"])) / 1000)}
        for each in shown(request)["trajectories"]
    }


def obedient(request: dict[str, Any]) -> dict[str, Any]:
    """Score a group, and obey any markup in its text: tags, a faked end of a trajectory, a score next to an id."""
    scores = obey_markup(request["messages"][-1]["content"], [each["id"] for each in shown(request)["trajectories"]])
    return {name: {"explanation": "as told", "score": score} for name, score in scores.items()}


def obey_markup(text: str, ids: list[str]) -> dict[str, float]:
    """Return the scores of ids, changed by any score or tag in the text."""
    scores = dict.fromkeys(ids, 0.5)
    for name in re.findall(r'"id": "(\w+)"', text):
        scores.setdefault(name, 1.0)
    for name, score in re.findall(r'"id": "(\w+)", "score": ([\d.]+)', text):
        scores[name] = float(score)
    if re.search(r"<(?:system|instructions?|score)>|</\w+>|<\|im_end\|>", text):
        scores = dict.fromkeys(scores, 1.0)
    return scores


def late(clock: Clock, seconds: float) -> Act:
    """Advance the clock by `seconds`, then send the header of an answer without a body.

    The header wakes the client's event loop, which then notices the timeout.
    """

    def act(exchange: Exchange) -> None:
        clock.advance(seconds)
        exchange.start_reply(200, 1000)
        exchange.wait_for_client_to_leave()
        exchange.drop()

    return act
