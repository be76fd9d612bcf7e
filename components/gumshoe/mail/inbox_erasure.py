"""Erase messages and inboxes from an index: write its segments anew without them, and delete the old ones.

Mail that an extension removed stays in the files of old segments until these are merged. Here, it counts as mail of the
index, so that it is found and erased too.
"""

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gumshoe.artifacts.private_data import mark_private
from gumshoe.artifacts.sqlite import explain_damage
from gumshoe.mail.address_mentions import mentions_address
from gumshoe.mail.build import extend_mail_index
from gumshoe.mail.build_report import MailBuildOptions
from gumshoe.mail.index_directory import PARTIAL, change_index, digest_content, list_leftovers, remove_leftovers
from gumshoe.mail.schema import SEGMENT_PREFIX, IndexState, check_exists, index_path, read_state, write_state
from gumshoe.mail.segment import IndexSegments, StoredCopy, StoredText
from gumshoe.mail.segment_rewriter import SegmentRewriter
from gumshoe.mail.terms import bare_id


def has_inbox(directory: Path, inbox: str) -> bool:
    """Return True if an index has an inbox, or names it in its options or as a source.

    Raises:
        UsageError, GumshoeError: if there is no index, or it is damaged.
    """
    check_exists(directory)
    with explain_damage(directory, content=True):
        state, segments = IndexSegments.open_present(directory)
        known = segments.collect(lambda each: each.execute("SELECT 1 FROM inboxes WHERE address = ?", (inbox,)))
        is_option = inbox in MailBuildOptions.from_dict(state.facts["options"]).inboxes
        return bool(known) or is_option or _without_sources_of(state.facts, inbox) != state.facts


def find_message_ids(directory: Path, message_id: str) -> list[str]:
    """Return the ids of the messages with an id, as the index stores or shows them: with or without brackets.

    Raises:
        UsageError, GumshoeError: if there is no index, or it is damaged.
    """
    check_exists(directory)
    with explain_damage(directory, content=True):
        _, segments = IndexSegments.open_present(directory)
        named = segments.find_named_copies(message_id, with_removed=True)
        copies = [each for found in named.values() for each in found]
        return sorted({each for copy in copies for each in copy.list_ids() if bare_id(each) == bare_id(message_id)})


def find_messages_of(directory: Path, address: str) -> list[str]:
    """Return the ids of all messages that contain an address, as sender, recipient or inbox or in their text.

    `address` is in normal form. It is compared as a whole: `ann@example.com` is not in `joann@example.com`.

    Raises:
        UsageError, GumshoeError: if there is no index, or it is damaged.
    """
    check_exists(directory)
    found: set[str] = set()
    with explain_damage(directory, content=True):
        _, segments = IndexSegments.open_present(directory)
        numbers = segments.collect(lambda each: each.execute("SELECT DISTINCT message FROM copies"))
        for (number,) in numbers:
            copies = segments.read_copies(number, with_removed=True)
            text = segments.read_text(number)
            if any(mentions_address(each, address) for each in _list_texts(text, copies)):
                found |= {copy.message_id for copy in copies}
    return sorted(found)


def _list_texts(text: StoredText, copies: Iterable[StoredCopy]) -> Iterator[str]:
    """Yield the texts of a message that may contain a person's name or address."""
    yield from (text.sender, text.subject, text.body)
    for attachment in text.attachments:
        yield from (attachment.name, attachment.text)
    for copy in copies:
        yield copy.sender_name
        yield from (part for person in copy.recipients for part in person[1:])
        yield from (entry.address for entry in copy.inboxes)


def erase_messages(directory: Path, message_ids: Iterable[str]) -> None:
    """Remove messages from all inboxes of an index, and write all segments anew.

    If no message is left, the index is deleted.

    Raises:
        UsageError, GumshoeError: as in `extend_mail_index`.
    """
    check_exists(directory)
    with explain_damage(directory, content=True):
        _, segments = IndexSegments.open_present(directory)
        # Those that are removed already go with the old segments.
        present = [each for each in sorted(set(message_ids)) if any(segments.find_named_copies(each).values())]
    extend_mail_index([], directory, remove=present, compact=True)
    _delete_if_empty(directory)


def erase_inbox(directory: Path, inbox: str) -> None:
    """Remove an inbox from an index, and everything that only this inbox may see.

    Messages that other inboxes hold stay in those, with the address among their senders and recipients. The new
    segments become visible in one step. If no inbox is left, the index is deleted.

    Raises:
        UsageError: if there is no index.
        UnavailableError: if a build is in progress.
        GumshoeError: if the index is damaged, or the new segments cannot be written.
    """
    check_exists(directory)
    with explain_damage(directory, content=True), change_index(directory):
        state, segments = IndexSegments.open_present(directory)
        others = tuple(sorted(set(segments.list_inboxes()) - {inbox}))
        shutil.rmtree(directory / PARTIAL, ignore_errors=True)
        names = _write_segments(SegmentRewriter(segments, inboxes=others), state, directory, inbox)
        remove_leftovers(directory, names, at_once=True)
    _delete_if_empty(directory)


def count_leftovers(directory: Path) -> int:
    """Return the number of files and folders of an index that are not in use, which may hold what was erased.

    Raises:
        UsageError, GumshoeError: if there is no index, or it is damaged.
    """
    check_exists(directory)
    return len(list_leftovers(directory, read_state(directory).segments)) + (directory / PARTIAL).exists()


def erase_leftovers(directory: Path) -> None:
    """Delete the files and folders of an index that are not in use, e.g. of an interrupted erasure or build.

    Raises:
        UsageError: if there is no index.
        UnavailableError: if a build is in progress.
    """
    check_exists(directory)
    with change_index(directory):
        shutil.rmtree(directory / PARTIAL, ignore_errors=True)
        remove_leftovers(directory, read_state(directory).segments, at_once=True)


def _write_segments(rewriter: SegmentRewriter, state: IndexState, directory: Path, inbox: str) -> tuple[str, ...]:
    used = [int(path.name.removeprefix(SEGMENT_PREFIX)) for path in directory.glob(f"{SEGMENT_PREFIX}*")]
    names: list[str] = []
    for number, group in enumerate(rewriter.list_groups(), max(used, default=0) + 1):
        names.append(f"{SEGMENT_PREFIX}{number}")
        rewriter.write(group, directory / PARTIAL / names[-1])
    kept = MailBuildOptions.from_dict(state.facts["options"])
    options = replace(kept, inboxes=tuple(each for each in kept.inboxes if each != inbox))
    report = rewriter.make_report(digest_content(IndexSegments.open(directory / PARTIAL, names), options))
    facts = _without_sources_of(state.facts, inbox) | {
        "options": {**state.facts["options"], "inboxes": list(options.inboxes)},
        "built": datetime.now(UTC).isoformat(timespec="seconds"),
        **report.to_facts(),
    }
    for name in names:
        (directory / PARTIAL / name).replace(directory / name)
    shutil.rmtree(directory / PARTIAL, ignore_errors=True)
    mark_private(directory, None)
    write_state(directory, IndexState(state.version + 1, tuple(names), facts))
    return tuple(names)


def _without_sources_of(facts: dict[str, Any], inbox: str) -> dict[str, Any]:
    """Return the facts of an index without the sources of one owner, or whose names contain the address."""
    gone = {
        each if isinstance(each, str) else each["source"]
        for each in facts["sources"]
        if any(mentions_address(text, inbox) for text in ([each] if isinstance(each, str) else map(str, each.values())))
    }
    sources = [each for each in facts["sources"] if (each if isinstance(each, str) else each["source"]) not in gone]
    by_source: dict[str, Any] = {
        name: {uri: value for uri, value in facts[name].items() if uri not in gone}
        for name in ("source_messages", "positions", "revisions")
        if name in facts
    }
    return {**facts, "sources": sources, **by_source}


def _delete_if_empty(directory: Path) -> None:
    """Delete an index without messages. Its description goes first, so that nobody sees half of it."""
    with change_index(directory):
        _, segments = IndexSegments.open_present(directory)
        if segments.collect(lambda each: each.execute("SELECT 1 FROM copies LIMIT 1")):
            return
        index_path(directory).unlink()
        remove_leftovers(directory, (), at_once=True)
