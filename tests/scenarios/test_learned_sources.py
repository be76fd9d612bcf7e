"""Whose mail an adapter was trained on: the record beside it, and the questions that it admits."""

import json
from pathlib import Path
from typing import Any

import pytest

from gumshoe.artifacts.model_card import write_model_card
from gumshoe.scenarios.learned_sources import LearnedSources
from gumshoe.scenarios.lineage import LINEAGE_FILE, Lineage
from gumshoe.scenarios.scenario import Scenario, ScenarioSet
from tests.scenarios.questions import ANN, BOB, about_documents, scenario

CAROL = "carol@acme.com"


def mail(*inboxes: str) -> ScenarioSet:
    return ScenarioSet.of(scenario(number, inbox_address=each) for number, each in enumerate(inboxes, 1))


def documents(*collections: str) -> ScenarioSet:
    named = {"collections": collections} if collections else {}
    return ScenarioSet((Scenario.model_validate(about_documents(1, **named)),))


def ask(inbox: str) -> Scenario:
    return scenario(9, inbox_address=inbox)


def read(collections: Any = None) -> Scenario:
    return Scenario.from_question("What is it?", None, None, collections)


def test_the_record_admits_its_inboxes_and_does_not_name_them(tmp_path: Path) -> None:
    Lineage.of(mail(ANN, BOB)).write(tmp_path)
    text = (tmp_path / LINEAGE_FILE).read_text()
    assert ANN not in text
    assert BOB not in text
    found = Lineage.read(tmp_path)
    assert found
    assert [found.admits(ask(each)) for each in (ANN, BOB, "Ann@Example.COM", CAROL)] == [True, True, True, False]
    assert found.sources
    assert found.sources.has_inbox(ANN)
    assert not found.sources.has_inbox(CAROL)


def test_the_record_depends_on_the_scenarios_alone_and_equal_inboxes_differ_between_adapters() -> None:
    assert LearnedSources.of(mail(ANN)) == LearnedSources.of(mail(ANN))
    assert LearnedSources.of(mail(ANN)).inboxes != LearnedSources.of(mail(ANN, BOB)).inboxes[:1]
    assert not {*LearnedSources.of(mail(ANN)).inboxes} & {*LearnedSources.of(mail(ANN, BOB)).inboxes}


@pytest.mark.parametrize(
    ("inboxes", "is_invented"),
    [((ANN,), True), (("eva@acme.example",), True), ((CAROL,), False), ((ANN, CAROL), False), ((), True)],
)
def test_mail_is_invented_if_nobody_can_have_the_addresses(inboxes: tuple[str, ...], is_invented: bool) -> None:
    assert LearnedSources.of(mail(*inboxes)).is_invented is is_invented


def test_all_earlier_adapters_count() -> None:
    first = Lineage.of(mail(ANN))
    both = Lineage.of(mail(BOB), before=first)
    created = Lineage.of(ScenarioSet(()), before=both)
    assert [created.admits(ask(each)) for each in (ANN, BOB, CAROL)] == [True, True, False]


def test_what_is_not_recorded_admits_nobody() -> None:
    old = Lineage(learned_from=mail(ANN).to_record())
    for each in (old, Lineage.of(mail(ANN), before=old)):
        assert each.learned_sources is None
        assert not each.admits(ask(ANN))
    assert Lineage.of(ScenarioSet(())).admits(ask(CAROL)), "a new adapter knows nothing"


@pytest.mark.parametrize(
    ("learned", "readable", "is_admitted"),
    [
        (("hr",), ("hr",), True),
        (("hr",), ("*",), True),
        (("eng-docs", "eng-api"), ("eng-*",), True),
        (("eng-*",), ("eng-*",), True),
        (("hr", "eng-docs"), ("eng-*",), False),
        (("*",), ("eng-*",), False),
        (("hr",), None, False),
        ((), None, True),
        ((), ("hr",), True),
    ],
)
def test_a_reader_of_documents_must_be_able_to_read_all_learned_collections(
    learned: tuple[str, ...], readable: tuple[str, ...] | None, is_admitted: bool
) -> None:
    assert Lineage.of(documents(*learned)).admits(read(readable)) is is_admitted


def test_mail_and_collections_are_apart() -> None:
    assert not Lineage.of(mail(ANN)).admits(read(("*",)))
    assert not Lineage.of(documents("hr")).admits(ask(ANN))
    assert Lineage.of(documents()).admits(ask(ANN)), "everybody may read documents without collections"
    both = Lineage.of(mail(ANN), before=Lineage.of(documents("hr")))
    assert not both.admits(ask(ANN))
    assert not both.admits(read(("hr",)))


def test_the_model_card_counts_the_inboxes(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 8}))
    Lineage.of(mail(CAROL, BOB)).write(tmp_path)
    write_model_card(tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert "the mail of 2 inboxes" in card
    assert CAROL not in card
