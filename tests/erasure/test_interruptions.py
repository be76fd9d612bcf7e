"""An interrupted erasure can be run again."""

import json
import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gumshoe.erasure.erase import Erasure
from gumshoe.erasure.places import apply_change
from gumshoe.erasure.receipt import Receipt
from gumshoe.erasure.target import EraseTarget
from tests.artifacts.files import find_bytes
from tests.documents.collection import DISEASES
from tests.documents.collection import make_index as make_documents
from tests.erasure.people import ABOUT_ANN, ANN, Run, write_lines


class StoppedError(Exception):
    """End an erasure between two of its steps."""


def test_an_interrupted_erasure_can_be_run_again(
    place: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupt it after each of its steps, and run it again at the end."""

    count = 0
    while True:
        done = 0

        def apply_some(*arguments: Any) -> int:
            nonlocal done
            if done >= 1:
                raise StoppedError
            done += 1
            return apply_change(*arguments)

        erasure = Erasure(EraseTarget("inbox", ANN), [place], None)
        receipt = Receipt.open(tmp_path / "receipt.json", EraseTarget("inbox", ANN))
        plan = erasure.plan(receipt)
        if not plan.places.changes:
            break
        count += 1
        with monkeypatch.context() as patched, suppress(StoppedError):
            patched.setattr("gumshoe.erasure.erase.apply_change", apply_some)
            erasure.run(plan, receipt, partial(receipt.write, tmp_path / "receipt.json"))
        assert count < 20
    assert count > 5
    assert find_bytes(place, "zircon", "Leeds", ANN, "Where is Ann") == set()
    ran = run("erase", place, "--inbox", ANN, "--receipt", tmp_path / "receipt.json", "--yes")
    assert ran.status == 0
    written = Receipt.model_validate_json((tmp_path / "receipt.json").read_text())
    assert [Path(each).name for each in written.adapters] == ["of-ann"]
    assert written.pending is None


def test_records_that_only_an_erased_question_identifies_are_found_after_an_interruption(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop after the file with the question: nothing else tells whose the predictions are, in two places."""
    first = write_lines(tmp_path / "1" / "a" / "q.jsonl", ABOUT_ANN).parent.parent
    answer = {"scenario": "a", "question": ABOUT_ANN["question"], "answer": "zircon"}
    write_lines(first / "b" / "choices.jsonl", {"scenario": "a", "choice": "zircon"})
    second = write_lines(tmp_path / "2" / "p.jsonl", answer, {**answer, "question": "Where is Bob's?"}).parent
    words = ["erase", first, second, "--inbox", ANN, "--receipt", tmp_path / "receipt.json", "--yes"]

    def stop_after_questions(change: Any, target: EraseTarget) -> None:
        apply_change(change, target)
        raise StoppedError

    with monkeypatch.context() as patched, suppress(StoppedError):
        patched.setattr("gumshoe.erasure.erase.apply_change", stop_after_questions)
        run(*words)
    assert (find_bytes(first, "Where is Ann"), find_bytes(first, "zircon")) == (set(), {"zircon"})
    receipt = (tmp_path / "receipt.json").read_text()
    assert "zircon" not in receipt
    assert "Where is" not in receipt
    assert run(*words).status == 0
    assert find_bytes(first, "zircon") == set()
    assert (second / "p.jsonl").read_text().count("zircon") == 1
    assert Receipt.model_validate_json((tmp_path / "receipt.json").read_text()).pending is None


def test_adapters_of_erased_questions_are_found_after_an_interruption(place: Path, tmp_path: Path, run: Run) -> None:
    """Continue an erasure with another place, whose adapter learned a question that is erased already."""
    target, receipt = EraseTarget("message", "1@example.com"), tmp_path / "receipt.json"
    erasure, written = Erasure(target, [place / "questions.jsonl"], None), Receipt.open(receipt, target)
    erasure.run(erasure.plan(written), written, partial(written.write, receipt))
    words = ["erase", place / "run", "--message", "1@example.com", "--receipt", receipt, "--json"]
    assert {Path(each).name for each in json.loads(run(*words).out)["adapters"]} == {"of-ann"}


@pytest.mark.parametrize("words", [("--inbox", ANN), ("--message", "1@example.com")])
def test_segments_of_an_interrupted_erasure_are_deleted(
    place: Path, tmp_path: Path, run: Run, words: tuple[str, str]
) -> None:
    """Stop after the new segments became visible, before the old ones are deleted."""
    old = shutil.copytree(place / "mail" / "segment-1", tmp_path / "segment-1")
    receipt = ["--receipt", tmp_path / "receipt.json", "--yes"]
    assert run("erase", place / "mail", *words, *receipt).status == 0
    shutil.copytree(old, place / "mail" / "segment-1")
    shutil.copytree(old, place / "mail" / ".partial" / "segment-3")
    assert find_bytes(place / "mail", "zircon")
    assert run("erase", place / "mail", *words, *receipt).status == 0
    assert find_bytes(place / "mail", "zircon") == set()
    assert find_bytes(place / "mail", "quartz in York")


def test_folders_of_an_interrupted_erasure_are_deleted(tmp_path: Path, run: Run) -> None:
    index = make_documents(tmp_path / "built", DISEASES).path.parents[1]
    (folder,) = index.glob("data-*")
    old = shutil.copytree(folder, tmp_path / folder.name)
    words = ["erase", index, "--document", "gout", "--receipt", tmp_path / "receipt.json", "--yes"]
    assert run(*words).status == 0
    shutil.copytree(old, index / folder.name)
    shutil.copytree(old, index / ".partial")
    assert find_bytes(index, "podagra")
    assert run(*words).status == 0
    assert find_bytes(index, "podagra") == set()
    assert find_bytes(index, "Influenza")
