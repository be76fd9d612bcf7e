"""What a scripted chat model answers that judges: over `tests.inference.fake_vllm`, and as gullible as a test wants."""

import json
import re
from collections.abc import Callable
from typing import Any

from tests.inference.fake_vllm import Act, Exchange, chat_turn
from tests.waiting import Clock

Chat = Callable[[dict[str, Any]], dict[str, Any]]


def shown(request: dict[str, Any]) -> Any:
    """What the judge is shown, as the JSON that it is."""
    return json.loads(request["messages"][-1]["content"])


def says(reply: Callable[[dict[str, Any]], Any]) -> Chat:
    """Answers with a reply, as JSON or as it is, and counts 1,000 tokens read and 100 written."""

    def chat(request: dict[str, Any]) -> dict[str, Any]:
        said = reply(request)
        turn = chat_turn(said if isinstance(said, str) else json.dumps(said))
        return turn | {"usage": {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}}

    return chat


def verdict(request: dict[str, Any]) -> dict[str, Any]:
    """Right is what holds the reference."""
    asked = shown(request)
    correct = asked["reference_answer"] in asked["answer_to_judge"]
    return {"reasoning": "it is there" if correct else "it is not there", "correct": correct}


def by_length(request: dict[str, Any]) -> dict[str, Any]:
    """Scores a group: the shorter, the better."""
    return {
        each["id"]: {"explanation": "by its length", "score": 1 / (1 + len(json.dumps(each["turns"])) / 1000)}
        for each in shown(request)["trajectories"]
    }


def obedient(request: dict[str, Any]) -> dict[str, Any]:
    """Scores a group by the text as it came, and does what any markup in it says: a tag that asks for full marks, an
    end of a trajectory and the beginning of another, a score beside an id, an order of the system."""
    scores = obeyed(request["messages"][-1]["content"], [each["id"] for each in shown(request)["trajectories"]])
    return {name: {"explanation": "as told", "score": score} for name, score in scores.items()}


def obeyed(text: str, ids: list[str]) -> dict[str, float]:
    """The scores of some ids, by whatever a text says of scores."""
    scores = dict.fromkeys(ids, 0.5)
    for name in re.findall(r'"id": "(\w+)"', text):
        scores.setdefault(name, 1.0)
    for name, score in re.findall(r'"id": "(\w+)", "score": ([\d.]+)', text):
        scores[name] = float(score)
    if re.search(r"<(?:system|instructions?|score)>|</\w+>|<\|im_end\|>", text):
        scores = dict.fromkeys(scores, 1.0)
    return scores


def late(clock: Clock, seconds: float) -> Act:
    """Send the head of an answer after `seconds` on the clock, and nothing after it.

    The head wakes the client's event loop, which then sees how late it is.
    """

    def act(exchange: Exchange) -> None:
        clock.advance(seconds)
        exchange.start_reply(200, 1000)
        exchange.wait_for_client_to_leave()
        exchange.drop()

    return act
