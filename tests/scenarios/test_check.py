"""The check against an index: each kind of finding with its line, what is left of the scenarios, and the real set."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gumshoe.mail.audit import MailAudit
from gumshoe.mail.index import MailIndex
from gumshoe.mail.schema import index_path
from gumshoe.scenarios.check import CheckReport, check_scenarios
from gumshoe.scenarios.scenario import SPLITS
from gumshoe.scenarios.sources import read_scenarios
from tests.documents.pages import make_collection, page
from tests.errors import raises
from tests.mail.mailbox import make_index, record
from tests.scenarios.questions import ANN, BOB, QUICK, about_documents, ids, marks, question, write_questions

Check = Callable[..., CheckReport]
CAROL, DAVE = "carol@example.com", "dave@example.com"
USED_TWICE = "<30@example.com>"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build an index of messages 1 to 9 from Ann to Bob, and one for each kind of problem."""
    records = [
        *[record(number) for number in range(1, 10)],
        record(20, sender=CAROL, to=[DAVE]),
        record(21, date=None),
        record(22, subject="Subject 1", body="Body of message 1", to=[CAROL]),
        record(23, sender=BOB, to=[CAROL], bcc=[ANN]),
        record(24, date="2001-06-01T23:59:59+00:00"),
        record(25, date="2001-06-01T23:59:59-00:01"),
        record(26, date="2001-06-02T00:00:00+00:00"),
        record(30, sender=CAROL, to=[DAVE], body="The first of its id"),
        record(30, body="The second of its id"),
        record(31, message_id="31@example.com"),
    ]
    return make_index(tmp_path_factory.mktemp("check"), records).path.parent


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build an index of documents 1 to 9, and of a duplicate of the last one."""
    pages = [*map(page, range(1, 10)), page(9, document_id="d10")]
    return make_collection(tmp_path_factory.mktemp("check"), pages)


@pytest.fixture
def check(index: Path, tmp_path: Path) -> Check:
    """Return a function that checks lines in a file `q.jsonl`."""

    def run(*lines: Any, place: Path = index) -> CheckReport:
        progress: list[int] = []
        report = check_scenarios(read_scenarios(write_questions(tmp_path / "q.jsonl", lines)), place, progress.append)
        assert sum(progress) == report.lines == len(lines)
        return report

    return run


def found(report: CheckReport) -> list[tuple[int, str, str]]:
    """Return the findings, each with its line number."""
    return [(int(each.where.rpartition(":")[2]), each.problem, each.text) for each in report.findings]


@dataclass(frozen=True)
class Wrong:
    """Lines with a problem, and the expected finding."""

    lines: list[Any]
    line: int
    """Line number of the finding."""
    said: str
    left: list[str]
    of_documents: bool = False
    """True to check against documents 1 to 9, of which 10 is a duplicate of 9."""


WRONG: dict[str, Wrong] = {
    "malformed line": Wrong(
        [question(1), {**question(2), "answer": ""}, question(3)],
        2,
        "answer",
        ["q1", "q3"],
    ),
    "id used twice": Wrong([question(1), question(2), question(3, id="q1")], 3, "q.jsonl:1", ["q1", "q2"]),
    "not about mail": Wrong([question(1), about_documents(2)], 2, "documents", ["q1"]),
    "not about documents": Wrong([question(1), about_documents(2)], 1, "messages", ["d2"], of_documents=True),
    "document missing": Wrong(
        [about_documents(1), about_documents(2, document_ids=["d99"])], 2, "d99 is not in the index", ["d1"], True
    ),
    "document known under another id": Wrong(
        [about_documents(1), about_documents(10)], 2, "d10 is listed as d9", ["d1", "d10"], of_documents=True
    ),
    "message missing": Wrong(
        [question(99), question(1)],
        1,
        "<99@example.com> is not in the index",
        ["q1"],
    ),
    "message outside the inbox": Wrong(
        [question(1), question(20)],
        2,
        "<20@example.com> is in the index, but not in the inbox ann@example.com",
        ["q1"],
    ),
    "message known under another id": Wrong(
        [question(1), question(2, message_ids=["2@example.com"])],
        2,
        "2@example.com is listed as <2@example.com>",
        ["q1", "q2"],
    ),
    "message without a date": Wrong([question(1), question(21)], 2, "<21@example.com> has no date", ["q1"]),
    "message after the query date": Wrong(
        [question(1), question(2, query_date="2001-05-02")],
        2,
        "<2@example.com> was sent on 2001-05-03, after the question was asked on 2001-05-02",
        ["q1"],
    ),
    "question asked twice": Wrong(
        [question(1), question(2), question(3, question="what does message 1 say")],
        3,
        "'what does message 1 say' is also asked at ",
        ["q1", "q2"],
    ),
    "overlap between splits": Wrong(
        [
            question(1, split="train"),
            question(2, split="train"),
            question(3, message_ids=["<1@example.com>"]) | {"split": "test"},
        ],
        1,
        "in train, it shares the source 1@example.com with ",
        ["q2", "q3"],
    ),
}


@pytest.mark.parametrize("problem", WRONG)
def test_each_problem_is_reported_with_its_line(check: Check, collection: Path, problem: str) -> None:
    wrong = WRONG[problem]
    report = check(*wrong.lines, place=collection) if wrong.of_documents else check(*wrong.lines)
    ((line, kind, said),) = found(report)
    assert (line, kind) == (wrong.line, problem)
    assert wrong.said in said
    assert report.counts == {problem: 1}
    assert ids(report.clean) == wrong.left


def test_valid_scenarios_are_unchanged(check: Check) -> None:
    lines = [
        question(1, split="train", note="kept"),
        question(2, inbox_address=BOB, split="test", message_ids=["<2@example.com>", "<3@example.com>"]),
        question(3, message_ids=["<4@example.com>", "<5@example.com>"], needs_all=True),
    ]
    report = check(*lines)
    assert (report.findings, report.counts, report.corrected) == ([], {}, 0)
    assert [{**question(0), **each.model_dump(mode="json", exclude_defaults=True)} for each in report.clean] == lines


@pytest.mark.parametrize(
    ("number", "inbox", "right"),
    [(1, ANN, True), (1, BOB, True), (1, CAROL, True), (1, DAVE, False), (23, ANN, True), (23, DAVE, False)],
    ids=["sender", "recipient", "of a dropped duplicate", "nobody", "blind copy", "nobody of a blind copy"],
)
def test_a_message_is_in_the_inboxes_of_all_recipients(
    check: Check, index: Path, number: int, inbox: str, right: bool
) -> None:
    report = check(question(number, inbox_address=inbox))
    problems = ["message known under another id"] if inbox == CAROL else ["message outside the inbox"] * (not right)
    assert [problem for _, problem, _ in found(report)] == problems
    assert (inbox in {each.inbox for each in MailAudit(index).find(f"<{number}@example.com>")}) is right


@pytest.mark.parametrize(
    ("number", "day", "right"),
    [
        (24, "2001-06-01", True),
        (24, "2001-05-31", False),
        (25, "2001-06-01", False),
        (25, "2001-06-02", True),
        (26, "2001-06-01", False),
        (26, "2001-06-02", True),
    ],
)
def test_the_query_date_ends_with_its_day_in_utc(check: Check, number: int, day: str, right: bool) -> None:
    report = check(question(number, query_date=day))
    assert [problem for _, problem, _ in found(report)] == ["message after the query date"] * (not right)


@pytest.mark.parametrize(
    ("given", "listed"),
    [
        ("<22@example.com>", "<1@example.com>"),
        ("22@example.com", "<1@example.com>"),
        ("1@example.com", "<1@example.com>"),
        ("<31@example.com>", "31@example.com"),
    ],
    ids=["a dropped duplicate", "the same without brackets", "without brackets", "with brackets"],
)
def test_another_id_of_a_message_is_corrected(check: Check, given: str, listed: str) -> None:
    report = check(question(1, message_ids=[given]))
    assert found(report) == [(1, "message known under another id", f"{given} is listed as {listed}")]
    assert [each.message_ids for each in report.clean] == [(listed,)]
    assert report.corrected == 1


def test_an_id_of_two_messages_means_the_one_in_the_inbox(check: Check, index: Path) -> None:
    report = check(question(30), question(31, message_ids=[USED_TWICE], inbox_address=DAVE))
    assert found(report) == []
    anns, daves = (each.message_ids[0] for each in report.clean)
    assert anns == daves == USED_TWICE
    assert MailIndex(index).read(ANN, anns).body == "The second of its id"


def test_an_audit_lists_each_inbox(index: Path) -> None:
    listed = MailAudit(index).find(USED_TWICE)
    assert {(each.inbox, each.message_id) for each in listed} == {
        (each, USED_TWICE) for each in (ANN, BOB, CAROL, DAVE)
    }
    assert listed[0].sent == datetime.fromisoformat("2001-05-03T12:00:00Z")
    assert {each.sent for each in MailAudit(index).find("<21@example.com>")} == {None}
    assert MailAudit(index).find("<99@example.com>") == []


@pytest.mark.parametrize("wrong", ["<99@example.com>", "<20@example.com>", "<21@example.com>", "<24@example.com>"])
@pytest.mark.parametrize("needs_all", [False, True])
def test_one_valid_message_is_enough_unless_all_are_needed(check: Check, wrong: str, needs_all: bool) -> None:
    sources = ["<1@example.com>", wrong, "<2@example.com>"]
    report = check(question(1, message_ids=sources, needs_all=needs_all, query_date="2001-05-31"))
    assert len(report.findings) == 1
    if needs_all:
        assert (ids(report.clean), report.corrected) == ([], 0)
    else:
        assert [each.message_ids for each in report.clean] == [("<1@example.com>", "<2@example.com>")]
        assert report.corrected == 1


def test_a_scenario_that_needs_all_keeps_all_with_corrected_ids(check: Check) -> None:
    report = check(question(1, message_ids=["<22@example.com>", "<2@example.com>"], needs_all=True))
    assert [each.message_ids for each in report.clean] == [("<1@example.com>", "<2@example.com>")]


def test_two_ids_of_one_message_become_one(check: Check) -> None:
    report = check(question(1, message_ids=["<1@example.com>", "1@example.com", "<22@example.com>"]))
    assert [problem for _, problem, _ in found(report)] == ["message known under another id"] * 2
    assert [each.message_ids for each in report.clean] == [("<1@example.com>",)]


def test_every_invalid_message_of_a_line_is_reported(check: Check) -> None:
    report = check(question(1, message_ids=["<99@example.com>", "<98@example.com>", "<20@example.com>"]))
    assert report.counts == {"message missing": 2, "message outside the inbox": 1}
    assert [line for line, *_ in found(report)] == [1, 1, 1]
    assert not report.clean


SAME = {"question": "What is it?"}


@pytest.mark.parametrize(
    ("first", "second", "twice"),
    [
        ({}, {}, True),
        ({}, {"question": "WHAT is it"}, True),
        ({}, {"query_date": "2001-06-02"}, False),
        ({}, {"query_date": "2001-06-02", "message_ids": ["<1@example.com>"]}, True),
        ({}, {"query_date": "2001-06-02", "message_ids": ["<22@example.com>"]}, True),
        ({}, {"inbox_address": BOB}, False),
        ({}, {"question": "What is this?"}, False),
        ({"split": "train"}, {"split": "train"}, True),
        ({"question": "?!"}, {"question": "!"}, False),
        ({"question": "?!"}, {"question": "?!"}, True),
    ],
)
def test_a_repeated_question_is_reported(
    check: Check, first: dict[str, Any], second: dict[str, Any], twice: bool
) -> None:
    report = check(question(1, **{**SAME, **first}), question(2, **{**SAME, **second}))
    assert ("question asked twice" in report.counts) is twice
    assert ids(report.clean) == (["q1"] if twice else ["q1", "q2"])


@pytest.mark.parametrize(
    ("splits", "lost"),
    [
        (("train", "test"), [1]),
        (("test", "train"), [2]),
        (("train", "validation"), [1]),
        (("validation", "test"), [1]),
        (("train", "validation", "test"), [1, 2]),
        (("test", "test"), []),
        (("train", None), []),
        ((None, "test"), []),
    ],
)
@pytest.mark.parametrize("shared", ["source", "question", "source under another id"])
def test_overlaps_are_removed_from_the_training_split(
    check: Check, splits: tuple[str | None, ...], lost: list[int], shared: str
) -> None:
    lines = []
    for number, split in enumerate(splits, 1):
        fields: dict[str, Any] = {"split": split, "query_date": f"2001-06-0{number}"}
        if shared == "question":
            fields["question"] = "What is it?" if number % 2 else "what IS it"
        elif shared == "source":
            fields["message_ids"] = ["<1@example.com>", f"<{number + 2}@example.com>"]
        else:
            fields["message_ids"] = ["<1@example.com>" if number % 2 else "<22@example.com>"]
        lines.append(question(number, **fields))
    report = check(*lines)
    overlaps = [(line, text) for line, problem, text in found(report) if problem == "overlap between splits"]
    assert [line for line, _ in overlaps] == lost
    assert ids(report.clean) == [f"q{number}" for number in range(1, len(splits) + 1) if number not in lost]
    for line, text in overlaps:
        assert text.startswith(f"in {splits[line - 1]}, ")
        assert text.endswith(" in test") or "test" not in splits


def test_dropped_scenarios_cause_no_overlap(check: Check) -> None:
    """Check this because a broken test question would otherwise remove a good training question."""
    report = check(
        question(1, split="train"),
        question(2, split="test", question="What does message 1 say?", message_ids=["<99@example.com>"]),
    )
    assert report.counts == {"message missing": 1}
    assert ids(report.clean) == ["q1"]


def test_dropped_scenarios_do_not_count_as_corrected(check: Check) -> None:
    report = check(
        question(1, split="train", message_ids=["<22@example.com>"]),
        question(2, split="test", message_ids=["<1@example.com>", "<99@example.com>"]),
    )
    assert ids(report.clean) == ["q2"]
    assert report.corrected == 1


def test_findings_are_in_line_order_and_counts_descending(check: Check) -> None:
    report = check(
        question(1, split="train"),
        question(98),
        "broken",
        question(99),
        question(2, message_ids=["<1@example.com>"], split="test"),
    )
    assert [line for line, *_ in found(report)] == [1, 2, 3, 4]
    assert list(report.counts.items()) == [
        ("message missing", 2),
        ("overlap between splits", 1),
        ("malformed line", 1),
    ]


def test_repetitions_and_overlaps_of_documents_are_found(check: Check, collection: Path) -> None:
    report = check(
        about_documents(1, split="train"),
        about_documents(2, split="train"),
        about_documents(3, document_ids=["d1"], split="test"),
        about_documents(4, split="test"),
        about_documents(5, question="what does document 4 say", split="test"),
        about_documents(6, document_ids=["d6", "d99"], split="train"),
        about_documents(7, document_ids=["d7", "d99"], needs_all=True),
        place=collection,
    )
    assert [(line, problem) for line, problem, _ in found(report)] == [
        (1, "overlap between splits"),
        (5, "question asked twice"),
        (6, "document missing"),
        (7, "document missing"),
    ]
    assert "inbox" not in found(report)[1][2]
    assert [each.document_ids for each in report.clean] == [("d2",), ("d1",), ("d4",), ("d6",)]
    assert report.corrected == 1


def test_a_check_needs_a_readable_index(tmp_path: Path) -> None:
    with raises("scenarios.no-index", tmp_path):
        check_scenarios([], tmp_path)
    index_path(tmp_path).write_bytes(b"not JSON" * 1000)
    with raises("store.index-damaged", index_path(tmp_path)):
        check_scenarios([], tmp_path)


def test_a_damaged_index_is_an_error_and_not_a_finding(tmp_path: Path) -> None:
    index = make_index(tmp_path, map(record, range(1, 200)))
    (path,) = index.directory.glob("*/messages.sqlite")
    whole = path.read_bytes()
    audit = MailAudit(index.directory)
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    with raises("store.index-damaged", index.directory):
        audit.find("<1@example.com>")


def test_a_damaged_file_is_an_error_and_not_a_finding(index: Path, tmp_path: Path) -> None:
    (tmp_path / "q.jsonl.gz").write_bytes(b"not gzip")
    with raises("scenarios.damaged-file", tmp_path / "q.jsonl.gz"):
        check_scenarios(read_scenarios(str(tmp_path / "q.jsonl.gz")), index)


# Any mailbox, any scenarios.

people = st.sampled_from([ANN, BOB, CAROL])
mailboxes = st.lists(
    st.builds(
        lambda number, text, sender, to, bcc, day: record(
            number,
            subject="Subject",
            body=f"Body {text}",
            sender=sender,
            to=to,
            bcc=bcc,
            date=day and f"2001-05-0{day}T12:00:00+00:00",
        ),
        st.integers(1, 6),
        st.integers(1, 4),
        people,
        st.lists(people, max_size=2),
        st.lists(people, max_size=1),
        st.sampled_from([1, 2, 3, 4, None]),
    ),
    min_size=1,
    max_size=8,
)
rows = st.lists(
    st.tuples(
        st.lists(
            st.sampled_from([*[f"<{number}@example.com>" for number in range(1, 8)], "1@example.com"]), min_size=1
        ),
        st.integers(1, 6),
        people,
        st.integers(1, 5),
        st.sampled_from([*SPLITS, None]),
        st.booleans(),
        st.sampled_from([*range(8), None]),
    ),
    max_size=12,
)


@pytest.mark.ci
@settings(QUICK, max_examples=60)
@given(records=mailboxes, rows=rows)
def test_clean_scenarios_are_answerable_and_pass_the_check(
    records: list[dict[str, Any]], rows: list[tuple[Any, ...]]
) -> None:
    lines: list[Any] = [
        question(
            number if again is None else again,
            message_ids=sources,
            question=f"What is {asked}?",
            inbox_address=inbox,
            query_date=f"2001-05-0{day}",
            split=split,
            needs_all=needs_all,
        )
        for number, (sources, asked, inbox, day, split, needs_all, again) in enumerate(rows, 10)
    ]
    with TemporaryDirectory() as place:
        mail = make_index(Path(place), records)
        index = mail.path.parent
        source = write_questions(Path(place) / "q.jsonl", lines)
        report = check_scenarios(read_scenarios(source), index)
        came = {line.where: line.scenario for line in read_scenarios(source)}

        changed = {place for place, each in came.items() if each not in report.clean.scenarios}
        assert {finding.where for finding in report.findings} == changed
        assert report.corrected == len([each for each in report.clean if each not in came.values()])

        held: dict[tuple[str, str], set[str | None]] = {}
        for each in report.clean:
            assert each.inbox_address is not None
            assert each.query_date is not None
            for message_id in each.message_ids:
                message = mail.read(each.inbox_address, message_id)
                assert message.message_id == message_id
                assert message.sent is not None
                assert message.sent.date() <= each.query_date
            for mark in marks(each):
                held.setdefault(mark, set()).add(each.split)
        assert [mark for mark, splits in held.items() if len(splits - {None}) > 1] == []

        (Path(place) / "clean.jsonl").write_bytes(report.clean.to_jsonl())
        again = check_scenarios(read_scenarios(str(Path(place) / "clean.jsonl")), index)
        assert (again.findings, again.clean) == ([], report.clean)


@pytest.mark.ci
@settings(QUICK, max_examples=30)
@given(records=mailboxes, splits=st.lists(st.sampled_from([*SPLITS, None]), min_size=8, max_size=8))
def test_a_question_about_any_search_result_is_valid(records: list[dict[str, Any]], splits: list[str | None]) -> None:
    with TemporaryDirectory() as place:
        mail = make_index(Path(place), records)
        hits = {hit.message_id: (hit, inbox) for inbox in (ANN, BOB, CAROL) for hit in mail.search(inbox, ["body"])}
        lines = [
            question(
                number, message_ids=[hit.message_id], inbox_address=inbox, query_date=f"{hit.sent.date()}", split=split
            )
            for number, ((hit, inbox), split) in enumerate(zip(hits.values(), splits, strict=False))
            if hit.sent is not None
        ]
        report = check_scenarios(read_scenarios(write_questions(Path(place) / "q.jsonl", lines)), mail.path.parent)
        assert report.findings == []
        assert len(report.clean) == len(lines)


# The real questions on the real mail.


@pytest.mark.nightly
def test_885_of_the_999_real_questions_are_valid(real_index: Path, shared_data: Path) -> None:
    report = check_scenarios(read_scenarios(str(shared_data / "enron" / "questions.jsonl")), real_index)
    assert report.lines == 999
    assert report.counts == {"overlap between splits": 90, "message missing": 51, "question asked twice": 9}
    assert (len(report.clean), report.corrected) == (885, 15)


@pytest.mark.nightly
def test_the_clean_real_questions_pass_the_check(real_index: Path, shared_data: Path, tmp_path: Path) -> None:
    report = check_scenarios(read_scenarios(str(shared_data / "enron" / "questions.jsonl")), real_index)
    (tmp_path / "clean.jsonl").write_bytes(report.clean.to_jsonl())
    again = check_scenarios(read_scenarios(str(tmp_path / "clean.jsonl")), real_index)
    assert (again.findings, again.clean.content) == ([], report.clean.content)


def test_documents_are_looked_up_in_the_collections_of_the_scenario(tmp_path: Path) -> None:
    make_collection(tmp_path, [page(1, collection="hr"), page(2, collection="eng")])
    questions = [
        about_documents(1, id="a", question="One?", collections=["hr"]),
        about_documents(1, id="b", question="Two?", collections=["eng"]),
        about_documents(1, id="c", question="Three?"),
        about_documents(1, id="d", question="Four?", collections=["*"]),
    ]
    path = write_questions(tmp_path / "q.jsonl", questions)
    report = check_scenarios(read_scenarios(path), tmp_path / "index")
    found = [(each.where.rpartition(":")[2], each.problem) for each in report.findings]
    assert found == [("2", "document in another collection"), ("3", "question without collections")]


def test_an_unanswerable_question_needs_its_inbox_or_its_documents(check: Check, collection: Path) -> None:
    mail = {"question": "When?", "unanswerable": True, "inbox_address": ANN, "query_date": "2001-06-01"}
    about = {"id": "d", "question": "When?", "unanswerable": True}
    report = check({"id": "u1", **mail}, {"id": "u2", **mail, "inbox_address": "gone@example.com"}, about)
    assert found(report) == [
        (2, "inbox missing", "the index has no inbox gone@example.com"),
        (3, "not about mail", "it is about documents; the index contains mail"),
    ]
    assert ids(report.clean) == ["u1"]
    assert ids(check(about, place=collection).clean) == ["d"]
