"""The `gumshoe scenarios` commands."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gumshoe.scenarios.command_output import print_next_step
from gumshoe.scenarios.scenario import ScenarioSet
from gumshoe.scenarios.sources import load_scenarios
from tests.conftest import CommandResult
from tests.mail.mailbox import make_index, record
from tests.scenarios.questions import BOB, about_documents, ids, question, write_questions

Run = Callable[..., CommandResult]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build an index of messages 1 to 30, from Ann to Bob."""
    return make_index(tmp_path_factory.mktemp("commands"), map(record, range(1, 31))).path.parent


@pytest.fixture
def source(tmp_path: Path) -> str:
    """Write a file of thirty questions: 20 in train, 5 in validation, 5 in test."""
    splits = ["train"] * 20 + ["validation"] * 5 + ["test"] * 5
    lines = [question(number, split=split, how_realistic=number / 30) for number, split in enumerate(splits, 1)]
    return write_questions(tmp_path / "q.jsonl", lines)


def test_load_writes_selected_scenarios_and_counts_the_others(run: Run, source: str, tmp_path: Path) -> None:
    (tmp_path / "out.txt").write_text("q1\n\n  q2 \n")
    options = ["--min-realism", 0.1, "--max-messages", 1, "--exclude", "q3", "--exclude-from", tmp_path / "out.txt"]
    options += [
        "--split",
        "train",
        "--split",
        "test",
        "--limit",
        "train=5",
        "--limit",
        "test=9",
        "--inbox",
        "ANN@example.com",
    ]
    ran = run("scenarios", "load", f"jsonl:{source}", "--out", tmp_path / "new.jsonl", *options)
    assert ran.status == 0
    taken = load_scenarios(str(tmp_path / "new.jsonl"))
    assert ids(taken) == [f"q{number}" for number in [*range(4, 9), *range(26, 31)]]
    shown = ("10 scenarios", f"{tmp_path}/new.jsonl", "5 train, 5 test")
    for part in (*shown, "3 excluded", "5 in another split", "12 over the limit of train"):
        assert part in ran.out
    assert taken.content in ran.err


def test_load_prints_content_and_ids_of_each_split_as_json(run: Run, source: str, tmp_path: Path) -> None:
    options = ["--out", tmp_path / "new.jsonl", "--shuffle", 7, "--min-messages", 1, "--limit", "train=0", "--json"]
    facts = json.loads(run("scenarios", "load", source, *options).out)
    taken = load_scenarios(str(tmp_path / "new.jsonl"))
    assert (facts["scenarios"], facts["content"]) == (10, taken.content)
    assert facts["left_out"] == {"over the limit of train": 20}
    assert set(facts["splits"]) == {"validation", "test"}
    assert facts["splits"]["test"] == json.loads(taken.only("test").to_record().model_dump_json())
    assert facts["splits"]["test"]["ids"] != [f"q{number}" for number in range(26, 31)]


def test_load_selects_all_by_default(run: Run, source: str, tmp_path: Path) -> None:
    ran = run("scenarios", "load", source, "--out", tmp_path / "new.jsonl")
    assert load_scenarios(str(tmp_path / "new.jsonl")) == load_scenarios(source)
    assert "excluded" not in ran.out


def test_split_assigns_every_scenario(run: Run, source: str, tmp_path: Path) -> None:
    options = ["--validation", 0.1, "--test", 0.2, "--seed", 3]
    ran = run("scenarios", "split", source, "--out", tmp_path / "new.jsonl", *options)
    assert ran.status == 0
    made = load_scenarios(str(tmp_path / "new.jsonl"))
    assert ids(made) == ids(load_scenarios(source))
    assert {split: len(made.only(split)) for split in ("train", "validation", "test")} == {
        "train": 21,
        "validation": 3,
        "test": 6,
    }
    assert "21 train, 3 validation, 6 test" in ran.out
    assert "30 independent groups" in ran.out
    assert "dropped" not in ran.out
    again = run("scenarios", "split", source, "--out", tmp_path / "again.jsonl", *options, "--json")
    facts = json.loads(again.out)
    assert facts["counts"] == {"train": 21, "validation": 3, "test": 6}
    assert (facts["content"], facts["groups"], facts["largest_group"], facts["dropped"]) == (made.content, 30, 1, 0)
    assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "new.jsonl").read_bytes()


def test_split_has_default_shares(run: Run, tmp_path: Path) -> None:
    source = write_questions(tmp_path / "q.jsonl", map(question, range(100)))
    facts = json.loads(run("scenarios", "split", source, "--seed", 1, "--out", tmp_path / "new", "--json").out)
    assert facts["counts"] == {"train": 75, "validation": 10, "test": 15}


def test_split_can_keep_the_test_split(run: Run, source: str, tmp_path: Path) -> None:
    with Path(source).open("a") as file:
        file.writelines(
            json.dumps(question(number, message_ids=["<30@example.com>"])) + "\n" for number in range(100, 103)
        )
    options = ["--out", tmp_path / "new.jsonl", "--keep-test", "--validation", 0.2, "--seed", 3]
    ran = run("scenarios", "split", source, *options)
    assert "dropped 3 " in ran.out
    made = load_scenarios(str(tmp_path / "new.jsonl"))
    assert made.only("test") == load_scenarios(source).only("test")
    assert (len(made), len(made.only("validation"))) == (30, 5)


def test_split_can_keep_inboxes_together(run: Run, tmp_path: Path) -> None:
    lines = [question(number, inbox_address=f"owner{number % 5}@example.com") for number in range(50)]
    source = write_questions(tmp_path / "q.jsonl", lines)
    options = ["--out", tmp_path / "new", "--by-inbox", "--validation", 0.2, "--test", 0.2, "--seed", 1, "--json"]
    facts = json.loads(run("scenarios", "split", source, *options).out)
    assert (facts["groups"], facts["largest_group"]) == (5, 10)


def test_check_exits_with_0_without_problems(
    run: Run, source: str, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = run("scenarios", "check", source, "--index", index)
    assert ran.status == 0
    assert f"gumshoe evaluate --index {index} --scenarios {source}" in ran.err
    assert ran.out.startswith("30 scenarios")
    assert json.loads(run("scenarios", "check", source, "--index", index, "--json").out)["findings"] == []
    monkeypatch.setenv("GUMSHOE_INDEX", str(index))
    assert run("scenarios", "check", source).status == 0


@pytest.fixture
def wrong(tmp_path: Path) -> str:
    """Write a file with a missing message in line 1, another id in line 2, no JSON in line 3, and a valid line."""
    lines = [
        question(99, message_ids=["<[bold]99\x1b@example.com>"]),
        question(2, message_ids=["2@example.com"], split="test"),
        "nonsense",
        question(4),
    ]
    return write_questions(tmp_path / "wrong.jsonl", lines)


def test_check_exits_with_3_and_lists_problems(run: Run, wrong: str, index: Path) -> None:
    ran = run("scenarios", "check", wrong, "--index", index)
    assert ran.status == 3
    *findings, counts = ran.out.splitlines()
    expected: list[tuple[str, str]] = [
        ("message missing", "<[bold]99\\x1b@example.com>"),
        ("message known under another id", "<2@example.com>"),
        ("malformed line", "not JSON"),
    ]
    for number, (finding, (problem, value)) in enumerate(zip(findings, expected, strict=True), 1):
        assert finding.startswith(f"{wrong}:{number}: {problem}: ")
        assert value in finding
    assert counts.startswith("4 scenarios")
    assert ran.code == "scenarios.check-failed"
    assert "3 of 4" in ran.err
    assert not Path(wrong).with_name("wrong.clean.jsonl").exists()


def test_check_prints_findings_as_json_and_exits_with_3(run: Run, wrong: str, index: Path) -> None:
    ran = run("scenarios", "check", wrong, "--index", index, "--json")
    assert ran.status == 3
    facts = json.loads(ran.out)
    assert (facts["lines"], facts["mended"], facts["scenarios"]) == (4, 1, 2)
    assert facts["counts"] == {"message missing": 1, "message known under another id": 1, "malformed line": 1}
    assert [each["where"] for each in facts["findings"]] == [f"{wrong}:{number}" for number in (1, 2, 3)]
    assert {name: each["ids"] for name, each in facts["splits"].items()} == {"test": ["q2"], "none": ["q4"]}


def test_drop_writes_a_clean_file_and_exits_with_0(run: Run, wrong: str, index: Path) -> None:
    ran = run("scenarios", "check", wrong, "--index", index, "--drop")
    assert ran.status == 0
    clean = Path(wrong).with_name("wrong.clean.jsonl")
    assert [each.message_ids for each in load_scenarios(str(clean))] == [("<2@example.com>",), ("<4@example.com>",)]
    assert f"{wrong}:1: message missing" in ran.out
    for part in ("2 scenarios", str(clean), "1 test, 1 in no split", "2 dropped, 1 "):
        assert part in ran.out
    assert run("scenarios", "check", clean, "--index", index).status == 0


@pytest.mark.parametrize(
    ("name", "given", "clean"),
    [
        ("a.jsonl.gz", "{}/a.jsonl.gz", "a.clean.jsonl"),
        ("a.jsonl", "jsonl:{}/a.jsonl", "a.clean.jsonl"),
        ("a.b.txt", "{}/a.b.txt", "a.b.txt.clean.jsonl"),
        ("a.jsonl", "file://{}/a.jsonl", "a.clean.jsonl"),
    ],
)
def test_the_clean_file_is_named_after_the_source(
    run: Run, index: Path, tmp_path: Path, name: str, given: str, clean: str
) -> None:
    data = json.dumps(question(1)).encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert run("scenarios", "check", given.format(tmp_path), "--index", index, "--drop").status == 0
    assert ids(load_scenarios(str(tmp_path / clean))) == ["q1"]


@pytest.mark.parametrize(
    ("source", "out"),
    [
        ("s3://bucket/some/q.jsonl", "q.split.jsonl"),
        ("hf:acme/questions", "questions.split.jsonl"),
        ("file:///data/q.jsonl", "/data/q.split.jsonl"),
        ("jsonl:made/q.jsonl", "made/q.split.jsonl"),
    ],
)
def test_the_next_step_writes_to_a_file_on_this_machine(
    source: str, out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_next_step(ScenarioSet.of([]), source)
    assert f" --out {out} " in " ".join(capsys.readouterr().err.split())


def test_without_usable_scenarios_nothing_is_written(run: Run, index: Path, tmp_path: Path) -> None:
    source = write_questions(tmp_path / "q.jsonl", [question(99), about_documents(1)])
    ran = run("scenarios", "check", source, "--index", index, "--drop")
    assert ran.status == 3
    first, second, *_ = ran.out.splitlines()
    assert first.removeprefix(f"{source}:1: ").startswith("message missing: ")
    assert second.removeprefix(f"{source}:2: ").startswith("not about mail: ")
    assert ran.code == "scenarios.none-usable"
    assert not (tmp_path / "q.clean.jsonl").exists()


@pytest.mark.parametrize("command", ["load", "split", "check"])
def test_an_existing_file_is_replaced_only_on_request(
    run: Run, source: str, index: Path, tmp_path: Path, command: str
) -> None:
    place = tmp_path / "there.jsonl"
    place.write_text("mine")
    own: dict[str, list[Any]] = {"load": [], "split": ["--seed", 1], "check": ["--index", index, "--drop"]}
    refused = run("scenarios", command, source, "--out", place, *own[command])
    assert (refused.status, refused.code) == (2, "scenarios.output-exists")
    assert str(place) in refused.err
    assert "--replace" in refused.err
    assert place.read_text() == "mine"
    assert run("scenarios", command, source, "--out", place, *own[command], "--replace").status == 0
    assert len(load_scenarios(str(place))) == 30


def test_a_file_can_be_split_in_place(run: Run, source: str) -> None:
    assert run("scenarios", "split", source, "--out", source, "--seed", 1, "--test", 0.2, "--replace").status == 0
    made = load_scenarios(source)
    assert (len(made), len(made.only("test"))) == (30, 6)


@pytest.mark.parametrize(
    ("arguments", "code", "value"),
    [
        (["load", "FILE"], "cli.usage", "--out"),
        (["load", "FILE", "--out", "DIR"], "scenarios.invalid-output", "DIR is a directory"),
        (["load", "FILE", "--out", "DIR/no/x"], "scenarios.invalid-output", "DIR/no/x"),
        (["load", "DIR/missing.jsonl", "--out", "X"], "store.not-found", "DIR/missing.jsonl"),
        (["load", "hf:", "--out", "X"], "sources.no-dataset-name", "'hf:'"),
        (["load", "hf:@train", "--out", "X"], "sources.no-dataset-name", "'hf:@train'"),
        (["load", "WRONG", "--out", "X"], "scenarios.malformed-line", "wrong.jsonl:3: not JSON"),
        (["load", "FILE", "--out", "X", "--split", "dev"], "scenarios.unknown-split", "'dev'"),
        (["load", "FILE", "--out", "X", "--limit", "train"], "scenarios.invalid-limit", "'train'"),
        (["load", "FILE", "--out", "X", "--limit", "train=-1"], "scenarios.invalid-limit", "'train=-1'"),
        (["load", "FILE", "--out", "X", "--limit", "dev=5"], "scenarios.unknown-split", "'dev'"),
        (["load", "FILE", "--out", "X", "--exclude-from", "DIR/missing"], "scenarios.ids-unreadable", "DIR/missing"),
        (["load", "FILE", "--out", "X", "--inbox", BOB], "scenarios.none-selected", "30 in another inbox"),
        (["load", "FILE", "--out", "X", "--min-realism", "2"], "cli.usage", "--min-realism"),
        (["split", "FILE", "--out", "X"], "cli.usage", "--seed"),
        (
            ["split", "FILE", "--out", "X", "--seed", "1", "--keep-test", "--test", "0.1"],
            "scenarios.conflicting-options",
            "--keep-test",
        ),
        (["split", "FILE", "--out", "X", "--seed", "1", "--validation", "1"], "scenarios.invalid-shares", "0.15"),
        (["split", "FILE", "--out", "X", "--seed", "1", "--by-inbox"], "scenarios.empty-split", "validation and test"),
        (["split", "WRONG", "--out", "X", "--seed", "1"], "scenarios.malformed-line", "wrong.jsonl:3: not JSON"),
        (["check", "FILE"], "cli.usage", "--index"),
        (["check", "FILE", "--index", "DIR"], "scenarios.no-index", "gumshoe mail index"),
        (["check", "FILE", "--index", "INDEX", "--out", "X"], "scenarios.conflicting-options", "--drop"),
        (["check", "EMPTY", "--index", "INDEX"], "scenarios.no-scenarios", "empty.jsonl"),
        (["check", "DIR/missing.jsonl", "--index", "INDEX"], "store.not-found", "DIR/missing.jsonl"),
        (["check", "s3://bucket/q.jsonl", "--index", "INDEX", "--drop"], "scenarios.no-output-path", "--out"),
        (["check", "hf:acme/questions", "--index", "INDEX", "--drop"], "scenarios.no-output-path", "--out"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_each_usage_error_has_its_code_and_no_traceback(
    run: Run, source: str, wrong: str, index: Path, tmp_path: Path, arguments: list[str], code: str, value: str
) -> None:
    empty = write_questions(tmp_path / "empty.jsonl", [])
    places = {"FILE": source, "WRONG": wrong, "EMPTY": empty, "INDEX": str(index), "X": str(tmp_path / "x")}
    named = [places.get(each, each.replace("DIR", str(tmp_path))) for each in arguments]
    ran = run("scenarios", *named)
    assert (ran.status, ran.code) == (2, code)
    assert value.replace("DIR", str(tmp_path)) in " ".join(ran.err.split())
    assert "Traceback" not in ran.err
    assert not (tmp_path / "x").exists()


@pytest.mark.nightly
def test_the_commands_work_in_sequence_on_real_questions(
    run: Run, real_index: Path, shared_data: Path, tmp_path: Path
) -> None:
    questions = shared_data / "enron" / "questions.jsonl"
    loaded, clean, made = (tmp_path / name for name in ("all.jsonl", "all.clean.jsonl", "split.jsonl"))
    assert run("scenarios", "load", questions, "--out", loaded).status == 0
    assert run("scenarios", "check", loaded, "--index", real_index).status == 3
    checked = run("scenarios", "check", loaded, "--index", real_index, "--drop", "--json")
    assert (checked.status, json.loads(checked.out)["scenarios"]) == (0, 885)
    assert run("scenarios", "split", clean, "--keep-test", "--seed", 1, "--out", made).status == 0
    assert run("scenarios", "check", made, "--index", real_index).status == 0
    assert load_scenarios(str(made)).only("test") == load_scenarios(str(clean)).only("test")
