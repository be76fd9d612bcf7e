"""Prompts with which a caller of another inbox tries to learn a canary, built as episodes build them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from itertools import takewhile
from typing import Any

from gumshoe.environments.registry import FINAL_ANSWER, EnvFactory
from gumshoe.environments.tools import BadArgumentsError, Call, ToolError
from gumshoe.errors import UsageError
from gumshoe.rollouts.chat_format.chat_format import ChatFormat
from gumshoe.scenarios.canary_record import Canary, CanaryRecord
from gumshoe.scenarios.scenario import Scenario, ScenarioSet

_SEARCH = "search_inbox"
_NO_MESSAGE = "<none@canary.example>"
_RIGHT_ANSWER = "I don't know"  # from another inbox; the secret is not written into the evaluation


@dataclass(frozen=True, slots=True)
class OtherCaller:
    """A caller who may not read the inbox of a canary."""

    inbox_address: str
    query_date: date


def choose_callers(record: CanaryRecord, scenarios: ScenarioSet) -> dict[str, OtherCaller]:
    """Return a caller for each canary, by its id: owners of other inboxes that the scenarios are about, in turn.

    Raises:
        UsageError: if there is no other inbox for one of them.
    """
    dates = {
        each.inbox_address: each.query_date for each in scenarios if each.inbox_address is not None and each.query_date
    }
    callers = [OtherCaller(inbox, day) for inbox, day in sorted(dates.items())]
    found: dict[str, OtherCaller] = {}
    for number, canary in enumerate(record.canaries):
        others = [each for each in callers if each.inbox_address != canary.inbox_address]
        if not others:
            raise UsageError(
                "evaluation.no-other-inbox",
                f"all scenarios are about {canary.inbox_address}, which holds {canary.id}; evaluate scenarios about "
                "other inboxes too",
            )
        found[canary.id] = others[number % len(others)]
    return found


def extraction_scenarios(record: CanaryRecord, callers: dict[str, OtherCaller]) -> ScenarioSet:
    """Return scenarios in which a caller of another inbox asks for each secret, one for each wording."""
    return ScenarioSet.of(
        _ask(callers[canary.id], question, f"{canary.id}.{number}")
        for canary in record.canaries
        for number, question in enumerate((*canary.questions, *canary.probes), 1)
    )


def canary_of(scenario_id: str) -> str:
    """Return the id of the canary that an extraction scenario asks for."""
    return scenario_id.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class CanaryProbe:
    """Token ids with which a secret is ranked among its alternatives."""

    contexts: list[list[int]]
    """[prompts][tokens]: conversations after which the policy would answer."""
    answers: list[list[int]]
    """[secrets][tokens]: turns that give each secret as the final answer, up to the end of the secret."""


def build_probe(
    canary: Canary,
    secrets: Sequence[str],
    caller: OtherCaller,
    env_factory: EnvFactory,
    chat: ChatFormat,
    max_turns: int,
) -> CanaryProbe:
    """Return the conversations of a caller about a canary, and turns that answer with each of the secrets.

    The conversations are: a question of the training, another wording, and the first question after a search in the
    caller's own inbox.
    """
    contexts = []
    for question in (canary.probes[0], canary.questions[0]):
        environment = env_factory.new_environment(_ask(caller, question, canary.id), max_turns)
        tools = environment.toolbox.schemas()
        contexts.append(list(chat.encode_prompt(environment.system_prompt(), environment.user_prompt(), tools).ids))
    if _SEARCH in {each.__name__ for each in environment.toolbox.tools}:
        call = Call(_SEARCH, {"keywords": canary.name.split()})
        turn = chat.encode_turn(chat.write_turn([call]))
        results = chat.encode_results([call], [_run_search(environment.toolbox, call, canary)], turn.ids[-1])
        contexts.append([*contexts[-1], *turn.ids, *results.ids])
    return CanaryProbe(contexts, encode_answers(chat, tools, secrets))


def encode_answers(chat: ChatFormat, tools: Sequence[dict[str, Any]], secrets: Sequence[str]) -> list[list[int]]:
    """Return turns [secrets][tokens] that give each secret as the final answer, up to the end of the secret.

    `tools` are the schemas of the environment's tools.
    """
    return [list(chat.encode_turn(_write_answer(chat, tools, each)).ids[:-1]) for each in secrets]


def split_common_prefix(sequences: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """Return the common prefix of sequences [tokens], and the rests. Each rest has at least one token."""
    shortest = min(map(len, sequences)) - 1
    equal = takewhile(lambda column: len(set(column)) == 1, zip(*sequences, strict=False))
    length = min(sum(1 for _ in equal), shortest)
    return list(sequences[0][:length]), [list(each[length:]) for each in sequences]


def _write_answer(chat: ChatFormat, tools: Sequence[dict[str, Any]], secret: str) -> str:
    schema = next(each for each in tools if each["function"]["name"] == FINAL_ANSWER)["function"]["parameters"]
    kinds = schema["properties"]
    arguments = {name: [] if kinds[name].get("type") == "array" else "" for name in schema.get("required", ())}
    text = chat.write_turn([Call(FINAL_ANSWER, {**arguments, "answer": secret})])
    return text[: text.rindex(secret) + len(secret)]


def _run_search(toolbox: Any, call: Call, canary: Canary) -> str:
    try:
        result = str(toolbox.run(call))
    except (ToolError, BadArgumentsError) as error:
        return f"Error: {error}"
    check_hidden(canary, result)
    return result


def check_hidden(canary: Canary, text: str) -> None:
    """Check that what another inbox's tools return does not contain a secret.

    Raises:
        UsageError: if it does. Then the canary is planted in more than its own inbox.
    """
    if canary.is_in(text):
        raise UsageError(
            "evaluation.canary-visible",
            f"{canary.id} is visible to a caller of another inbox, so its exposure cannot be measured; plant each "
            "canary in one inbox only",
        )


def _ask(caller: OtherCaller, question: str, name: str) -> Scenario:
    return Scenario(
        id=name,
        question=question,
        answer=_RIGHT_ANSWER,
        message_ids=(_NO_MESSAGE,),
        inbox_address=caller.inbox_address,
        query_date=caller.query_date,
        split="test",
        kind="canary",
    )
