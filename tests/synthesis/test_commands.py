"""The `gumshoe synthesize` commands."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import CommandResult

Command = Callable[..., CommandResult]
SMALL = ["synthesize", "mail", "--seed", 4, "--mailboxes", 3, "--messages", 150]


@pytest.mark.ci
def test_the_commands_generate_index_check_and_split_mail(gumshoe: Command, tmp_path: Path) -> None:
    made = gumshoe(*SMALL, "--difficulty", "easy", "--out", "made", cwd=tmp_path)
    assert made.status == 0, made.err
    assert "150 messages" in made.out
    assert "3 people" in made.out
    assert "made/scenarios.jsonl" in made.out
    indexed = gumshoe("mail", "index", "jsonl:made/mail.jsonl", "--out", "index", cwd=tmp_path)
    assert "150 messages" in indexed.out
    checked = gumshoe("scenarios", "check", "made/scenarios.jsonl", "--index", "index", cwd=tmp_path)
    assert checked.status == 0, checked.err
    shares = ["--by-inbox", "--validation", 0.2, "--test", 0.2, "--seed", 1]
    split = gumshoe("scenarios", "split", "made/scenarios.jsonl", *shares, "--out", "split.jsonl", cwd=tmp_path)
    assert split.status == 0, split.err
    assert gumshoe("scenarios", "check", "split.jsonl", "--index", "index", cwd=tmp_path).status == 0


def test_the_json_result_counts_messages_and_scenarios(gumshoe: Command, tmp_path: Path) -> None:
    ran = gumshoe(*SMALL, "--json", "--out", tmp_path)
    result = json.loads(ran.out)
    lines = (tmp_path / "scenarios.jsonl").read_text().splitlines()
    assert result["messages"] == 150 == len((tmp_path / "mail.jsonl").read_text().splitlines())
    assert sum(result["scenarios"].values()) == sum(result["kinds"].values()) == len(lines)
    assert min(result["scenarios"].values()) > 0
    assert all(f"synthetic-4-normal-{number:03}-" in "".join(lines) for number in (1, 2, 3))


@pytest.mark.ci
def test_existing_files_are_replaced_only_on_request(gumshoe: Command, tmp_path: Path) -> None:
    (tmp_path / "mail.jsonl").write_text("mine\n")
    refused = gumshoe(*SMALL, "--out", tmp_path)
    assert (refused.status, refused.code) == (2, "synthesis.output-exists")
    assert "mail.jsonl" in refused.err
    assert (tmp_path / "mail.jsonl").read_text() == "mine\n"
    assert gumshoe(*SMALL, "--out", tmp_path, "--replace").status == 0
    assert (tmp_path / "mail.jsonl").read_text() != "mine\n"


@pytest.mark.parametrize(
    ("options", "code", "values"),
    [
        (["--mailboxes", 2], "synthesis.invalid-size", ["--mailboxes", "3", "got 2"]),
        (["--messages", 20], "synthesis.invalid-size", ["--messages", "3 mailboxes", "got 20"]),
        (["--difficulty", "fiendish"], "cli.usage", ["hard"]),
        (["--seed", "x"], "cli.usage", ["seed"]),
    ],
)
def test_invalid_options_are_reported(
    options: list[object], code: str, values: list[str], gumshoe: Command, tmp_path: Path
) -> None:
    refused = gumshoe(*SMALL, *options, "--out", tmp_path / "new")
    assert (refused.status, refused.code) == (2, code)
    for value in values:
        assert value in refused.err
    assert "Traceback" not in refused.err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("place", "code", "value"),
    [
        ("file", "store.not-a-directory", "file"),
        ("file/below", "store.directory-not-writable", "file/below"),
        ("taken", "synthesis.invalid-output", "taken/mail.jsonl"),
        ("/proc/1/task", "store.directory-not-writable", "/proc/1/task"),
        ("", "store.empty-path", ""),
    ],
)
def test_an_unusable_directory_is_reported_before_the_work(
    place: str, code: str, value: str, gumshoe: Command, tmp_path: Path
) -> None:
    """Request so many messages that generating them would take minutes."""
    (tmp_path / "file").write_text("")
    (tmp_path / "taken" / "mail.jsonl").mkdir(parents=True)
    many = ["--mailboxes", 12, "--messages", 200_000, "--replace"]
    refused = gumshoe(*SMALL, *many, "--out", place, cwd=tmp_path)
    assert (refused.status, refused.code) == (2, code)
    assert value in refused.err
    assert "Traceback" not in refused.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "taken"]
