"""The mode `simple`: plain TRL on the first turn only, with a heuristic reward. Only evaluations run episodes."""

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from gumshoe.environments.registry import EnvFactory
from gumshoe.errors import UsageError
from gumshoe.rewards.exact_match import is_exact
from gumshoe.rollouts.chat_format.chat_format import ChatFormat, Encoded, ParsedTurn
from gumshoe.scenarios.scenario import Scenario

if TYPE_CHECKING:
    from datasets import Dataset

    from gumshoe.training.settings import TrainSettings

_MIN_LETTERS = 4  # of a long word


def build_prompts(
    scenarios: Iterable[Scenario], env: EnvFactory, chat: ChatFormat, tokenizer: Any, max_turns: int
) -> "Dataset":
    """Return the prompts of episodes as text, with the question and the reference answer of each.

    Raises:
        UsageError: if the tokenizer does not encode the text of a prompt as episodes do.
    """
    from datasets import Dataset

    rows = []
    for scenario in scenarios:
        environment = env.new_environment(scenario, max_turns)
        prompt = chat.encode_prompt(
            environment.system_prompt(), environment.user_prompt(), environment.toolbox.schemas()
        )
        text = _find_text(prompt, tokenizer)
        rows.append({"prompt": text, "question": scenario.question, "reference": scenario.answer})
    return Dataset.from_list(rows)


def _find_text(prompt: Encoded, tokenizer: Any) -> str:
    """Return the text that TRL, which encodes it again, turns into the ids of a prompt.

    A tokenizer may add the BOS token with which the text already begins.

    Raises:
        UsageError: if there is no such text.
    """
    for text in (prompt.text, prompt.text.removeprefix(tokenizer.bos_token or "")):
        if tuple(tokenizer(text)["input_ids"]) == prompt.ids:
            return text
    raise UsageError(
        "training.prompt-encoded-differently",
        "mode simple encodes prompts as text, and the tokenizer adds other tokens to it than the chat template; set "
        "mode to masked",
    )


def first_turn_reward(chat: ChatFormat, tools: list[dict[str, Any]]) -> Callable[..., list[float]]:
    """Return TRL's reward function, which returns the reward of each first turn, [episodes], from -1 to 1."""

    def first_turn(
        prompts: list[str], completion_ids: list[list[int]], question: list[str], reference: list[str], **_: Any
    ) -> list[float]:
        turns = [
            chat.parse_turn(chat.decode_turn(ids)[0], tools, before=prompt)
            for ids, prompt in zip(completion_ids, prompts, strict=True)
        ]
        return [score_turn(*each) for each in zip(turns, question, reference, strict=True)]

    return first_turn


def first_turn_means(logs: dict[str, float], settings: "TrainSettings", tokens_before: int) -> dict[str, Any]:
    """Return the fields of a step's record that episodes would decide, from the trainer's own numbers.

    `tokens_before` is the number of tokens of all earlier steps: the trainer counts those of the whole run.
    """
    sampled, groups = logs["completions/mean_length"], settings.groups
    trained = sampled
    if settings.rollouts.mask_truncated:
        trained = logs["completions/mean_terminated_length"] * (1 - logs["completions/clipped_ratio"])
    flat = round(logs["frac_reward_zero_std"] * groups)
    return {
        "reward": logs["reward"],
        "reward_std": logs["reward_std"],
        "trainable_tokens": round(trained * groups * settings.rollouts.num_generations),
        "tokens": round(logs["num_tokens"]) - tokens_before,
        "groups": groups - flat,
        "groups_wanted": groups,
        "groups_flat": flat,
        "sampled_tokens": sampled,
        "turns": 1.0,
    }


def score_turn(turn: ParsedTurn, question: str, reference: str) -> float:
    """Return the reward of a first turn, by its first call.

    - No usable tool call: -1.
    - A search: the share of keywords whose words all occur in the question, times the share of the question's long
      words that it contains.
    - An answer without a search: 1 if it matches the reference exactly, else 0.
    - Anything else: 0.
    """
    if not turn.calls:
        return -1.0
    call = turn.calls[0]
    if call.name == "return_final_answer":
        return float(is_exact(str(call.arguments.get("answer", "")), reference))
    query = call.arguments.get("query")
    keywords = query.split() if isinstance(query, str) else call.arguments.get("keywords")
    if not call.name.startswith("search") or not isinstance(keywords, list) or not keywords:
        return 0.0
    asked = _words(question)
    searched = [_words(str(each)) for each in keywords]
    precision = sum(bool(words) and words <= asked for words in searched) / len(searched)
    long = {word for word in asked if len(word) >= _MIN_LETTERS}
    return precision * len(long & set().union(*searched)) / max(1, len(long))


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.casefold()))
