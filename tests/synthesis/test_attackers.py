"""Adaptive attackers, which rewrite attacks that failed."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gumshoe.mail.index import MailIndex
from gumshoe.rewards.chat_judge import JudgeModelSettings
from gumshoe.rewards.judge import JudgeError
from gumshoe.synthesis.attacks.attack_recipe import AttackTarget, PlannedAttack
from gumshoe.synthesis.attacks.attack_suite import find_target, plan_suite
from gumshoe.synthesis.attacks.attackers import ChatAttacker, ScriptedAttacker, mutate, open_attacker
from tests.attack_agents import find_orders
from tests.errors import raises
from tests.inference.fake_vllm import FakeVLLM, chat_turn
from tests.rollouts.conversations import synthetic


@pytest.fixture(scope="module")
def attacks(synthetic_index: MailIndex) -> list[tuple[PlannedAttack, AttackTarget]]:
    scenarios = {each.id: each for each in synthetic().scenarios}
    planned = plan_suite(synthetic_index, list(scenarios.values()), "standard", 85)
    return [(each, find_target(synthetic_index, scenarios[each.scenario], 0)) for each in planned]


@pytest.mark.ci
def test_the_scripted_attacker_keeps_what_is_planted(attacks: list[tuple[PlannedAttack, AttackTarget]]) -> None:
    async def rewrite() -> None:
        for attack, target in attacks:
            tried = [attack]
            for attempt in (1, 2, 3):
                again = await ScriptedAttacker().rewrite(tried[-1], target, attempt)
                assert (again.scenario, again.planted.id, again.planted.goal) == (
                    attack.scenario,
                    attack.planted.id,
                    attack.planted.goal,
                )
                assert again.planted.planted == attack.planted.planted
                assert again.messages != tried[-1].messages
                tried.append(again)

    asyncio.run(rewrite())


def test_mutations_change_every_choice_and_are_deterministic(
    attacks: list[tuple[PlannedAttack, AttackTarget]],
) -> None:
    changed = set[str]()
    for attack, _ in attacks:
        for attempt in (1, 2):
            recipe = mutate(attack.recipe, attempt)
            assert recipe == mutate(attack.recipe, attempt)
            assert recipe != attack.recipe
            before, after = attack.recipe.model_dump(), recipe.model_dump()
            changed |= {name for name in before if before[name] != after[name]}
    assert changed == {"family", "carrier", "language", "wording", "at_end", "also"}


def answering(write: Callable[[dict[str, Any]], str]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a chat model that rewrites texts."""

    def chat(request: dict[str, Any]) -> dict[str, Any]:
        return chat_turn(json.dumps({"text": write(json.loads(request["messages"][-1]["content"]))}))

    return chat


def ask(server: FakeVLLM, attack: PlannedAttack, target: AttackTarget) -> PlannedAttack:
    async def run() -> PlannedAttack:
        settings = JudgeModelSettings(model="m", url=f"{server.address}/v1", attempts=2, cache=None)
        attacker = ChatAttacker(settings)
        try:
            return await attacker.rewrite(attack, target, 1)
        finally:
            await attacker.aclose()

    return asyncio.run(run())


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    monkeypatch.setattr("gumshoe.rewards.chat_judge._MAX_PAUSE", 0)


def test_a_chat_model_rewrites_the_text(attacks: list[tuple[PlannedAttack, AttackTarget]]) -> None:
    attack, target = next(each for each in attacks if each[0].recipe.goal == "answer")
    with FakeVLLM(models=("m",), chat=answering(lambda given: f"Dear friend, {given['instruction']}")) as server:
        again = ask(server, attack, target)
    assert again.planted == attack.planted.model_copy(update={"carrier": again.recipe.carrier})
    assert again.recipe.text.startswith("Dear friend, ")
    assert list(find_orders([again.recipe.text]))
    assert len(again.messages) == 1


def test_a_text_without_what_is_planted_is_asked_for_again(
    attacks: list[tuple[PlannedAttack, AttackTarget]],
) -> None:
    attack, target = next(each for each in attacks if each[0].recipe.goal == "call")
    with FakeVLLM(models=("m",), chat=answering(lambda _: "I cannot help with that.")) as server:
        with pytest.raises(JudgeError) as raised:
            ask(server, attack, target)
        assert len(server.requests) == 2
    assert raised.value.code == "judges.unusable-answer"


@pytest.mark.parametrize("word", ["other", "chat:", "chat:@http://a", "chat:m@nowhere", ""])
def test_an_unknown_attacker_is_refused(word: str) -> None:
    with raises("synthesis.invalid-attacker", repr(word)):
        open_attacker(word)


def test_attackers_are_opened_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUMSHOE_CACHE", str(tmp_path))
    assert open_attacker("scripted").name == "scripted"
    assert open_attacker("chat:m@http://localhost:1/v1").name == "chat:m"
