"""`gumshoe synthesize` as a user runs it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Ran

Command = Callable[..., Ran]
SMALL = ["synthesize", "mail", "--seed", 4, "--mailboxes", 3, "--messages", 150]


def test_mail_is_made_indexed_checked_and_split_by_the_commands(gumshoe: Command, tmp_path: Path) -> None:
    made = gumshoe(*SMALL, "--difficulty", "easy", "--out", "made", cwd=tmp_path)
    assert made.status == 0, made.err
    assert "150 messages of 3 people at " in made.out
    assert "made/scenarios.jsonl" in made.out
    indexed = gumshoe("mail", "index", "jsonl:made/mail.jsonl", "--out", "index", cwd=tmp_path)
    assert "150 messages" in indexed.out
    checked = gumshoe("scenarios", "check", "made/scenarios.jsonl", "--index", "index", cwd=tmp_path)
    assert (checked.status, checked.err) == (0, "")
    assert "nothing is wrong" in checked.out
    shares = ["--by-inbox", "--validation", 0.2, "--test", 0.2, "--seed", 1]
    split = gumshoe("scenarios", "split", "made/scenarios.jsonl", *shares, "--out", "split.jsonl", cwd=tmp_path)
    assert split.status == 0, split.err
    assert gumshoe("scenarios", "check", "split.jsonl", "--index", "index", cwd=tmp_path).status == 0


def test_the_result_as_json_counts_what_was_made(gumshoe: Command, tmp_path: Path) -> None:
    ran = gumshoe(*SMALL, "--json", "--out", tmp_path)
    result = json.loads(ran.out)
    lines = (tmp_path / "scenarios.jsonl").read_text().splitlines()
    assert result["messages"] == 150 == len((tmp_path / "mail.jsonl").read_text().splitlines())
    assert sum(result["scenarios"].values()) == sum(result["kinds"].values()) == len(lines)
    assert min(result["scenarios"].values()) > 0
    assert all(f"synthetic-4-normal-{number:03}-" in "".join(lines) for number in (1, 2, 3))


def test_what_is_there_is_left_alone_unless_asked(gumshoe: Command, tmp_path: Path) -> None:
    (tmp_path / "mail.jsonl").write_text("mine\n")
    refused = gumshoe(*SMALL, "--out", tmp_path)
    assert refused.status == 2
    assert "mail.jsonl already" in refused.err
    assert (tmp_path / "mail.jsonl").read_text() == "mine\n"
    assert gumshoe(*SMALL, "--out", tmp_path, "--replace").status == 0
    assert (tmp_path / "mail.jsonl").read_text() != "mine\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--mailboxes", 2], "ask for 3"),
        (["--messages", 20], "20 messages cannot be had in 3 mailboxes"),
        (["--difficulty", "fiendish"], "hard"),
        (["--seed", "x"], "seed"),
    ],
)
def test_what_cannot_be_made_is_told_of(options: list[object], said: str, gumshoe: Command, tmp_path: Path) -> None:
    refused = gumshoe(*SMALL, *options, "--out", tmp_path / "new")
    assert refused.status == 2
    assert said in refused.err
    assert "Traceback" not in refused.err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("file", "file is a file; name a directory"),
        ("file/below", "file/below cannot be written to"),
        ("taken", "taken/mail.jsonl is a directory"),
        ("/proc/1/task", "/proc/1/task cannot be written to"),
        ("", "the directory's name is empty"),
    ],
)
def test_a_place_that_cannot_be_used_is_told_of_before_the_work(
    place: str, said: str, gumshoe: Command, tmp_path: Path
) -> None:
    """So many messages take minutes."""
    (tmp_path / "file").write_text("")
    (tmp_path / "taken" / "mail.jsonl").mkdir(parents=True)
    many = ["--mailboxes", 12, "--messages", 200_000, "--replace"]
    refused = gumshoe(*SMALL, *many, "--out", place, cwd=tmp_path)
    assert refused.status == 2
    assert said in refused.err
    assert "Traceback" not in refused.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "taken"]
