"""`gumshoe mail`: index, search, read, stats."""

from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from gumshoe.mail.message import ROLES
from gumshoe.mail.search_arguments import Order
from gumshoe.terminal import (
    JsonFlag,
    err,
    out,
    plain,
    print_counts,
    print_json,
    print_origin,
    print_unreadable,
    printable,
)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Index mail, search it and read it, one inbox at a time.",
)

IndexDirectory = Annotated[Path, typer.Option("--index", envvar="GUMSHOE_INDEX", help="The directory of an index.")]
Inbox = Annotated[str, typer.Option(metavar="ADDRESS", help="Whose mail; nothing else is seen.")]


@app.command()
def index(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="maildir:DIR (also a tree of raw files), mbox:FILE[.gz], eml:DIR, jsonl:FILE[.gz], or "
            "hf:DATASET or hf:DATASET@SPLIT, such as hf:corbt/enron-emails. Files may lie under file:// or s3://.",
        ),
    ],
    directory: Annotated[Path, typer.Option("--out", help="Where the index goes; made where it is missing.")],
    max_body: Annotated[
        int, typer.Option(min=0, help="Leave out messages with a longer body, in characters; 0 keeps all.")
    ] = 5000,
    max_recipients: Annotated[
        int, typer.Option(min=0, help="Leave out messages to more recipients; 0 keeps all.")
    ] = 30,
    duplicates: Annotated[
        bool,
        typer.Option("--keep-duplicates", help="Keep every message of one subject, body and sender, not the first."),
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace an index that is there, in one step.")] = False,
    json: JsonFlag = False,
) -> None:
    """Index mail from one or more sources into DIR/mail.sqlite.

    What is kept out by default is what the published recipe for the public Enron mail keeps out (ART-E). What
    cannot be read is counted by reason; `gumshoe mail stats --unreadable` lists it.
    """
    from gumshoe.mail.build import MailBuildOptions, build_index

    options = MailBuildOptions(max_body or None, max_recipients or None, drop_duplicates=not duplicates)
    report = build_index(sources, directory, options, replace=replace)
    if json:
        print_json(asdict(report) | {"kept_out": dict(report.kept_out), "unreadable": dict(report.unreadable)})
        return
    pace = report.read / max(report.seconds, 1e-9)
    out.print(f"[bold]{report.messages:,} messages[/] indexed in {plain(directory)} ({pace:,.0f} a second)")
    print_counts("kept out", report.kept_out)
    print_counts("could not be read", report.unreadable)
    if report.unreadable:
        out.print(f"See `gumshoe mail stats --index {plain(directory)} --unreadable` for which.")


@app.command()
def search(
    index: IndexDirectory,
    inbox: Inbox,
    keywords: Annotated[
        list[str], typer.Argument(metavar="KEYWORD...", help='All must appear; "several words" are a phrase.')
    ],
    sender: Annotated[str | None, typer.Option("--from", metavar="ADDRESS", help="Only from this address.")] = None,
    recipient: Annotated[str | None, typer.Option("--to", metavar="ADDRESS", help="Only to this address.")] = None,
    after: Annotated[str | None, typer.Option(metavar="DATE", help="Sent on this day (UTC) or later.")] = None,
    before: Annotated[str | None, typer.Option(metavar="DATE", help="Sent before this day (UTC).")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10, help="Most results.")] = 10,
    order: Annotated[Order, typer.Option(help="The best first, or the newest.")] = "relevance",
    json: JsonFlag = False,
) -> None:
    """Find messages in one inbox."""
    from gumshoe.mail.index import MailIndex

    hits = MailIndex(index).search(
        inbox,
        keywords,
        sender=sender,
        recipient=recipient,
        sent_after=after,
        sent_before=before,
        limit=limit,
        order=order,
    )
    if json:
        print_json([asdict(hit) | {"sent": hit.sent and hit.sent.isoformat()} for hit in hits])
        return
    for hit in hits:
        out.print(f"[bold]{printable(hit.subject) or '(no subject)'}[/]", soft_wrap=True)
        out.print(f"  {_date(hit.sent)}  {printable(hit.sender)}  [cyan]{printable(hit.message_id)}[/]", soft_wrap=True)
        out.print(f"  [dim]{printable(hit.snippet)}[/]", soft_wrap=True)
    if not hits:
        err.print("Nothing found.")


@app.command()
def read(
    index: IndexDirectory,
    inbox: Inbox,
    message_id: Annotated[str, typer.Argument(metavar="MESSAGE_ID", help="As `search` shows it.")],
    json: JsonFlag = False,
) -> None:
    """Read one message of one inbox."""
    from gumshoe.mail.index import MailIndex

    message = MailIndex(index).read(inbox, message_id)
    if json:
        print_json(asdict(message) | {"sent": message.sent and message.sent.isoformat()})
        return
    lines = [
        ("From", _person(message.sender_name, message.sender)),
        *(
            (role.capitalize(), ", ".join(people))
            for role in ROLES
            if (people := [_person(each.name, each.address) for each in message.recipients if each.role == role])
        ),
        ("Date", _date(message.sent)),
        ("Subject", message.subject),
        ("Message-ID", message.message_id),
    ]
    for name, value in lines:
        out.print(f"[bold]{name}:[/] {printable(value)}", soft_wrap=True)
    out.print()
    out.print(printable(message.body), soft_wrap=True)


@app.command()
def stats(
    index: IndexDirectory,
    unreadable: Annotated[bool, typer.Option("--unreadable", help="List what could not be read.")] = False,
    json: JsonFlag = False,
) -> None:
    """Say what is in an index and what built it."""
    from rich.filesize import decimal

    from gumshoe.mail.index import MailIndex

    opened = MailIndex(index)
    if unreadable:
        print_unreadable(opened.unreadable(), json=json)
        return
    facts = opened.stats()
    if json:
        print_json(facts)
        return
    out.print(f"[bold]{facts['messages']:,} messages[/] of {facts['addresses']:,} addresses, {decimal(facts['bytes'])}")
    out.print(f"sent from {facts['first_sent'] or 'no date'} to {facts['last_sent'] or 'no date'}")
    print_counts("kept out", facts["kept_out"])
    print_counts("could not be read", facts["unreadable"])
    out.print(
        f"{facts['other_ids']:,} other ids of kept messages; "
        f"{facts['without_date']:,} read without a date, {facts['without_id']:,} without an id",
        soft_wrap=True,
    )
    print_origin(facts)


def _person(name: str, address: str) -> str:
    return f"{name} <{address}>" if name else address


def _date(sent: datetime | None) -> str:
    return f"{sent:%Y-%m-%d %H:%M %z}" if sent else "no date"
