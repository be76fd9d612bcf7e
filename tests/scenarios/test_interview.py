"""`gumshoe scenarios add`: a dialog, here with piped answers."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from gumshoe.documents.build import build_document_index
from gumshoe.scenarios.scenario import Scenario
from gumshoe.scenarios.sources import load_scenarios
from tests.conftest import CommandResult
from tests.documents.collection import DISEASES, LEXICAL
from tests.mail.mailbox import make_index, record, write_jsonl
from tests.scenarios.questions import ANN, question, write_questions

Add = Callable[..., CommandResult]


@pytest.fixture(scope="module")
def mail(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build an index of messages 1 to 9, from Ann to Bob."""
    records = (record(number, subject=f"Invoice {number}") for number in range(1, 10))
    return make_index(tmp_path_factory.mktemp("interview"), records).path.parent


@pytest.fixture
def add(run: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch) -> Add:
    """Return a function that runs the command with answers on standard input."""

    def typed(
        path: Path,
        index: Path,
        *answers: str,
        inbox: str | None = ANN,
        collections: str | None = None,
        unanswerable: bool = False,
    ) -> CommandResult:
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{each}\n" for each in answers)))
        options = {"--inbox": inbox, "--collections": collections}
        given = [word for name, value in options.items() if value for word in (name, value)]
        given += ["--unanswerable"] if unanswerable else []
        return run("scenarios", "add", path, "--index", index, *given)

    return typed


def added(path: Path) -> list[Scenario]:
    return list(load_scenarios(str(path)))


def test_a_question_about_mail_is_added(add: Add, mail: Path, tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    ran = add(path, mail, "invoice 3", "1", "Who pays?", "Bob", "", "0.5", "test", "q", inbox=None)
    assert ran.code == "mail.invalid-address"  # the first answer is the inbox
    ran = add(path, mail, ANN, "invoice 3", "1", "Who pays?", "Bob", "", "0.5", "test", "q", inbox=None)
    assert ran.status == 0
    assert "Body of message 3" in ran.err
    (found,) = added(path)
    assert (found.question, found.answer, found.message_ids) == ("Who pays?", "Bob", ("<3@example.com>",))
    assert (found.inbox_address, str(found.query_date), found.how_realistic) == (ANN, "2001-05-04", 0.5)
    assert (found.split, found.needs_all) == ("test", False)
    assert f"gumshoe evaluate --index {mail} --scenarios {path}" in ran.err


def test_several_sources_can_be_needed_together(add: Add, mail: Path, tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    ran = add(path, mail, "invoice", "1, 2", "Which are there?", "Both", "y", "2001-06-01", "", "")
    (found,) = added(path)
    assert (len(found.message_ids), found.needs_all, str(found.query_date)) == (2, True, "2001-06-01")
    assert (found.how_realistic, found.split) == (None, None)
    assert f"Next: gumshoe scenarios add {path}" in ran.err


@pytest.mark.parametrize(
    ("answer", "missing"), [("body of message 3", ""), ("Body of message 4", "4"), ("a lemon tree", "a, lemon, tree")]
)
def test_an_answer_that_is_not_in_the_source_is_warned_about_and_added(
    add: Add, mail: Path, tmp_path: Path, answer: str, missing: str
) -> None:
    path = tmp_path / "own.jsonl"
    ran = add(path, mail, "invoice 3", "1", "What?", answer, "", "", "")
    assert [each.answer for each in added(path)] == [answer]
    assert ("warning: not in the source" in ran.err) is bool(missing)
    assert missing in ran.err


def test_answers_that_make_no_sense_are_asked_for_again(add: Add, mail: Path, tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    answers = (
        "",
        "nothing such",
        "invoice 4",
        "7",
        "one",
        "1",
        "Who?",
        "",
        "Bob",
        "May",
        "",
        "2",
        "nan",
        "",
        "dev",
        "",
    )
    ran = add(path, mail, *answers)
    assert (ran.status, len(added(path))) == (0, 1)
    for rejected in ("'7'", "'one'", "'May'", "'2'", "'nan'", "'dev'"):
        assert f"{rejected} is not" in ran.err


def test_questions_are_appended_with_free_ids(add: Add, mail: Path, tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    before = write_questions(path, [question(1, id="2")]).encode()
    assert before
    path.write_bytes(path.read_bytes().rstrip(b"\n"))  # as some editors leave it
    ran = add(path, mail, "invoice 4", "1", "Who?", "Bob", "", "", "", "invoice 5", "1", "Where?", "Here", "", "", "")
    assert [each.id for each in added(path)] == ["2", "3", "4"]
    assert "2 scenarios" in ran.out


@pytest.mark.parametrize(("split", "problem"), [("", "question asked twice"), ("test", "overlap between splits")])
def test_a_question_that_the_check_would_refuse_is_not_added(
    add: Add, mail: Path, tmp_path: Path, split: str, problem: str
) -> None:
    path = tmp_path / "own.jsonl"
    first = question(4, question="Who?", query_date="2001-05-05", **({"split": "train"} if split else {}))
    write_questions(path, [first])
    ran = add(path, mail, "invoice 4", "1", "Who?", "Bob", "", "", split)
    assert (ran.status, ran.code) == (3, "scenarios.rejected")
    assert f"Not added: {problem}" in ran.err
    assert "Next:" not in ran.err
    assert len(added(path)) == 1


def test_mail_after_the_query_date_cannot_be_a_source(add: Add, mail: Path, tmp_path: Path) -> None:
    ran = add(tmp_path / "own.jsonl", mail, "invoice 9", "1", "Who?", "Bob", "2001-05-01", "", "")
    assert "message after the query date" in ran.err
    assert not (tmp_path / "own.jsonl").exists()


def test_a_question_about_documents_is_added(add: Add, tmp_path: Path) -> None:
    index, path = tmp_path / "index", tmp_path / "own.jsonl"
    build_document_index([write_jsonl(tmp_path / "d.jsonl", DISEASES)], index, LEXICAL)
    ran = add(path, index, "uric acid", "1", "What hurts?", "The toe", "", "train", "q", inbox=None)
    assert "Gout is caused by crystals" in ran.err
    (found,) = added(path)
    assert (found.document_ids, found.inbox_address, found.query_date) == (("gout",), None, None)
    assert add(path, index, "uric acid").code == "scenarios.conflicting-options"


def test_a_question_about_a_collection_is_added(add: Add, mail: Path, tmp_path: Path) -> None:
    index, path = tmp_path / "index", tmp_path / "own.jsonl"
    source = write_jsonl(tmp_path / "d.jsonl", [{**each, "collection": "hr"} for each in DISEASES])
    build_document_index([source], index, LEXICAL)
    assert add(path, index, "q", inbox=None).code == "documents.collections-required"
    answers = ("uric acid", "1", "What hurts?", "The toe", "", "train", "q")
    assert add(path, index, *answers, inbox=None, collections="h*").status == 0
    (found,) = added(path)
    assert (found.document_ids, found.collections) == (("gout",), ("h*",))
    assert "Nothing found" in add(path, index, "uric acid", "q", inbox=None, collections="eng").err
    assert add(path, mail, "q", collections="hr").code == "scenarios.conflicting-options"


def test_without_input_and_terminal_the_command_is_refused(add: Add, mail: Path, tmp_path: Path) -> None:
    ran = add(tmp_path / "own.jsonl", mail)
    assert (ran.status, ran.code) == (2, "scenarios.no-input")


def test_a_file_that_lines_cannot_be_added_to_is_refused(add: Add, mail: Path, tmp_path: Path) -> None:
    assert add(tmp_path / "own.jsonl.gz", mail, "q").code == "scenarios.cannot-append"
    assert add(tmp_path / "missing" / "own.jsonl", mail, "q").code == "scenarios.invalid-output"
    (tmp_path / "bad.jsonl").write_text("{}\n")
    assert add(tmp_path / "bad.jsonl", mail, "q").code == "scenarios.malformed-line"


def test_an_unanswerable_question_is_added_after_a_search_in_vain(add: Add, mail: Path, tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    told = ("", "Who won?", "raffle", "invoice 3", "1", "", "2001-06-01", "0.4", "test")
    ran = add(path, mail, *told, "Who pays?", "invoice 4", "", "-", "q", unanswerable=True)
    assert ran.status == 0
    assert "Nothing found." in ran.err
    assert "Body of message 3" in ran.err
    (found,) = added(path)
    assert (found.question, found.unanswerable, found.sources) == ("Who won?", True, ())
    assert (found.inbox_address, str(found.query_date), found.split) == (ANN, "2001-06-01", "test")


def test_an_unanswerable_question_passes_the_same_check(add: Add, mail: Path, tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    asked = ("Who won?", "", "2001-06-01", "", "")
    ran = add(path, mail, *asked, *asked, unanswerable=True)
    assert (ran.status, ran.code, len(added(path))) == (3, "scenarios.rejected", 1)
    assert "Not added: question asked twice" in ran.err
    ran = add(path, mail, "Who lost?", "", "2001-06-01", "", "", inbox="nobody@example.com", unanswerable=True)
    assert (ran.code, len(added(path))) == ("scenarios.rejected", 1)


def test_an_unanswerable_question_about_documents_is_added(add: Add, tmp_path: Path) -> None:
    index, path = tmp_path / "index", tmp_path / "own.jsonl"
    build_document_index([write_jsonl(tmp_path / "d.jsonl", DISEASES)], index, LEXICAL)
    ran = add(path, index, "Who won?", "", "", "", "q", inbox=None, unanswerable=True)
    assert (ran.status, [each.unanswerable for each in added(path)]) == (0, [True])
    assert f"Next: gumshoe scenarios add {path} --index {index} --unanswerable" in ran.err
