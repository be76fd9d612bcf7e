"""What quotes somebody's mail is found by its mark, and removed when it is to be forgotten."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gumshoe.artifacts.private_data import MARK, Quoting, find_quoting, forget, mark
from gumshoe.artifacts.store import Store
from tests.artifacts.files import write_files
from tests.conftest import Ran

ANA, BEN = "ana@oak.example", "ben@oak.example"


@pytest.fixture
def kept(store: Store, tmp_path: Path) -> Store:
    """A store with a report for each of two people, an index of everybody's mail, and an adapter."""
    for reference, inboxes in {"reports/1": [ANA], "reports/2": [BEN], "mail-indexes/1": None}.items():
        source = write_files(tmp_path / reference, {"pages/one": b"Dear Ana", "pages/two": b"Dear Ben"})
        mark(source, inboxes)
        store.publish(source, *reference.split("/"))
    store.publish(write_files(tmp_path / "adapter", {"weights": b"1"}), "adapters", "1")
    return store


def _places(found: list[Quoting]) -> dict[str, bool]:
    return {each.place: each.is_named for each in found}


def test_what_names_an_inbox_is_found_and_so_is_what_may_hold_anybody_s_mail(kept: Store) -> None:
    assert _places(find_quoting(kept.storage, ANA)) == {"reports/1": True, "mail-indexes/1": False}
    assert _places(find_quoting(kept.storage, "nobody@oak.example")) == {"mail-indexes/1": False}


def test_what_is_forgotten_leaves_nothing_and_the_rest_is_whole(kept: Store) -> None:
    forget(kept.storage, find_quoting(kept.storage, ANA))
    assert sorted(each.reference for each in kept.list()) == ["adapters/1", "reports/2"]
    assert kept.verify("reports/2") == {}
    left = [entry.key for place in ("reports/1", "mail-indexes/1") for entry in kept.storage.entries(f"{place}/")]
    assert left == []
    assert find_quoting(kept.storage, ANA) == []


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"inboxes": 3}'])
def test_a_mark_that_cannot_be_read_may_be_anybody_s(store: Store, tmp_path: Path, text: bytes) -> None:
    store.publish(write_files(tmp_path / "a", {MARK: text, "page": b"Dear Ana"}), "reports", "1")
    assert _places(find_quoting(store.storage, ANA)) == {"reports/1": False}


@pytest.mark.parametrize("below", ["", "report/", "steps/evaluate/report/"])
def test_what_a_step_left_on_a_disk_goes_whole(tmp_path: Path, below: str) -> None:
    left = tmp_path / "left"
    write_files(left, {f"{below}page": b"Dear Ana"})
    mark(left / below, [ANA])
    store = Store(left.as_uri())
    (found,) = find_quoting(store.storage, ANA)
    forget(store.storage, [found])
    assert [path for path in left.rglob("*") if path.is_file()] == []


def test_what_a_step_wrote_beside_it_goes_too_and_nothing_else_that_lies_there(tmp_path: Path) -> None:
    write_files(tmp_path, {"run/made/page": b"Dear Ana", "run/report": b"Dear Ana", "run/report2": b"", "store/a": b""})
    mark(tmp_path / "run" / "made", [ANA], beside=["report", "metrics"])
    store = Store(tmp_path.as_uri())
    (found,) = find_quoting(store.storage, ANA)
    assert found.place == "run/made"
    forget(store.storage, [found])
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["run/report2", "store/a"]


def test_the_command_shows_what_would_go_and_removes_it_when_told(
    kept: Store, store_uri: str, run: Callable[..., Ran]
) -> None:
    words = ["artifacts", "forget", "--store", store_uri, "--inbox", ANA.upper()]
    would = run(*words)
    assert would.status == 0
    report, index = (
        line for name in ("reports/1", "mail-indexes/1") for line in would.out.splitlines() if name in line
    )
    assert "(4 files, " in report
    assert ("anybody's" in report, "anybody's" in index) == (False, True)
    assert len(kept.list()) == 4
    removed = json.loads(run(*words, "--yes", "--json").out)
    assert (removed["dry_run"], sorted(removed["removed"])) == (False, ["mail-indexes/1", "reports/1"])
    assert len(kept.list()) == 2
    again = run(*words, "--yes")
    assert again.status == 0
    assert "quotes" in again.out
