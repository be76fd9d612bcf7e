"""MedQuAD questions as scenarios about pages: from the set itself, from its copy on the hub, and the real ones."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gumshoe.documents.build import build_document_index
from gumshoe.documents.index import DocumentIndex
from gumshoe.scenarios.check import check_scenarios
from gumshoe.scenarios.sources import load_scenarios, read_scenarios
from gumshoe.scenarios.splitting import split_scenarios
from tests.conftest import CommandResult
from tests.documents.collection import LEXICAL, make_index, read_documents
from tests.errors import raises
from tests.scenarios.questions import write_questions

GOUT, FLU = "https://health.example/gout.html", "https://health.example/flu.html"


def record(number: int, url: str = GOUT, **fields: Any) -> dict[str, Any]:
    """Return a record of the set."""
    about = {"id": f"1-{number}", "qtype": "causes", "question": f"What causes Gout {number} ?", "focus": "Gout"}
    return {**about, "answer": f"Answer {number}.", "source": "NIH", "url": url, **fields}


def hub_record(number: int, url: str = GOUT, **fields: Any) -> dict[str, Any]:
    """Return the same record with the hub's fields."""
    own = record(number, url)
    return {
        "document_id": "0000001",
        "document_source": own["source"],
        "document_url": url,
        "category": None,
        "synonyms": "gout|podagra",
        "question_id": f"0000001-{number}",
        "question_focus": own["focus"],
        "question_type": own["qtype"],
        "question": own["question"],
        "answer": own["answer"],
        **fields,
    }


@pytest.mark.parametrize("form", [record, hub_record])
def test_a_record_becomes_a_question_about_its_page(form: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    lines = [form(1), form(2), form(3, FLU)]
    found = load_scenarios(write_questions(tmp_path / "q.jsonl", lines))
    index = make_index(tmp_path / "documents", lines)
    assert [(each.question, each.answer, each.kind, each.split) for each in found] == [
        ("What causes Gout 1?", "Answer 1.", "causes", None),
        ("What causes Gout 2?", "Answer 2.", "causes", None),
        ("What causes Gout 3?", "Answer 3.", "causes", None),
    ]
    assert [index.read(each.document_ids[0]).url for each in found] == [GOUT, GOUT, FLU]
    other = load_scenarios(write_questions(tmp_path / "o.jsonl", [record(1), hub_record(2), record(3, FLU)]))
    assert other.content == found.content, "whichever copy it is of"


def test_a_repeated_question_has_all_answers_and_pages(tmp_path: Path) -> None:
    again = {"question": "what causes GOUT 1 ??"}
    lines = [
        record(1),
        record(2, **again),
        record(3, FLU, **again),
        record(4, answer="Answer 1.", **again),
        record(5, question="Why?"),
    ]
    first, second = load_scenarios(write_questions(tmp_path / "q.jsonl", lines))
    assert (first.question, first.answer) == ("What causes Gout 1?", "Answer 1.\n\nAnswer 2.\n\nAnswer 3.")
    assert (len(first.document_ids), first.needs_all) == (2, False)
    assert second.question == "Why?"


def test_records_without_an_answer_are_counted(run: Callable[..., CommandResult], tmp_path: Path) -> None:
    own = {"id": "own", "question": "Who?", "answer": "Ann", "document_ids": ["d1"], "split": "test"}
    lines = [record(1), hub_record(2, answer=None), own, record(3, answer=" "), record(4, answer="a b c d e")]
    source = write_questions(tmp_path / "q.jsonl", lines)
    ran = run("scenarios", "load", source, "--max-answer", 4, "--out", tmp_path / "out.jsonl")
    assert ran.status == 0, ran.err
    assert "2 scenarios" in ran.out
    assert "1 longer answer" in ran.out
    assert "2 without an answer" in ran.out
    assert [each.split for each in load_scenarios(str(tmp_path / "out.jsonl"))] == ["test", None]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"document_url": [GOUT]}, r"document_url/url .*list"),
        ({"question": ""}, "question .*no words"),
        ({"question": None}, "question .*no words"),
        ({"question": 7}, "question .*int"),
        ({"answer": ["a"]}, "answer .*list"),
        ({"document_url": "", "question_focus": ""}, "document_url, url, question_focus, focus"),
        ({"answer": "a\ud800"}, r"answer: U\+D800"),
    ],
)
def test_an_invalid_record_is_a_malformed_line(wrong: dict[str, Any], message: str, tmp_path: Path) -> None:
    source = write_questions(tmp_path / "q.jsonl", [record(1), hub_record(2, **wrong)])
    lines = {line.where.rpartition(":")[2]: line for line in read_scenarios(source)}
    assert lines["1"].scenario is not None
    assert re.search(message, lines["2"].fault)
    with raises("scenarios.malformed-line", f"{source}:2: "):
        load_scenarios(source)


@pytest.mark.nightly
def test_the_real_questions_match_the_real_pages(shared_data: Path, tmp_path: Path) -> None:
    """Check that every page is in the index, and that no document is in two splits."""
    source = str(shared_data / "medquad" / "medquad.jsonl.gz")
    wanted = {page for each in load_scenarios(source) for page in each.document_ids}
    assert wanted == {each.document_id for each in read_documents(f"jsonl:{source}")}
    build_document_index([f"jsonl:{source}"], tmp_path / "index", LEXICAL)
    report = check_scenarios(read_scenarios(source), tmp_path / "index")
    assert set(report.counts) <= {"document known under another id"}
    assert len(report.clean) == report.lines == 3609
    divided, _ = split_scenarios(report.clean, validation=0.1, test=0.15, seed=1)
    places: dict[str, set[str | None]] = {}
    for each in divided:
        for page in each.document_ids:
            places.setdefault(page, set()).add(each.split)
    assert {len(splits) for splits in places.values()} == {1}
    index = DocumentIndex(tmp_path / "index")
    for each in list(divided)[:100]:
        texts = " ".join(index.read(page).text for page in each.document_ids)
        assert " ".join(each.answer.split("\n\n")[0].split()) in " ".join(texts.split())
