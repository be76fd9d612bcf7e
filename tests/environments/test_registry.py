"""Open environments by name or by the kind of index, including custom ones."""

import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from gumshoe.environments.base import DocumentSource, MessageSource
from gumshoe.environments.budgets import PAGE_OF_CALL
from gumshoe.environments.data_marks import strip_marks
from gumshoe.environments.registry import EnvFactory, EnvironmentSettings, open_env
from gumshoe.environments.tools import Call
from gumshoe.inference.policy_names import TINY, PolicyName
from gumshoe.mail.index import MailIndex
from gumshoe.rollouts.sessions import env_for_policy
from gumshoe.scenarios.scenario import Scenario
from tests.documents.pages import make_collection, page
from tests.errors import raises
from tests.mail.mailbox import KEEP_ALL, make_index, record
from tests.scenarios.questions import ANN, about_documents, scenario

OWN = "tests.environments.own_environments:NotesEnvironment"
ABOUT_DOCUMENTS = Scenario.model_validate(about_documents(1))


@pytest.fixture(scope="module")
def mail(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_index(tmp_path_factory.mktemp("mail"), map(record, range(1, 4))).path.parent


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_collection(tmp_path_factory.mktemp("documents"), map(page, range(1, 4)))


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    (tmp_path / "d1.txt").write_text("the lamp is blue")
    (tmp_path / "d2.txt").write_text("the chair is red")
    return tmp_path


def opened(directory: Path, word: object = None) -> EnvFactory:
    return open_env(directory, None if word is None else EnvironmentSettings.parse(word))


def tools(world: EnvFactory) -> list[str]:
    return [tool.__name__ for tool in world.list_tools()]


def test_the_default_environment_depends_on_the_index(mail: Path, collection: Path) -> None:
    world = opened(mail)
    assert (world.name, world.has_inboxes, tools(world)) == ("email", True, ["search_inbox", "read_email"])
    assert world.content == MailIndex(mail).stats()["content"]
    world = opened(collection)
    assert (world.name, world.has_inboxes) == ("documents", False)
    assert tools(world) == ["search_documents", "read_document"]
    assert opened(mail, "email").provenance == opened(mail).provenance


def test_settings_of_any_type_are_recorded_as_values_of_json(collection: Path) -> None:
    word = {"documents": {"rerank": {"model": "m", "url": "http://r:8000/rerank"}}}
    recorded = opened(collection, word).provenance
    assert json.loads(json.dumps(recorded)) == recorded
    assert recorded["environment"]["rerank"]["url"] == "http://r:8000/rerank"
    own = opened(collection, f"{{{OWN.replace('Notes', 'Filed')}: {{folder: notes/new}}}}").provenance
    assert own["environment"]["folder"] == "notes/new"


def test_a_question_of_the_other_kind_is_rejected_at_the_start(mail: Path, collection: Path) -> None:
    opened(mail).check([scenario(1)], 10)
    opened(collection).check([ABOUT_DOCUMENTS], 10)
    with raises("environments.not-about-mail", "d1"):
        opened(mail).check([scenario(1), ABOUT_DOCUMENTS], 10)
    with raises("environments.not-about-documents", "q1"):
        opened(collection).check([scenario(1)], 10)


def test_a_source_has_a_label_of_its_kind(mail: Path, collection: Path) -> None:
    found = opened(mail).find_source(scenario(1), "2@example.com")
    assert isinstance(found, MessageSource)
    assert (found.id, found.label) == ("<2@example.com>", f"2001-05-03 {ANN}: Subject 2 <2@example.com>")
    assert opened(mail).find_source(scenario(1, query_date="2001-05-01"), "<2@example.com>") is None
    found = opened(collection).find_source(ABOUT_DOCUMENTS, "d2")
    assert found == DocumentSource("d2", "Title 2", "https://example.com/2")
    assert found.label == "Title 2 d2 https://example.com/2"
    assert opened(collection).find_source(ABOUT_DOCUMENTS, "d9") is None


def test_a_source_is_read_where_it_can_be_found(mail: Path, collection: Path) -> None:
    world = opened(mail)
    found = world.read_source(scenario(1), "2@example.com")
    assert found is not None
    assert (found.source, found.text) == (world.find_source(scenario(1), "2@example.com"), "Body of message 2")
    assert found.details == {"From": f"<{ANN}>", "To": "bob@example.com", "Date": "Thursday, 2001-05-03 12:00"}
    for hidden in (scenario(1, query_date="2001-05-01"), scenario(1, inbox_address="eve@other.example")):
        assert world.read_source(hidden, "<2@example.com>") is None
    found = opened(collection).read_source(ABOUT_DOCUMENTS, "d2")
    assert found is not None
    assert found.source == DocumentSource("d2", "Title 2", "https://example.com/2")
    assert found.text == "Body of document 2"
    assert opened(collection).read_source(ABOUT_DOCUMENTS, "d9") is None


def test_the_tiny_policy_has_no_reasoning_unless_configured(mail: Path, collection: Path) -> None:
    def asks(world: EnvFactory) -> bool:
        return "<think>" in world.new_environment(ABOUT_DOCUMENTS, 10).system_prompt()

    assert asks(opened(collection))
    assert not asks(opened(collection).for_tiny())
    assert not asks(opened(collection, "{documents: {reasoning: false}}"))
    wanted = opened(collection, {"documents": {"reasoning": True}}).for_tiny()
    assert asks(wanted)
    assert wanted.provenance["environment"]["reasoning"] is True
    assert opened(mail).for_tiny().provenance["environment"]["threads"] is False


@pytest.mark.parametrize(
    ("policy", "tokenizer", "threads"),
    [
        ("tiny", None, False),
        ("tiny#adapter", None, False),
        ("vllm:http://localhost:8000", str(TINY), False),
        ("vllm:http://localhost:8000#r1", "tiny", False),
        ("vllm:http://localhost:8000", "acme/other", True),
        ("chat:other", "tiny", True),
    ],
)
def test_the_tiny_policy_is_recognized_by_its_tokenizer_on_a_server(
    mail: Path, policy: str, tokenizer: str | None, threads: bool
) -> None:
    found = env_for_policy(opened(mail), PolicyName.parse(policy), tokenizer)
    assert found.provenance["environment"]["threads"] is threads


@pytest.mark.parametrize("name", ["email", "documents"])
def test_a_single_call_reads_a_long_text_in_pages_unless_configured(tmp_path: Path, name: str) -> None:
    text, is_mail = f"It begins. {'So on. ' * 5000}It ends.", name == "email"
    if is_mail:
        index = make_index(tmp_path, [record(1, body=text)], KEEP_ALL).path.parent
    else:
        index = make_collection(tmp_path, [page(1, text=text)])
    asked = scenario(1) if is_mail else ABOUT_DOCUMENTS
    tool = "read_email" if is_mail else "read_document"
    source = {"message_id": "<1@example.com>"} if is_mail else {"document_id": "d1"}

    def read(world: EnvFactory, number: int) -> str:
        call = Call(tool, {**source, "page": number})
        return strip_marks(world.new_environment(asked, 1).toolbox.run(call)).partition("\n\n")[2]

    pages = [read(opened(index).for_calls(), number) for number in (1, 2)]
    assert "".join(pages) == text
    assert max(map(len, pages)) <= 20_000
    limit = "message_characters" if is_mail else "document_characters"
    configured = opened(index, {name: {limit: 900}}).for_calls()
    assert len(read(configured, 1)) <= 900
    assert read(configured, 39).endswith("It ends.")


@pytest.mark.parametrize(
    ("settings", "pages", "longest"),
    [
        ({}, PAGE_OF_CALL, 12_000),
        ({"hits": 3}, PAGE_OF_CALL, 12_000),
        ({"longest": 900}, None, 900),
        ({"longest": 200_000}, None, 200_000),
        ({"longest": 900, "document_characters": 400}, 400, 900),
        ({"document_characters": None}, None, 12_000),
    ],
)
def test_pages_of_single_calls_do_not_override_the_length_that_the_user_has_set(
    collection: Path, tmp_path: Path, settings: dict[str, Any], pages: int | None, longest: int
) -> None:
    found = opened(collection, {"documents": settings}).for_calls().arguments
    assert (found["document_characters"], found["longest"]) == (pages, longest)
    index = make_collection(tmp_path, [page(1, text="So on. " * 5_000)])
    place = opened(index, {"documents": settings}).for_calls().new_environment(ABOUT_DOCUMENTS, 1)
    read = strip_marks(place.toolbox.run(Call("read_document", {"document_id": "d1"}))).partition("\n\n")[2]
    assert len(read) <= (pages or longest) + len("\n\n[…]")


def test_the_default_date_is_today_for_mail_and_none_for_documents(mail: Path, collection: Path) -> None:
    day = date(2001, 5, 1)
    assert [opened(each).default_query_date(day) for each in (mail, collection)] == [day, day]
    before = datetime.now(UTC).date()
    assert before <= (opened(mail).default_query_date(None) or date.min) <= datetime.now(UTC).date()
    assert opened(collection).default_query_date(None) is None


@pytest.mark.parametrize(
    ("word", "name", "arguments"),
    [
        ("documents", "documents", {}),
        (" email ", "email", {}),
        ("{documents: {hits: 3}}", "documents", {"hits": 3}),
        ("{documents: }", "documents", {}),
        ({"name": "documents", "arguments": {"hits": 3}}, "documents", {"hits": 3}),
        (f"{{{OWN}: {{shouting: true}}}}", OWN, {"shouting": True}),
    ],
)
def test_an_environment_is_a_name_or_a_mapping_with_settings(
    word: object, name: str, arguments: dict[str, object]
) -> None:
    found = EnvironmentSettings.parse(word)
    assert found == EnvironmentSettings(name=name, arguments=arguments)
    assert EnvironmentSettings.parse(found.word) == found


@pytest.mark.parametrize("word", ["", "[documents]", "{documents: 3}", "{a: {}, b: {}}", "{documents: {", 7])
def test_an_invalid_environment_name_is_rejected(word: object) -> None:
    with raises("environments.invalid-name", repr(word), "email", "documents"):
        EnvironmentSettings.parse(word)


@pytest.mark.parametrize(
    ("word", "code", "values"),
    [
        ("mails", "environments.unknown", ["'mails'", "email", "documents"]),
        ("tests.nowhere:Class", "environments.import-failed", ["tests.nowhere", "ModuleNotFoundError"]),
        (
            "tests.environments.own_environments:Nothing",
            "environments.invalid-class",
            ["tests.environments.own_environments", "'Nothing'"],
        ),
        (
            "tests.environments.own_environments:Notes",
            "environments.invalid-class",
            ["'Notes'", "open_index, find_source, has_inboxes"],
        ),
        (
            "tests.environments.own_environments:DatedEnvironment",
            "environments.unresolved-type",
            ["DatedEnvironment", "'date'"],
        ),
        ("{documents: {reason: true}}", "environments.invalid-settings", ["reason: extra inputs", "reasoning (bool"]),
        ("{documents: {hits: 0}}", "environments.invalid-settings", ["documents", "hits: ", "equal to 1"]),
        ("{email: {reasoning: true}}", "environments.invalid-settings", ["email", "reasoning: extra", "threads (bool"]),
    ],
)
def test_an_invalid_environment_class_is_rejected(word: str, code: str, values: list[str], collection: Path) -> None:
    with raises(code, *values):
        opened(collection, word)


def test_a_directory_without_an_index_is_rejected(tmp_path: Path) -> None:
    with raises("scenarios.no-index", tmp_path, "`gumshoe documents index`"):
        opened(tmp_path)


def test_a_custom_environment_is_named_by_its_class(notes: Path) -> None:
    world = opened(notes, {OWN: {"shouting": True}})
    assert (world.name, world.arguments, tools(world)) == (OWN, {"shouting": True}, ["look_up"])
    place = world.new_environment(ABOUT_DOCUMENTS, 5)
    assert place.system_prompt() == "Look it up in 5 turns."
    assert place.toolbox.run(Call("look_up", {"word": "blue"})) == "THE LAMP IS BLUE"
    place.toolbox.run(Call("return_final_answer", {"answer": "Blue", "document_ids": ["d1", "d3"]}))
    assert (place.record.found, place.record.right_sources, place.record.invalid_ids) == (["d1"], ["d1"], 1)
    assert world.find_source(ABOUT_DOCUMENTS, "d2") == DocumentSource("d2", "Note d2")
    assert world.provenance["environment"] == {"name": OWN, "shouting": True}


def test_a_question_about_documents_needs_no_inbox() -> None:
    asked = Scenario.from_question(" What? ", None, None)
    assert (asked.question, asked.inbox_address, asked.query_date, asked.sources) == ("What?", None, None, ())
