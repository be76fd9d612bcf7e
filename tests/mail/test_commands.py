"""The `gumshoe mail` commands."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import CommandResult
from tests.mail.mailbox import make_index, record, write_jsonl

ANN, BOB = "ann@example.com", "bob@example.com"
Run = Callable[..., CommandResult]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> str:
    records = [
        record(1, subject="[bold]Offer[/]", body="The price is \x1b[31m$5\x1b[0m\r\nuntil Friday", x_from="Ann Lee"),
        record(2, subject="Re: Offer", body="Too high a price", sender=BOB, to=[ANN], cc=["carol@example.com"]),
        record(3, subject="Private", body="The price of others", to=["carol@example.com"]),
    ]
    return str(make_index(tmp_path_factory.mktemp("commands"), records).path.parent)


def test_index_prints_counts(run: Run, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "m.jsonl", [record(1), record(2, body="x" * 6000)])
    with (tmp_path / "m.jsonl").open("a") as file:
        file.write("broken\n")
    ran = run("mail", "index", source, "--out", tmp_path / "index")
    assert ran.status == 0
    assert "1 messages indexed" in ran.out
    assert "1 long body" in ran.out
    assert "1 not JSON" in ran.out
    (listed,) = run("mail", "stats", "--index", tmp_path / "index", "--unreadable").out.splitlines()
    assert f"{tmp_path / 'm.jsonl'}:3" in listed
    assert "not JSON" in listed


def test_the_options_of_index_keep_messages(run: Run, tmp_path: Path) -> None:
    records = [record(1, body="x" * 6000), record(2, body="x" * 6000, subject="Subject 1")]
    source = write_jsonl(tmp_path / "m.jsonl", records)
    options = ["--max-body", "0", "--max-recipients", "0", "--keep-duplicates", "--json"]
    ran = run("mail", "index", source, "--out", tmp_path / "index", *options)
    assert json.loads(ran.out)["messages"] == 2
    again = run("mail", "index", source, "--out", tmp_path / "index", "--replace", "--json", "--max-body", "0")
    assert json.loads(again.out)["kept_out"] == {"duplicate": 1}


def test_a_null_address_is_ignored(run: Run, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "m.jsonl", [record(1, to=[None, BOB])])
    run("mail", "index", source, "--out", tmp_path / "index")
    assert "<1@example.com>" in run("mail", "search", "--index", tmp_path / "index", "--inbox", BOB, "body").out


def test_the_output_directory_cannot_be_a_file(run: Run, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "m.jsonl", [record(1)])
    ran = run("mail", "index", source, "--out", tmp_path / "m.jsonl")
    assert (ran.status, ran.code) == (1, "store.not-a-directory")
    assert "Traceback" not in ran.err
    assert str(tmp_path / "m.jsonl") in ran.err


def test_search_shows_id_sender_date_and_snippet(run: Run, index: str) -> None:
    ran = run("mail", "search", "--index", index, "--inbox", BOB, "price", "--order", "date")
    assert ran.status == 0
    assert ran.out.index("Re: Offer") < ran.out.index("[bold]Offer[/]")
    for part in ("<2@example.com>", BOB, "2001-05-03 12:00 +0000", "Too high a price"):
        assert part in ran.out
    assert "<3@example.com>" not in ran.out


@pytest.mark.parametrize(
    ("option", "value", "found"),
    [
        ("--from", BOB, ["<2@example.com>"]),
        ("--to", BOB, ["<1@example.com>"]),
        ("--before", "2001-05-03", ["<1@example.com>"]),
        ("--after", "2001-05-03", ["<2@example.com>"]),
    ],
)
def test_search_narrows_by_address_and_day(run: Run, index: str, option: str, value: str, found: list[str]) -> None:
    ran = run("mail", "search", "--index", index, "--inbox", BOB, "price", "--json", option, value)
    assert [hit["message_id"] for hit in json.loads(ran.out)] == found


def test_no_results_is_not_an_error(run: Run, index: str) -> None:
    ran = run("mail", "search", "--index", index, "--inbox", BOB, "zebra")
    assert (ran.status, ran.out) == (0, "")


def test_read_shows_the_whole_message_and_no_control_characters(run: Run, index: str) -> None:
    ran = run("mail", "read", "--index", index, "--inbox", BOB, "<1@example.com>")
    assert ran.status == 0
    assert "From: Ann Lee <ann@example.com>" in ran.out
    assert "Subject: [bold]Offer[/]" in ran.out
    assert "until Friday" in ran.out
    assert "\x1b" not in ran.out


def test_read_prints_the_message_as_json(run: Run, index: str) -> None:
    message = json.loads(run("mail", "read", "--index", index, "--inbox", BOB, "2@example.com", "--json").out)
    assert message["sent"] == "2001-05-03T12:00:00+00:00"
    assert [each["address"] for each in message["recipients"]] == [ANN, "carol@example.com"]


def test_a_message_of_another_inbox_is_not_found(run: Run, index: str) -> None:
    ran = run("mail", "read", "--index", index, "--inbox", BOB, "<3@example.com>")
    never = run("mail", "read", "--index", index, "--inbox", BOB, "<9@example.com>")
    assert (ran.status, ran.code) == (1, "mail.message-not-found")
    assert "'<3@example.com>'" in ran.err
    assert ran.err.replace("<3@", "<9@") == never.err


def test_stats_describe_the_index(run: Run, index: str) -> None:
    facts = json.loads(run("mail", "stats", "--index", index, "--json").out)
    assert (facts["messages"], facts["addresses"]) == (3, 3)
    assert "3 messages" in run("mail", "stats", "--index", index).out


@pytest.mark.parametrize(
    ("arguments", "code", "value"),
    [
        (["index", "imap:host", "--out", "X"], "sources.unknown-form", "'imap:host'"),
        (["index", "maildir:/no/such/place", "--out", "X"], "sources.no-such-directory", "/no/such/place"),
        (["index", "--out", "X"], "cli.usage", "SOURCE"),
        (["search", "--inbox", BOB, "price"], "cli.usage", "--index"),
        (["search", "--index", "/no/such/index", "--inbox", BOB, "price"], "mail.no-index", "/no/such/index"),
        (["search", "--index", "INDEX", "--inbox", "bob", "price"], "mail.invalid-address", "inbox is 'bob'"),
        (["search", "--index", "INDEX", "--inbox", BOB, "?"], "mail.keyword-without-words", "'?'"),
        (["search", "--index", "INDEX", "--inbox", BOB, "price", "--limit", "11"], "cli.usage", "--limit"),
        (["search", "--index", "INDEX", "--inbox", BOB, "price", "--after", "May"], "mail.invalid-date", "'May'"),
        (["serach"], "cli.usage", "search"),
    ],
)
def test_each_usage_error_has_its_code_and_no_traceback(
    run: Run, index: str, tmp_path: Path, arguments: list[str], code: str, value: str
) -> None:
    places = {"X": str(tmp_path / "x"), "INDEX": index}
    ran = run("mail", *[places.get(argument, argument) for argument in arguments])
    assert (ran.status, ran.code) == (2, code)
    assert value in ran.err
    assert "Traceback" not in ran.err
    assert not (tmp_path / "x").exists()
