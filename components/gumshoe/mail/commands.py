"""`gumshoe mail`: index, search, read and stats."""

from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from gumshoe.completion import complete_words
from gumshoe.corpus import suggest_after_indexing
from gumshoe.mail.message import ROLES
from gumshoe.mail.search_arguments import Order
from gumshoe.terminal import (
    JsonFlag,
    err,
    escape_control_characters,
    out,
    print_counts,
    print_json,
    print_next,
    print_origin,
    print_unreadable,
    printable,
)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Index, search and read mail, one inbox at a time.",
)

IndexDirectory = Annotated[
    Path, typer.Option("--index", envvar="GUMSHOE_INDEX", metavar="DIR", help="Directory of the index.")
]
Inbox = Annotated[str, typer.Option(metavar="ADDRESS", help="Address of the inbox. No other mail is visible.")]


@app.command(
    epilog="""
    gumshoe mail index maildir:archive --out index
    gumshoe mail index hf:corbt/enron-emails --out index
    """
)
def index(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            autocompletion=complete_words("maildir:", "mbox:", "eml:", "jsonl:", "hf:"),
            help="maildir:DIR (or a tree of raw files), mbox:FILE[.gz], eml:DIR, jsonl:FILE[.gz], hf:DATASET or "
            "hf:DATASET@SPLIT, e.g. hf:corbt/enron-emails. Files may be file:// or s3:// URIs.",
        ),
    ],
    directory: Annotated[Path, typer.Option("--out", metavar="DIR", help="Output directory (created if missing).")],
    max_body: Annotated[
        int, typer.Option(min=0, help="Maximum body length in characters; longer messages are skipped. 0: no limit.")
    ] = 5000,
    max_recipients: Annotated[
        int, typer.Option(min=0, help="Maximum number of recipients; messages with more are skipped. 0: no limit.")
    ] = 30,
    duplicates: Annotated[
        bool,
        typer.Option("--keep-duplicates", help="Keep all messages with equal subject, body and sender."),
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace an existing index.")] = False,
    json: JsonFlag = False,
) -> None:
    """Index mail from one or more sources into DIR/mail.sqlite.

    The default limits are those of the published recipe for the public Enron mail (ART-E). Unreadable items are counted
    by reason; `gumshoe mail stats --unreadable` lists them.
    """
    from gumshoe.mail.build import MailBuildOptions, build_mail_index

    options = MailBuildOptions(max_body or None, max_recipients or None, drop_duplicates=not duplicates)
    report = build_mail_index(sources, directory, options, replace=replace)
    if json:
        print_json(asdict(report) | {"kept_out": dict(report.kept_out), "unreadable": dict(report.unreadable)})
        return
    pace = report.read / max(report.seconds, 1e-9)
    place = escape_control_characters(directory)
    out.print(f"[bold]{report.messages:,} messages[/] indexed in {place} ({pace:,.0f}/s)")
    print_counts("skipped", report.kept_out)
    print_counts("unreadable", report.unreadable)
    if report.unreadable:
        out.print(f"Run `gumshoe mail stats --index {escape_control_characters(directory)} --unreadable` to list them.")
    print_next(*suggest_after_indexing(sources, directory))
    print_next("gumshoe", "serve", "--index", directory, "--open")


@app.command(
    epilog="""
    gumshoe mail search --index index --inbox ann@example.com audit "the report"
    gumshoe mail search --index index --inbox ann@example.com audit \\
      --from bob@example.com --after 2024-01-31
    """
)
def search(
    index: IndexDirectory,
    inbox: Inbox,
    keywords: Annotated[
        list[str],
        typer.Argument(metavar="KEYWORD...", help='Words that must all appear; "several words" form a phrase.'),
    ],
    sender: Annotated[
        str | None, typer.Option("--from", metavar="ADDRESS", help="Only mail from this address.")
    ] = None,
    recipient: Annotated[str | None, typer.Option("--to", metavar="ADDRESS", help="Only mail to this address.")] = None,
    after: Annotated[
        str | None, typer.Option(metavar="DATE", help="Only mail sent on this day (UTC) or later.")
    ] = None,
    before: Annotated[str | None, typer.Option(metavar="DATE", help="Only mail sent before this day (UTC).")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10, help="Maximum number of results.")] = 10,
    order: Annotated[Order, typer.Option(help="Sort by relevance, or newest first.")] = "relevance",
    json: JsonFlag = False,
) -> None:
    """Search one inbox."""
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
        out.print(
            f"  {_format_date(hit.sent)}  {printable(hit.sender)}  [cyan]{printable(hit.message_id)}[/]", soft_wrap=True
        )
        out.print(f"  [dim]{printable(hit.snippet)}[/]", soft_wrap=True)
    if not hits:
        err.print("No messages found.")


@app.command()
def read(
    index: IndexDirectory,
    inbox: Inbox,
    message_id: Annotated[str, typer.Argument(metavar="MESSAGE_ID", help="Id from `gumshoe mail search`.")],
    json: JsonFlag = False,
) -> None:
    """Read one message of an inbox."""
    from gumshoe.mail.index import MailIndex

    message = MailIndex(index).read(inbox, message_id)
    if json:
        print_json(asdict(message) | {"sent": message.sent and message.sent.isoformat()})
        return
    lines = [
        ("From", _format_person(message.sender_name, message.sender)),
        *(
            (role.capitalize(), ", ".join(people))
            for role in ROLES
            if (people := [_format_person(each.name, each.address) for each in message.recipients if each.role == role])
        ),
        ("Date", _format_date(message.sent)),
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
    unreadable: Annotated[bool, typer.Option("--unreadable", help="List unreadable items.")] = False,
    json: JsonFlag = False,
) -> None:
    """Show statistics of an index, and how it was built."""
    from rich.filesize import decimal

    from gumshoe.mail.index import MailIndex

    opened = MailIndex(index)
    if unreadable:
        print_unreadable(opened.list_unreadable(), json=json)
        return
    facts = opened.stats()
    if json:
        print_json(facts)
        return
    out.print(f"[bold]{facts['messages']:,} messages[/] of {facts['addresses']:,} addresses, {decimal(facts['bytes'])}")
    out.print(f"sent from {facts['first_sent'] or 'no date'} to {facts['last_sent'] or 'no date'}")
    print_counts("skipped", facts["kept_out"])
    print_counts("unreadable", facts["unreadable"])
    out.print(
        f"{facts['other_ids']:,} additional ids of indexed messages; "
        f"{facts['without_date']:,} messages without a date, {facts['without_id']:,} without an id",
        soft_wrap=True,
    )
    print_origin(facts)


def _format_person(name: str, address: str) -> str:
    return f"{name} <{address}>" if name else address


def _format_date(sent: datetime | None) -> str:
    return f"{sent:%Y-%m-%d %H:%M %z}" if sent else "no date"
