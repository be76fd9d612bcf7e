"""Artifacts and files that quote somebody's mail are found by their mark and deleted on request."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gumshoe.artifacts.private_data import MARK, PrivateCopy, find_private_copies, mark_private, remove_private_copies
from gumshoe.artifacts.store import Store
from tests.artifacts.files import write_files
from tests.conftest import CommandResult

ANA, BEN = "ana@oak.example", "ben@oak.example"


@pytest.fixture
def populated(store: Store, tmp_path: Path) -> Store:
    """Return a store with reports for two people, an index of everybody's mail, and an adapter."""
    for reference, inboxes in {"reports/1": [ANA], "reports/2": [BEN], "mail-indexes/1": None}.items():
        source = write_files(tmp_path / reference, {"pages/one": b"Dear Ana", "pages/two": b"Dear Ben"})
        mark_private(source, inboxes)
        store.publish(source, *reference.split("/"))
    store.publish(write_files(tmp_path / "adapter", {"weights": b"1"}), "adapters", "1")
    return store


def _places(found: list[PrivateCopy]) -> dict[str, bool]:
    return {each.place: each.is_named for each in found}


def test_marks_for_an_inbox_and_for_anybody_are_found(populated: Store) -> None:
    assert _places(find_private_copies(populated.storage, ANA.__eq__)) == {"reports/1": True, "mail-indexes/1": False}
    assert _places(find_private_copies(populated.storage, "nobody@oak.example".__eq__)) == {"mail-indexes/1": False}


def test_removal_deletes_every_file_and_leaves_the_rest_intact(populated: Store) -> None:
    remove_private_copies(populated.storage, find_private_copies(populated.storage, ANA.__eq__))
    assert sorted(each.reference for each in populated.list()) == ["adapters/1", "reports/2"]
    assert populated.verify("reports/2") == {}
    left = [entry.key for place in ("reports/1", "mail-indexes/1") for entry in populated.storage.entries(f"{place}/")]
    assert left == []
    assert find_private_copies(populated.storage, ANA.__eq__) == []


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"inboxes": 3}'])
def test_an_unreadable_mark_counts_as_anybody_s_mail(store: Store, tmp_path: Path, text: bytes) -> None:
    store.publish(write_files(tmp_path / "a", {MARK: text, "page": b"Dear Ana"}), "reports", "1")
    assert _places(find_private_copies(store.storage, ANA.__eq__)) == {"reports/1": False}


@pytest.mark.parametrize("below", ["", "report/", "steps/evaluate/report/"])
def test_the_output_directory_of_a_step_is_removed(tmp_path: Path, below: str) -> None:
    left = tmp_path / "left"
    write_files(left, {f"{below}page": b"Dear Ana"})
    mark_private(left / below, [ANA])
    store = Store(left.as_uri())
    (found,) = find_private_copies(store.storage, ANA.__eq__)
    remove_private_copies(store.storage, [found])
    assert [path for path in left.rglob("*") if path.is_file()] == []


def test_only_listed_files_beside_the_directory_are_removed(tmp_path: Path) -> None:
    write_files(tmp_path, {"run/made/page": b"Dear Ana", "run/report": b"Dear Ana", "run/report2": b"", "store/a": b""})
    mark_private(tmp_path / "run" / "made", [ANA], beside=["report", "metrics"])
    store = Store(tmp_path.as_uri())
    (found,) = find_private_copies(store.storage, ANA.__eq__)
    assert found.place == "run/made"
    remove_private_copies(store.storage, [found])
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["run/report2", "store/a"]


def test_the_command_lists_what_it_would_remove_and_removes_it_with_yes(
    populated: Store, store_uri: str, run: Callable[..., CommandResult]
) -> None:
    arguments = ["artifacts", "forget", "--store", store_uri, "--inbox", ANA.upper()]
    listing = run(*arguments)
    assert listing.status == 0
    report, index = (
        line for name in ("reports/1", "mail-indexes/1") for line in listing.out.splitlines() if name in line
    )
    assert "(4 files, " in report
    assert ("anybody's" in report, "anybody's" in index) == (False, True)
    assert len(populated.list()) == 4
    removed = json.loads(run(*arguments, "--yes", "--json").out)
    assert (removed["dry_run"], sorted(removed["removed"])) == (False, ["mail-indexes/1", "reports/1"])
    assert len(populated.list()) == 2
    again = run(*arguments, "--yes")
    assert again.status == 0
    assert "quotes" in again.out


def test_only_ascii_addresses_can_be_forgotten(store_uri: str, run: Callable[..., CommandResult]) -> None:
    ran = run("artifacts", "forget", "--store", store_uri, "--inbox", "\u212aim@oak.example", "--yes")
    assert (ran.status, ran.code) == (2, "artifacts.inbox-not-ascii")


def test_the_command_ignores_the_case_of_addresses(
    tmp_path: Path, store: Store, store_uri: str, run: Callable[..., CommandResult]
) -> None:
    for name, inbox in (("1", ANA.title()), ("2", f"x{ANA}")):
        mark_private(tmp_path / name, [inbox])
        store.publish(write_files(tmp_path / name, {"page": b"Dear Ana"}), "reports", name)
    assert run("artifacts", "forget", "--store", store_uri, "--inbox", ANA.upper(), "--yes").status == 0
    assert [each.reference for each in store.list()] == ["reports/2"]
