"""The mode `simple`: plain TRL on the first turn alone, rewarded by what it looks like. No episode is run."""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from gumshoe.environments.registry import EnvFactory
from gumshoe.environments.tools import BadArgumentsError, UnknownToolError
from gumshoe.rewards.exact_match import is_exact
from gumshoe.rollouts.chat_format import ChatFormat, UnusableCallError, parse_call
from gumshoe.scenarios.scenario import Scenario

if TYPE_CHECKING:
    from datasets import Dataset

_LONG = 4  # letters


def static_prompts(scenarios: Iterable[Scenario], world: EnvFactory, chat: ChatFormat, max_turns: int) -> "Dataset":
    """What episodes begin with, as text, with each question and its reference answer."""
    from datasets import Dataset

    rows = []
    for scenario in scenarios:
        environment = world.new_environment(scenario, max_turns)
        prompt = chat.prompt(environment.system_prompt(), environment.user_prompt(), environment.toolbox.schemas())
        rows.append({"prompt": prompt.text, "question": scenario.question, "reference": scenario.answer})
    return Dataset.from_list(rows)


def first_turn(completions: list[str], question: list[str], reference: list[str], **_: Any) -> list[float]:
    """[episodes]: what each first turn is worth, from -1 to 1."""
    return [turn_value(*each) for each in zip(completions, question, reference, strict=True)]


def turn_value(text: str, question: str, reference: str) -> float:
    """-1 where there is no call; for a search, the share of its keywords whose words all stand in the question, times
    the share of the question's long words that it has; for an answer at once, 1 if it is the reference's words; 0 for
    anything else.
    """
    try:
        call = parse_call(text)
    except (UnusableCallError, UnknownToolError, BadArgumentsError):
        return -1.0
    if call.name == "return_final_answer":
        return float(is_exact(str(call.arguments.get("answer", "")), reference))
    query = call.arguments.get("query")
    keywords = query.split() if isinstance(query, str) else call.arguments.get("keywords")
    if not call.name.startswith("search") or not isinstance(keywords, list) or not keywords:
        return 0.0
    asked = _words(question)
    searched = [_words(str(each)) for each in keywords]
    apt = sum(bool(words) and words <= asked for words in searched) / len(searched)
    telling = {word for word in asked if len(word) >= _LONG}
    return apt * len(telling & set().union(*searched)) / max(1, len(telling))


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.casefold()))
