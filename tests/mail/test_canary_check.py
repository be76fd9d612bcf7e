"""Planted messages in an index are found, also in later segments, until they are removed."""

from collections.abc import Callable
from pathlib import Path

from gumshoe.mail.build import build_mail_index
from gumshoe.mail.canary_check import has_canaries
from tests.conftest import CommandResult
from tests.errors import raises
from tests.mail.mailbox import record, write_jsonl

PLANTED = record(2, message_id="<canary.badekiso@canary.example>")
SIMILAR = ["<canary@example.com>", "<canary/x@example.com>", "<a.canary.b@example.com>", "<Canary.x@example.com>"]


def test_planted_messages_are_found_by_the_start_of_their_id(tmp_path: Path) -> None:
    others = [record(number, message_id=each) for number, each in enumerate(SIMILAR, 3)]
    build_mail_index([write_jsonl(tmp_path / "a.jsonl", [record(1), *others])], tmp_path / "without")
    assert not has_canaries(tmp_path / "without")
    build_mail_index([write_jsonl(tmp_path / "b.jsonl", [record(1), PLANTED, *others])], tmp_path / "with")
    assert has_canaries(tmp_path / "with")


def test_planted_messages_of_a_later_segment_count_until_they_are_removed(
    tmp_path: Path, run: Callable[..., CommandResult]
) -> None:
    mail = write_jsonl(tmp_path / "a.jsonl", [record(1)])
    build_mail_index([mail], tmp_path / "index")
    planted = write_jsonl(tmp_path / "b.jsonl", [PLANTED])
    steps = [("--into", planted, True), ("--remove", PLANTED["message_id"], False)]
    for option, what, is_found in steps:
        words = (
            [what, "--into", tmp_path / "index"] if option == "--into" else ["--into", tmp_path / "index", option, what]
        )
        ran = run("mail", "index", *words)
        assert ran.status == 0, ran.err
        assert has_canaries(tmp_path / "index") is is_found


def test_without_an_index_there_is_nothing_to_check(tmp_path: Path) -> None:
    with raises("mail.no-index"):
        has_canaries(tmp_path)
