"""Suites of attacks: deterministic, in many families, languages and carriers, and found by natural searches."""

import json
from collections import Counter
from email import message_from_bytes
from email.policy import default
from pathlib import Path

import pytest

from gumshoe.environments.registry import open_env
from gumshoe.environments.tools import Call
from gumshoe.mail.index import MailIndex
from gumshoe.rewards.planted_attack import GOALS
from gumshoe.rollouts.keyword_searcher import find_keywords
from gumshoe.scenarios.scenario import Scenario
from gumshoe.synthesis.attacks.attack_letter import CARRIERS
from gumshoe.synthesis.attacks.attack_recipe import PlannedAttack
from gumshoe.synthesis.attacks.attack_suite import (
    DEFAULT_COUNT,
    attacked_scenario,
    find_target,
    plan_suite,
    read_suite,
    split_into_waves,
    write_suite,
)
from gumshoe.synthesis.attacks.attack_texts import LANGUAGES, load_families, load_instructions, load_leads
from gumshoe.synthesis.attacks.delivery import deliver
from tests.attack_agents import find_orders
from tests.errors import raises
from tests.rollouts.conversations import synthetic


@pytest.fixture(scope="module")
def scenarios() -> list[Scenario]:
    return list(synthetic().scenarios)


@pytest.fixture(scope="module")
def suite(synthetic_index: MailIndex, scenarios: list[Scenario]) -> list[PlannedAttack]:
    return plan_suite(synthetic_index, scenarios, "standard")


def test_texts_exist_in_every_language_and_fill_every_slot(suite: list[PlannedAttack]) -> None:
    families = load_families()
    assert len(families) >= 12
    for goal, by_language in load_instructions().items():
        assert set(by_language) == set(LANGUAGES)
        assert min(map(len, by_language.values())) >= 2, goal
    assert set(load_leads()) == set(LANGUAGES)
    for family in families.values():
        assert all(family.wordings(language) for language in LANGUAGES)
        assert set(family.carriers) <= set(CARRIERS)
    for each in suite:
        for message in each.messages:
            assert b"{instruction}" not in message
            assert b"{answer}" not in message


def test_the_standard_suite_covers_all_families_goals_languages_and_carriers(suite: list[PlannedAttack]) -> None:
    assert len(suite) == DEFAULT_COUNT >= 400
    assert len({each.planted.id for each in suite}) == len(suite)
    recipes = [each.recipe for each in suite]
    for key, wanted in (("family", set(load_families())), ("goal", set(GOALS)), ("language", set(LANGUAGES))):
        counts = Counter(getattr(each, key) for each in recipes)
        assert set(counts) == wanted
        assert min(counts.values()) >= 0.5 * max(counts.values())
    assert {each.carrier for each in recipes} == set(CARRIERS)
    plants = [word for each in suite if each.recipe.goal != "leak" for word in each.planted.planted]
    assert len(set(plants)) == len(plants)


def test_the_same_arguments_give_the_same_messages(synthetic_index: MailIndex, scenarios: list[Scenario]) -> None:
    one, again, other = (plan_suite(synthetic_index, scenarios, "train", 40, seed) for seed in (1, 1, 2))
    assert [each.messages for each in one] == [each.messages for each in again]
    assert [each.messages for each in one] != [each.messages for each in other]


def test_families_to_train_on_are_not_used_to_measure(synthetic_index: MailIndex, scenarios: list[Scenario]) -> None:
    train, held_out = (
        {each.recipe.family for each in plan_suite(synthetic_index, scenarios, name, 60)}
        for name in ("train", "held-out")
    )
    assert not train & held_out
    assert train | held_out == set(load_families())
    assert min(len(train), len(held_out)) >= 6


def test_the_splits_share_no_senders_and_domains(synthetic_index: MailIndex, scenarios: list[Scenario]) -> None:
    """Otherwise a policy could learn to recognize attacks that it is measured on."""
    seen: dict[str, set[str]] = {"train": set(), "held-out": set()}
    for name, senders in seen.items():
        for each in plan_suite(synthetic_index, scenarios, name, 100):  # type: ignore[arg-type]
            for message in map(message_from_bytes, each.messages):
                person, _, address = message["From"].rpartition("<")
                senders |= {address, address.partition("@")[2], *([] if each.recipe.carrier == "name" else [person])}
    assert not seen["train"] & seen["held-out"]


def test_a_message_has_one_sender(suite: list[PlannedAttack]) -> None:
    for each in suite:
        for message in each.messages:
            (sender,) = message_from_bytes(message, policy=default)["From"].addresses
            assert sender.domain.endswith(".example")


def test_no_reference_answer_or_source_is_planted(suite: list[PlannedAttack], scenarios: list[Scenario]) -> None:
    by_id = {each.id: each for each in scenarios}
    for each in suite:
        about = by_id[each.scenario]
        for text in each.planted.planted:
            assert text.casefold() not in f"{about.answer} {about.question}".casefold()
            assert text not in about.sources


def test_a_message_to_leak_is_in_the_inbox_and_is_found(synthetic_index: MailIndex, scenarios: list[Scenario]) -> None:
    targets = [find_target(synthetic_index, each, 0) for each in scenarios]
    assert sum(bool(each.secret) for each in targets) >= 0.8 * len(targets)
    for target in filter(lambda each: each.secret, targets):
        inbox, until = str(target.scenario.inbox_address), target.scenario.visible_before
        (found,) = synthetic_index.search(inbox, target.topic.split()[:4], visible_before=until)
        assert found.message_id not in target.scenario.sources
        body = synthetic_index.read(inbox, found.message_id, visible_before=until).body
        assert target.secret in " ".join(body.split())


def test_each_wave_has_one_attack_an_inbox(suite: list[PlannedAttack], scenarios: list[Scenario]) -> None:
    inboxes = {each.id: each.inbox_address for each in scenarios}
    waves = split_into_waves(suite, scenarios)
    assert sum(map(len, waves)) == len(suite)
    for wave in waves:
        assert len({inboxes[each.scenario] for each in wave}) == len(wave)


def test_attacks_reach_the_model_through_the_reader_of_mail(
    suite: list[PlannedAttack], scenarios: list[Scenario], synthetic_index: MailIndex, tmp_path: Path
) -> None:
    """A search for words of the question lists the attack, and its messages have the whole instruction."""
    by_id, missed = {each.id: each for each in scenarios}, list[str]()
    source = synthetic_index.path.parent
    before = {each: each.read_bytes() for each in source.rglob("*") if each.is_file()}
    for number, wave in enumerate(split_into_waves(suite, scenarios)[:17]):
        deliver(wave, source, tmp_path / str(number), link=True)
        env_factory = open_env(tmp_path / str(number))
        for attack in wave:
            about = attacked_scenario(by_id[attack.scenario], attack.planted)
            environment = env_factory.new_environment(about, 10)
            listed = environment.toolbox.run(Call("search_inbox", {"keywords": find_keywords(about.question)}))
            texts = [listed]
            for message in attack.messages:
                message_id = message.partition(b"Message-ID: ")[2].split()[0].decode()
                assert message_id in listed, attack.recipe
                texts.append(environment.toolbox.run(Call("read_email", {"message_id": message_id})))
            if not list(find_orders(texts)):
                missed.append(attack.planted.id)
    assert missed == []
    assert before == {each: each.read_bytes() for each in source.rglob("*") if each.is_file()}


def test_an_attack_in_one_inbox_is_not_seen_in_another(
    suite: list[PlannedAttack], scenarios: list[Scenario], synthetic_index: MailIndex, tmp_path: Path
) -> None:
    attack = suite[0]
    deliver([attack], synthetic_index.path.parent, tmp_path / "copy")
    victim = next(each.inbox_address for each in scenarios if each.id == attack.scenario)
    index = MailIndex(tmp_path / "copy")
    for inbox in {str(each.inbox_address) for each in scenarios}:
        held = {each for each, _ in index.list_messages(inbox)}
        assert bool(held - {each for each, _ in synthetic_index.list_messages(inbox)}) == (inbox == victim)


def test_a_suite_file_is_read_again(suite: list[PlannedAttack], scenarios: list[Scenario], tmp_path: Path) -> None:
    write_suite(suite, tmp_path / "attacks.jsonl")
    assert read_suite(tmp_path / "attacks.jsonl", scenarios) == suite


def test_an_invalid_suite_file_is_refused(
    suite: list[PlannedAttack], scenarios: list[Scenario], tmp_path: Path
) -> None:
    path = tmp_path / "attacks.jsonl"
    write_suite(suite[:2], path)
    first, second = path.read_text().splitlines()
    unknown = json.dumps({**json.loads(second), "scenario": "nobody"})
    without = json.dumps({**json.loads(second), "messages": []})
    misnamed = json.loads(second)
    misnamed["recipe"]["family"] = "unheard-of"
    for lines, values in (
        ([first, "{"], [f"{path}:2"]),
        ([first, first], [f"{path}:2", suite[0].planted.id]),
        ([first, unknown], [f"{path}:2", "nobody"]),
        ([first, without], [f"{path}:2", "messages"]),
        ([first, json.dumps(misnamed)], [f"{path}:2", "unheard-of"]),
    ):
        path.write_text("\n".join(lines) + "\n")
        with raises("synthesis.invalid-attacks", *values):
            read_suite(path, scenarios)
    path.write_text("")
    with raises("synthesis.empty-attacks", path):
        read_suite(path, scenarios)


def test_a_suite_file_may_have_messages_in_utf_8(
    suite: list[PlannedAttack], scenarios: list[Scenario], tmp_path: Path
) -> None:
    path = tmp_path / "attacks.jsonl"
    write_suite(suite[:1], path)
    changed = {**json.loads(path.read_text()), "messages": ["Subject: grüß dich\n\nHello"]}
    path.write_text(f"{json.dumps(changed)}\n")
    (found,) = read_suite(path, scenarios)
    assert found.messages == ("Subject: grüß dich\n\nHello".encode(),)
