"""Scenarios from files, S3 and datasets, malformed lines, and selection."""

import codecs
import gzip
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gumshoe.scenarios.scenario import SPLITS, Scenario, ScenarioError, ScenarioSet, Split
from gumshoe.scenarios.sources import Selection, load_scenarios, read_scenarios
from tests.errors import raises
from tests.scenarios.questions import (
    BOB,
    QUICK,
    about_documents,
    ids,
    question,
    scenario,
    scenario_sets,
    write_questions,
)

THREE = "".join(json.dumps(question(number)) + "\n" for number in (1, 2, 3)).encode()


def faults(source: str) -> list[tuple[str, str]]:
    """Return line number and fault of each malformed line."""
    return [(line.where.removeprefix(f"{source}:"), line.fault) for line in read_scenarios(source) if line.fault]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("plain.jsonl", THREE),
        ("no line end.jsonl", THREE.rstrip()),
        ("CRLF.jsonl", THREE.replace(b"\n", b"\r\n")),
        ("BOM.jsonl", codecs.BOM_UTF8 + THREE),
        ("empty lines.jsonl", b"\n" + THREE.replace(b"\n", b"\n \n\t\n")),
        ("packed.jsonl.gz", gzip.compress(THREE)),
        ("two members.jsonl.gz", gzip.compress(THREE[:100]) + gzip.compress(THREE[100:])),
        ("another name", THREE),
    ],
)
@pytest.mark.parametrize("form", ["{}", "jsonl:{}", "file://{}", "jsonl:file://{}"])
def test_a_file_is_read_line_by_line(tmp_path: Path, name: str, data: bytes, form: str) -> None:
    (tmp_path / name).write_bytes(data)
    assert load_scenarios(form.format(tmp_path / name)) == ScenarioSet.of(map(scenario, (1, 2, 3)))


def test_a_relative_path_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_questions(tmp_path / "q.jsonl", [question(1)])
    monkeypatch.chdir(tmp_path)
    assert [line.where for line in read_scenarios("jsonl:q.jsonl")] == ["q.jsonl:1"]


@pytest.mark.parametrize("packed", [False, True])
def test_scenarios_are_read_from_s3(s3_bucket: str, packed: bool) -> None:
    import boto3

    key = "sets/q.jsonl" + ".gz" * packed
    body = THREE + b"{}\n"
    boto3.client("s3").put_object(Bucket=s3_bucket, Key=key, Body=gzip.compress(body) if packed else body)
    lines = list(read_scenarios(f"jsonl:s3://{s3_bucket}/{key}"))
    assert [line.where for line in lines] == [f"s3://{s3_bucket}/{key}:{number}" for number in (1, 2, 3, 4)]
    assert [line.scenario for line in lines] == [*map(scenario, (1, 2, 3)), None]
    with raises("store.not-found", f"s3://{s3_bucket}/sets/missing.jsonl"):
        load_scenarios(f"s3://{s3_bucket}/sets/missing.jsonl")
    with raises("store.is-a-directory", f"s3://{s3_bucket}/sets"):
        load_scenarios(f"s3://{s3_bucket}/sets")


def test_missing_files_are_reported(tmp_path: Path) -> None:
    with raises("store.not-found", f"{tmp_path}/missing.jsonl") as raised:
        load_scenarios(f"jsonl:{tmp_path}/missing.jsonl")
    assert isinstance(raised.value, ScenarioError)
    write_questions(tmp_path / "q.jsonl", [question(1)])
    with raises("store.is-a-directory", tmp_path):
        load_scenarios(str(tmp_path))
    with raises("store.unknown-scheme", "https"):
        load_scenarios("https://example.com/q.jsonl")


@pytest.mark.parametrize("data", [b"", b"\n \n", gzip.compress(b"", mtime=0)])
def test_a_file_without_scenarios_is_an_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / ("q.jsonl.gz" if data[:1] == b"\x1f" else "q.jsonl")
    path.write_bytes(data)
    with raises("scenarios.no-scenarios", path):
        load_scenarios(str(path))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"nonsense", "not JSON"),
        (b'{"id": "q4"', "not JSON"),
        (b'{"id": "\xff"}', "not JSON"),
        (json.dumps(question(4)).encode("utf-16"), "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"1" * 5000, "not JSON"),
        (b"[]", "a list"),
        (b"null", "null"),
        (b"{}", "id is missing; question is missing; answer is missing"),
        (b'{"id": "q4", "question": "Q?", "answer": "A"}', "message_ids or document_ids"),
        (json.dumps(question(4, query_date=None)).encode(), "needs query_date"),
        (json.dumps(question(4, how_realistic=2)).encode(), "equal to 1 (got '2')"),
        (json.dumps(question(4, split="x" * 90)).encode(), "(got 'xxx"),
        (json.dumps(question(4, message_ids=[["a"]])).encode(), "message_ids.0: "),
        (json.dumps(question(4, message_ids="a")).encode(), "a list (got 'a')"),
        (json.dumps(question(4, inbox_address="ann")).encode(), "inbox_address: 'ann'"),
        (json.dumps(question(4, splits="test")).encode(), "field 'splits'; did you mean 'split'?"),
        (json.dumps(question(4, note="\ud800")).encode(), "note: U+D800"),
        (json.dumps(question(4, answer="a\0")).encode(), "answer: U+0000"),
        (json.dumps(question(4, note=float("nan"))).encode(), "NaN"),
        (b'{"id": ' + b"[" * 100_000, "JSON"),
        (b'{"id": ' + b"9" * 5000 + b"}", "JSON"),
    ],
)
def test_a_malformed_line_is_an_error_with_its_number(tmp_path: Path, line: bytes, message: str) -> None:
    (tmp_path / "q.jsonl").write_bytes(b"\n" + THREE + line + b"\n" + json.dumps(question(5)).encode())
    source = str(tmp_path / "q.jsonl")
    ((where, fault),) = faults(source)
    assert where == "5"
    assert message in fault
    assert len(fault) < 300
    with raises("scenarios.malformed-line") as raised:
        load_scenarios(source)
    assert raised.value.message == f"{source}:5: {fault}"
    assert [line.where for line in read_scenarios(source) if line.scenario] == [
        f"{source}:{number}" for number in (2, 3, 4, 6)
    ]


@pytest.mark.parametrize(("broken", "more"), [(5, None), (6, "and 1 more"), (900, "and 895 more")])
def test_many_malformed_lines_are_counted_and_the_first_listed(tmp_path: Path, broken: int, more: str | None) -> None:
    source = write_questions(tmp_path / "q.jsonl", [question(1), *["x"] * broken])
    with raises("scenarios.malformed-line") as raised:
        load_scenarios(source)
    *told, last = raised.value.message.splitlines()
    assert [each.split(": ")[0] for each in told[:5]] == [f"{source}:{number}" for number in (2, 3, 4, 5, 6)][
        : len(told)
    ]
    assert last == more if more else last.startswith(f"{source}:6: not JSON")


def test_an_id_used_twice_is_an_error_with_both_lines(tmp_path: Path) -> None:
    source = write_questions(tmp_path / "q.jsonl", [question(1, id=7), question(2), question(3, id="7")])
    with raises("scenarios.duplicate-id", f"{source}:3: ", "'7'", f"{source}:1"):
        load_scenarios(source)


@pytest.mark.parametrize(
    ("data", "before"),
    [
        (gzip.compress(THREE)[:-12], 2),
        (gzip.compress(THREE) + b"rubbish", 3),
        (gzip.compress(THREE)[:-6] + b"xxxxxx", 3),
        (THREE, 0),
        (b"", 0),
    ],
    ids=["cut", "rubbish behind", "wrong checksum", "not gzip", "empty"],
)
def test_lines_before_damage_are_read(tmp_path: Path, data: bytes, before: int) -> None:
    (tmp_path / "q.jsonl.gz").write_bytes(data)
    lines = read_scenarios(str(tmp_path / "q.jsonl.gz"))
    assert [next(lines).scenario for _ in range(before)] == [scenario(number) for number in range(1, before + 1)]
    with raises("scenarios.damaged-file", tmp_path / "q.jsonl.gz", f"after line {before} "):
        next(lines)


def test_a_null_field_counts_as_missing(tmp_path: Path) -> None:
    nulls = dict.fromkeys(["document_ids", "needs_all", "how_realistic", "split", "kind", "other"])
    source = write_questions(tmp_path / "q.jsonl", [question(1, **nulls), question(2, id=None)])
    first, second = read_scenarios(source)
    assert first.scenario == scenario(1)
    assert second.fault == "id is missing"


@QUICK
@given(lines=st.lists(st.binary(max_size=30).filter(lambda line: b"\n" not in line), max_size=5))
def test_invalid_bytes_do_not_affect_later_lines(lines: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("any") / "q.jsonl"
    path.write_bytes(b"\n".join([*lines, json.dumps(question(1)).encode()]))
    *others, last = read_scenarios(str(path))
    assert last.where == f"{path}:{len(lines) + 1}"
    assert last.scenario == scenario(1)
    assert [line.where for line in others if line.fault] == [
        f"{path}:{number}" for number, line in enumerate(lines, 1) if line.strip()
    ]


# Datasets. Importing the library takes seconds and fixes its settings, so one process reads several directories.

PROGRAM = """
import json, sys
from gumshoe.errors import GumshoeError
from gumshoe.scenarios.sources import read_scenarios

for uri in sys.argv[1:]:
    lines, error = [], None
    try:
        for line in read_scenarios(uri):
            lines.append([line.where, line.scenario and json.loads(line.scenario.to_json()), line.fault])
    except GumshoeError as failure:
        error = [failure.code, failure.message]
    print(json.dumps([lines, error]), flush=True)
"""


@dataclass(frozen=True)
class Outcome:
    """Location, scenario and fault of each row of a dataset, and the error at the end, if any."""

    lines: list[list[Any]]
    error: list[str] | None


def write_dataset(place: Path, files: dict[str, list[dict[str, Any]]]) -> None:
    """Write Parquet files, one per split, as on the hub."""
    import pyarrow.parquet  # type: ignore[import-untyped]

    for name, rows in files.items():
        path = place / "data" / f"{name}-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), buffer := io.BytesIO())
        path.write_bytes(buffer.getvalue())


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Return the outcome of reading each dataset, by its directory and split."""
    place = tmp_path_factory.mktemp("datasets")
    upstream = [question(number, id=number, how_realistic=0.75) for number in range(1, 6)]
    write_dataset(place / "set", {"train": upstream[:3], "test": upstream[3:]})
    rows = [
        question(1, query_date=datetime(2001, 5, 14, 23, 30, tzinfo=UTC), split="validation", note=None),
        question(2, query_date=datetime(2001, 5, 14, tzinfo=UTC), split=None, note="x"),
        question(3, query_date=datetime(2001, 5, 14, tzinfo=UTC), split="dev", note="x"),
    ]
    write_dataset(place / "own", {"train": rows})
    write_dataset(place / "other", {"train": upstream[:1], "holdout": upstream[1:]})
    write_dataset(place / "days", {"test": [question(1, query_date=date(2001, 5, 14))]})
    write_dataset(place / "no-ids", {"test": [{"question": "Q?", "answer": "A"}]})
    names = ["set", "set@test", "set@", "set@validation", "own", "other", "other@holdout", "other@train", "days"]
    names += ["no-ids", "missing"]
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, *[f"hf:{place}/{name}" for name in names]],
        env={**environment, "HF_HOME": str(place / "home"), "HF_ENDPOINT": "http://127.0.0.1:9"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    plain = ended.stdout.replace(f"hf:{place}/", "")
    return {name: Outcome(*json.loads(line)) for name, line in zip(names, plain.splitlines(), strict=True)}


def test_rows_of_a_dataset_get_its_split(outcomes: dict[str, Outcome]) -> None:
    expected = [
        [f"set@{split}#{row}", {**question(number, id=str(number), how_realistic=0.75), "split": split}, ""]
        for number, split, row in [(1, "train", 1), (2, "train", 2), (3, "train", 3), (4, "test", 1), (5, "test", 2)]
    ]
    assert outcomes["set"] == Outcome(expected, None)
    assert outcomes["set@"] == Outcome(expected, None)
    assert outcomes["set@test"] == Outcome(expected[3:], None)


def test_a_row_keeps_its_own_split(outcomes: dict[str, Outcome]) -> None:
    first, second, third = outcomes["own"].lines
    assert outcomes["own"].error is None
    assert first[1] == question(1, query_date="2001-05-14", split="validation")
    assert second[1] == question(2, query_date="2001-05-14", split="train", note="x")
    assert third[:2] == ["own@train#3", None]
    assert third[2].startswith("split: ")
    assert outcomes["days"].lines[0][1] == question(1, query_date="2001-05-14", split="test")


@pytest.mark.parametrize("name", ["other", "other@holdout"])
def test_unknown_dataset_splits_are_reported(name: str, outcomes: dict[str, Outcome]) -> None:
    assert outcomes[name].lines == []
    error = outcomes[name].error
    assert error is not None
    assert error[0] == "scenarios.unknown-dataset-split"
    for value in (": holdout;", "train, validation, test", "other@test"):
        assert value in error[1]
    assert len(outcomes["other@train"].lines) == 1


@pytest.mark.parametrize("name", ["set@validation", "missing"])
def test_an_unreadable_dataset_is_an_error(name: str, outcomes: dict[str, Outcome]) -> None:
    assert outcomes[name].lines == []
    error = outcomes[name].error
    assert error is not None
    assert error[0] == "sources.dataset-unreadable"
    assert error[1].startswith(f"{name}: ")


def test_a_malformed_row_is_reported_by_location(outcomes: dict[str, Outcome]) -> None:
    assert outcomes["no-ids"] == Outcome([["no-ids@test#1", None, "id is missing"]], None)


# Selection.

MIXED = ScenarioSet.of(
    [
        scenario(1, split="train", how_realistic=0.9),
        scenario(2, split="train", how_realistic=0.5, message_ids=["<2@example.com>", "<3@example.com>"]),
        scenario(3, split="train", inbox_address=BOB),
        scenario(4, split="test", how_realistic=0.9, inbox_address=BOB),
        scenario(5, how_realistic=1.0, message_ids=[f"<{number}@example.com>" for number in range(3)]),
        Scenario.model_validate(about_documents(6, how_realistic=0.1)),
    ]
)


@pytest.mark.parametrize(
    ("selection", "taken", "left_out"),
    [
        (Selection(), "q1 q2 q3 q4 q5 d6", {}),
        (Selection(splits=frozenset({"train"})), "q1 q2 q3", {"in another split": 3}),
        (Selection(splits=frozenset({"train", "test"})), "q1 q2 q3 q4", {"in another split": 2}),
        (Selection(min_messages=2), "q2 q5", {"fewer sources": 4}),
        (Selection(max_messages=1), "q1 q3 q4 d6", {"more sources": 2}),
        (Selection(min_messages=2, max_messages=2), "q2", {"fewer sources": 4, "more sources": 1}),
        (Selection(min_realism=0.9), "q1 q4 q5", {"less realistic": 3}),
        (Selection(min_realism=0.1), "q1 q2 q4 q5 d6", {"less realistic": 1}),
        (Selection(inboxes=frozenset({" <Bob@Example.com>"})), "q3 q4", {"in another inbox": 4}),
        (Selection(exclude=frozenset({"q1", "d6", "unknown"})), "q2 q3 q4 q5", {"excluded": 2}),
        (Selection(limits={"train": 1}), "q1 q4 q5 d6", {"over the limit of train": 2}),
        (Selection(limits={"train": 0, "test": 5}), "q4 q5 d6", {"over the limit of train": 3}),
        (
            Selection(limits={"train": 1}, exclude=frozenset({"q1"})),
            "q2 q4 q5 d6",
            {"excluded": 1, "over the limit of train": 1},
        ),
    ],
)
def test_a_selection_counts_excluded_scenarios(selection: Selection, taken: str, left_out: dict[str, int]) -> None:
    found, why = selection.apply(MIXED)
    assert ids(found) == taken.split()
    assert dict(why) == left_out


@QUICK
@given(
    made=scenario_sets(),
    seed=st.integers(),
    limits=st.dictionaries(st.sampled_from(SPLITS), st.integers(0, 5)),
    data=st.data(),
)
def test_a_shuffle_depends_only_on_the_seed(
    made: ScenarioSet, seed: int, limits: dict[Split, int], data: st.DataObject
) -> None:
    whole, left_out = Selection(shuffle=seed).apply(made)
    assert not left_out
    assert sorted(ids(whole)) == sorted(ids(made))
    mixed = ScenarioSet.of(data.draw(st.permutations(list(made))))
    limited, why = Selection(shuffle=seed, limits=limits).apply(mixed)
    for split in (*SPLITS, None):
        most = len(made) if split is None else limits.get(split, len(made))
        assert limited.only(split).scenarios == whole.only(split).scenarios[:most]
    assert sum(why.values()) == len(made) - len(limited)


def test_each_seed_gives_another_order() -> None:
    made = ScenarioSet.of(map(scenario, range(20)))
    orders = {tuple(ids(Selection(shuffle=seed).apply(made)[0])) for seed in (None, 0, 1, 2, -1)}
    assert len(orders) == 5
