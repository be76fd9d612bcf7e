"""The `gumshoe mail` commands."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from gumshoe.mail.build_report import MailBuildOptions
from gumshoe.mail.schema import read_state
from tests.conftest import CommandResult
from tests.embeddings.word_vectors import WordVectors
from tests.mail.mailbox import make_index, record, write_jsonl

ANN, BOB = "ann@example.com", "bob@example.com"
Run = Callable[..., CommandResult]
WITH_ATTACHMENTS = """\
From: ann@example.com
To: bob@example.com
Message-ID: <1@example.com>
MIME-Version: 1.0
Content-Type: multipart/mixed; boundary=b

--b
Content-Type: text/plain

See the files.
--b
Content-Type: text/plain
Content-Disposition: attachment; filename=plan.txt

The plan: buy [bold]tea[/]
--b
Content-Type: application/octet-stream
Content-Disposition: attachment; filename=blob.bin
Content-Transfer-Encoding: base64

AAECAwQF
--b--
"""


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


def test_the_default_options_are_those_of_python(run: Run, tmp_path: Path) -> None:
    run("mail", "index", write_jsonl(tmp_path / "m.jsonl", [record(1)]), "--out", tmp_path / "index")
    assert read_state(tmp_path / "index").facts["options"] == json.loads(json.dumps(asdict(MailBuildOptions())))


def test_index_keeps_what_the_options_say(run: Run, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "m.jsonl", [record(1), record(2, to=["carol@example.com"])])
    chosen = ["--inbox", "Carol@example.com", "--inbox", BOB, "--with-deleted", "--skip-spam", "--skip-trash"]
    run("mail", "index", source, "--out", tmp_path / "index", *chosen, "--max-attachments", 0)
    options = read_state(tmp_path / "index").facts["options"]
    assert options["inboxes"] == [BOB, "carol@example.com"]
    assert options["skip"] == ["trash", "spam"]
    assert options["max_attachments"] == 0
    ran = run("mail", "search", "--index", tmp_path / "index", "--inbox", ANN, "body")
    assert ran.out == ""


def test_a_source_with_an_owner_fills_only_that_inbox(run: Run, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "m.jsonl", [record(1, to=["a.lee@example.com"])])
    owner = ["--owner", "lee@example.com", "--alias", "a.lee@example.com"]
    run("mail", "index", source, "--out", tmp_path / "index", *owner)
    for inbox, found in (("lee@example.com", 1), (ANN, 0), ("a.lee@example.com", 0)):
        ran = run("mail", "search", "--index", tmp_path / "index", "--inbox", inbox, "body", "--json")
        assert len(json.loads(ran.out)) == found
    shown = run("mail", "stats", "--index", tmp_path / "index").out
    assert f"{source}, mailbox of lee@example.com" in shown


def test_index_reads_a_list_of_sources(run: Run, tmp_path: Path) -> None:
    first = write_jsonl(tmp_path / "a.jsonl", [record(1)])
    second = write_jsonl(tmp_path / "b.jsonl", [record(2)])
    (tmp_path / "sources.yaml").write_text(f"- {{source: '{second}', owner: carol@example.com}}\n")
    ran = run("mail", "index", first, "--sources", tmp_path / "sources.yaml", "--out", tmp_path / "index", "--json")
    assert json.loads(ran.out)["messages"] == 2
    facts = read_state(tmp_path / "index").facts["sources"]
    assert facts == [first, {"source": second, "owner": "carol@example.com", "aliases": []}]


def test_senders_are_trusted_by_option(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mail").mkdir()
    results = "Authentication-Results: mx.example.com; dmarc={} header.from=example.com\n"
    raw = f"From: {ANN}\nTo: {BOB}\nSubject: s\nMessage-ID: <{{}}@example.com>\n\nbody {{}}\n"
    (tmp_path / "mail" / "1.eml").write_text(results.format("pass") + raw.format(1, "one"))
    (tmp_path / "mail" / "2.eml").write_text(results.format("fail") + raw.format(2, "two"))
    source, index = f"eml:{tmp_path / 'mail'}", tmp_path / "index"
    ran = run("mail", "index", source, "--out", index)
    assert "2 messages are not in their sender's inbox" in ran.out
    assert "--trust-from" in ran.out
    trusting = ["--trust-authserv", "MX.example.com", "--trust-from"]
    ran = run("mail", "index", source, *trusting, "--out", index, "--replace", "--json")
    assert json.loads(ran.out)["unproven_senders"] == 1
    stated = {"source": source, "trust_from": True, "trust_authserv": ["mx.example.com"]}
    assert read_state(index).facts["sources"] == [stated]
    found = json.loads(run("mail", "search", "--index", index, "--inbox", ANN, "body", "--json").out)
    assert [(hit["message_id"], hit["is_unverified"]) for hit in found] == [("<1@example.com>", False)]
    for command in (["search", "body"], ["read", "<2@example.com>"]):
        shown = run("mail", command[0], "--index", index, "--inbox", BOB, *command[1:]).out
        assert shown.count("(unverified sender)") == 1
    stats = run("mail", "stats", "--index", index).out
    assert "1 messages not in their sender's inbox" in stats
    assert f"{source}, all senders trusted, senders confirmed by mx.example.com" in stats


def test_index_suggests_an_owner_and_counts_messages_without_an_inbox(run: Run, tmp_path: Path) -> None:
    lists = [record(number, sender="", to=[]) for number in range(2)]
    source = write_jsonl(tmp_path / "m.jsonl", [*lists, *(record(n, sender=f"{n}@x.org") for n in range(3, 9))])
    ran = run("mail", "index", source, "--out", tmp_path / "index")
    assert "2 messages are in nobody's inbox" in ran.out
    assert f"75% of its messages name {BOB}" in ran.out
    assert f"--owner {BOB}" in ran.out
    again = run("mail", "index", source, "--out", tmp_path / "index", "--replace", "--json")
    report = json.loads(again.out)
    assert (report["without_inbox"], report["owners"]) == (2, {source: [BOB, 0.75]})


def test_an_index_is_extended_and_messages_are_removed(run: Run, tmp_path: Path) -> None:
    first = write_jsonl(tmp_path / "a.jsonl", [record(1)])
    second = write_jsonl(tmp_path / "b.jsonl", [record(2)])
    run("mail", "index", first, "--out", tmp_path / "index")
    ran = run("mail", "index", second, "--into", tmp_path / "index")
    assert (ran.status, "2 messages in" in ran.out) == (0, True)
    ran = run("mail", "index", "--into", tmp_path / "index", "--remove", "1@example.com")
    assert "1 messages in" in ran.out
    assert "1 removed" in ran.out
    ran = run("mail", "search", "--index", tmp_path / "index", "--inbox", BOB, "body", "--json")
    assert [hit["message_id"] for hit in json.loads(ran.out)] == ["<2@example.com>"]


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["SOURCE"], "--into"),
        (["SOURCE", "--out", "X", "--into", "X"], "--into"),
        (["SOURCE", "--out", "X", "--remove", "1@example.com"], "--remove"),
        (["--sources", "x.yaml", "--out", "X", "--owner", ANN], "--owner"),
        (["--sources", "x.yaml", "--out", "X", "--trust-from"], "--trust-from"),
        (["--sources", "x.yaml", "--out", "X", "--trust-authserv", "mx.example.com"], "--trust-authserv"),
        (["maildir:x", "--out", "X", "--owner", ANN, "--trust-from"], "--trust-from"),
        (["SOURCE", "--into", "X", "--max-body", "10"], "--max-body"),
        (["SOURCE", "--into", "X", "--inbox", ANN], "--inbox"),
        (["SOURCE", "--into", "X", "--replace"], "--replace"),
    ],
)
def test_options_of_index_that_conflict_are_rejected(
    run: Run, tmp_path: Path, arguments: list[str], value: str
) -> None:
    source = write_jsonl(tmp_path / "m.jsonl", [record(1)])
    places = {"SOURCE": source, "X": str(tmp_path / "x")}
    ran = run("mail", "index", *[places.get(each, each) for each in arguments])
    assert (ran.status, ran.code) == (2, "mail.option-conflict")
    assert value in ran.err
    assert not (tmp_path / "x").exists()


def test_attachments_are_counted_and_shown(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mail").mkdir()
    (tmp_path / "mail" / "1.eml").write_text(WITH_ATTACHMENTS)
    ran = run("mail", "index", f"eml:{tmp_path / 'mail'}", "--out", tmp_path / "index")
    assert "attachments: 1 read" in ran.out
    assert "attachments not read: 1 unknown type" in ran.out
    shown = run("mail", "read", "--index", tmp_path / "index", "--inbox", BOB, "1@example.com").out
    assert "Attachment: plan.txt\nThe plan: buy [bold]tea[/]" in shown
    assert "Attachment: blob.bin (not read: unknown type)" in shown
    assert "attachments: 1 read" in run("mail", "stats", "--index", tmp_path / "index").out
    facts = json.loads(run("mail", "stats", "--index", tmp_path / "index", "--json").out)
    assert facts["attachments"] == {"read": 1, "unknown type": 1}


def test_the_output_directory_cannot_be_a_file(run: Run, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "m.jsonl", [record(1)])
    ran = run("mail", "index", source, "--out", tmp_path / "m.jsonl")
    assert (ran.status, ran.code) == (1, "store.not-a-directory")
    assert "Traceback" not in ran.err
    assert str(tmp_path / "m.jsonl") in ran.err


def test_a_search_by_meaning_shows_the_ranks_of_both_retrievers(run: Run, tmp_path: Path) -> None:
    options = MailBuildOptions(embedding="word-vectors")
    records = [record(1, body="The roof leaks"), record(2, body="Lunch"), record(3, body="A leaking roof", to=[ANN])]
    make_index(tmp_path, records, options, WordVectors())
    search = ("mail", "search", "--index", tmp_path / "index", "--inbox", BOB, "--meaning", "the roofs")
    by_words = run(*search, "--dense-weight", "0")
    assert "<1@example.com>  (dense -, lexical 1)" in by_words.out
    assert by_words.out.count("@example.com>") == 1
    found = json.loads(run(*search, "--dense-weight", "0", "--fusion", "rank", "--json").out)
    assert [(hit["message_id"], hit["dense_rank"], hit["lexical_rank"]) for hit in found] == [
        ("<1@example.com>", None, 1)
    ]
    nothing = run(*search[:-1], "umbrella", "--dense-weight", "0")
    assert (nothing.status, nothing.out, nothing.err) == (0, "", "No messages found.\n")
    assert "3 vectors of 96 dimensions" in run("mail", "stats", "--index", tmp_path / "index").out


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ([], "keywords"),
        (["roof", "--meaning", "roof"], "--meaning"),
        (["--meaning", "roof", "--order", "date"], "--order"),
        (["--meaning", "roof", "--threads"], "--threads"),
        (["roof", "--fusion", "rank"], "--fusion"),
        (["roof", "--dense-weight", "0"], "--dense-weight"),
    ],
)
def test_options_of_search_that_conflict_are_rejected(run: Run, index: str, options: list[str], value: str) -> None:
    ran = run("mail", "search", "--index", index, "--inbox", BOB, *options)
    assert ran.status == 2
    assert "mail.option-conflict" in ran.err
    assert value in ran.err


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
        ("--from", "lee", ["<1@example.com>"]),
        ("--to", "carol", ["<2@example.com>"]),
        ("--before", "2001-05-03", ["<1@example.com>"]),
        ("--after", "2001-05-03", ["<2@example.com>"]),
    ],
)
def test_search_narrows_by_person_and_day(run: Run, index: str, option: str, value: str, found: list[str]) -> None:
    ran = run("mail", "search", "--index", index, "--inbox", BOB, "price", "--json", option, value)
    assert [hit["message_id"] for hit in json.loads(ran.out)] == found


def test_no_results_is_not_an_error(run: Run, index: str) -> None:
    ran = run("mail", "search", "--index", index, "--inbox", BOB, "zebra")
    assert (ran.status, ran.out) == (0, "")
    assert "zebra 0" in ran.err


def test_a_search_without_results_shows_partial_matches(run: Run, index: str) -> None:
    words = ["mail", "search", "--index", index, "--inbox", BOB, "friday", "zebra", "price"]
    ran = run(*words)
    assert ran.status == 0
    assert "friday 1, zebra 0, price 2" in ran.err
    assert ran.out.count("(partial match)") == 2
    assert ran.out.index("<1@example.com>") < ran.out.index("<2@example.com>")
    assert "<3@example.com>" not in ran.out
    as_json = run(*words, "--json")
    assert (json.loads(as_json.out), "zebra 0" in as_json.err) == ([], True)
    narrowed = run(*words, "--from", BOB)
    assert "friday 0, zebra 0, price 1" in narrowed.err
    assert "<1@example.com>" not in narrowed.out


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
    assert (facts["messages"], facts["copies"], facts["inboxes"], facts["segments"]) == (3, 3, 3, 1)
    shown = run("mail", "stats", "--index", index).out
    assert "3 messages (3 copies) in 3 inboxes, 1 segments" in shown
    assert "0 messages in nobody's inbox" in shown


@pytest.mark.parametrize(
    ("arguments", "code", "value"),
    [
        (["index", "ftp:host", "--out", "X"], "sources.unknown-form", "'ftp:host'"),
        (["index", "maildir:/no/such/place", "--out", "X"], "sources.no-such-directory", "/no/such/place"),
        (["index", "--out", "X"], "mail.no-sources", ""),
        (["index", "maildir:x", "--out", "X", "--owner", "ann"], "mail.invalid-owner", "'ann'"),
        (["index", "maildir:x", "--out", "X", "--trust-authserv", "m x"], "mail.invalid-server-name", "'m x'"),
        (["index", "maildir:x", "--out", "X", "--inbox", "ann"], "mail.invalid-index-options", "'ann'"),
        (["index", "--sources", "/no/such/file", "--out", "X"], "mail.invalid-source-list", "/no/such/file"),
        (["index", "--into", "X", "--remove", "1"], "mail.no-index", "x"),
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


def test_threads_are_shown(run: Run, tmp_path: Path) -> None:
    quoted = "Fine.\n\nOn Wed, 2 May 2001 at 12:00, Ann <ann@example.com> wrote:\n> Is it due on Monday?\n"
    records = [
        record(1, subject="Due", body="Is it due on Monday?"),
        record(2, subject="Re: Due", body=quoted, sender=BOB, to=[ANN], in_reply_to="<1@example.com>"),
    ]
    where = ["--index", str(make_index(tmp_path, records).directory), "--inbox", BOB]
    assert run("mail", "search", *where, "monday").out.count("thread of 2") == 2
    assert run("mail", "search", *where, "monday", "--threads").out.count("@example.com>") == 1
    shown = run("mail", "read", *where, "2@example.com", "--thread").out
    assert (shown.count("Is it due on Monday?"), shown.count("Fine.")) == (1, 1)
    listed = json.loads(run("mail", "read", *where, "2@example.com", "--thread", "--json").out)
    assert [each["message_id"] for each in listed] == ["<1@example.com>", "<2@example.com>"]
