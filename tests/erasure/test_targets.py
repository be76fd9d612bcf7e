"""Targets of an erasure, and arguments of `gumshoe erase` that are refused."""

import json
from io import BytesIO
from pathlib import Path

import pytest

from gumshoe.erasure.erase import open_scratch
from gumshoe.erasure.places import contains_name
from gumshoe.erasure.target import EraseTarget
from tests.artifacts.files import read_files
from tests.erasure.people import ANN, BOB, Run
from tests.errors import raises


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ([], "erasure.unclear-target"),
        (["--inbox", ANN, "--message", "x"], "erasure.unclear-target"),
        (["--inbox", "ann"], "mail.invalid-address"),
        (["--message", " <> "], "erasure.empty-target"),
        (["--message", "1@x", "--everywhere"], "erasure.option-conflict"),
        (["--inbox", ANN, "--collection", "hr"], "erasure.option-conflict"),
    ],
)
def test_invalid_targets_are_refused(run: Run, place: Path, options: list[str], code: str) -> None:
    before = read_files(place, manifest=True)
    ran = run("erase", place, *options, "--yes")
    assert (ran.status, ran.code) == (2, code)
    assert read_files(place, manifest=True) == before


def test_invalid_places_and_receipts_are_refused(run: Run, place: Path, tmp_path: Path) -> None:
    assert run("erase", "--inbox", ANN).code == "erasure.no-places"
    assert run("erase", tmp_path / "absent", "--inbox", ANN).code == "erasure.no-such-place"
    receipt = tmp_path / "receipt.json"
    assert run("erase", place, "--inbox", ANN, "--receipt", receipt, "--yes").status == 0
    before = read_files(place, manifest=True)
    assert run("erase", place, "--inbox", BOB, "--receipt", receipt, "--yes").code == "erasure.other-receipt"
    assert read_files(place, manifest=True) == before


def test_places_may_be_named_twice(run: Run, place: Path, tmp_path: Path) -> None:
    places = [place / "evaluation", place, place / "evaluation" / "predictions.jsonl", place]
    ran = run("erase", *places, "--inbox", ANN, "--receipt", tmp_path / "receipt.json", "--yes", "--json")
    assert ran.status == 0, ran.err
    erased = [each["place"] for each in json.loads(ran.out)["erased"]]
    assert len(erased) == len(set(erased)) == 10


def test_only_one_erasure_runs_at_a_time(run: Run, place: Path, cache: Path) -> None:
    before = read_files(place, manifest=True)
    with open_scratch() as scratch:
        (scratch / "copy").touch()
        assert run("erase", place, "--inbox", ANN, "--yes").code == "erasure.busy"
        assert list(scratch.iterdir()) == [scratch / "copy"]
    assert read_files(place, manifest=True) == before
    assert not list((cache / "erasure").iterdir())


def test_targets_match_whole_names() -> None:
    person = EraseTarget("inbox", ANN, everywhere=True)
    for text in (ANN, f"<{ANN}>", f"to {ANN.upper()}, and", f'"{ANN}"', f"mailto:{ANN}."):
        assert person.concerns([text]), text
    for text in ("joann@example.com", "x.ann@example.com", "ann@example.com.au", "ann@example.community", "ann"):
        assert not person.concerns([text]), text
    inbox = EraseTarget("inbox", ANN)
    assert inbox.concerns({"inbox_address": ANN.upper()})
    assert not inbox.concerns({"answer": ANN})
    document = EraseTarget("document", "a.b")
    for text in ("a.b", " a.b ", "hr:a.b", "a.b#3", "Title\n  text\n  id: a.b"):
        assert document.concerns([text]), text
    for text in ("a-b", "a.b.c", "see a.b here", "a.b#x", "id: a.bc"):
        assert not document.concerns([text]), text
    with raises("erasure.empty-target"):
        EraseTarget("document", " ")


@pytest.mark.parametrize("before", range((1 << 20) - 20, (1 << 20) + 2, 3))
def test_a_name_is_found_at_any_place_in_a_large_file(before: int) -> None:
    person = EraseTarget("inbox", ANN, everywhere=True)
    assert contains_name(BytesIO(b"x" * before + f" {ANN.upper()} ".encode()), person)
