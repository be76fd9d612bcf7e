"""Write some inboxes of an index as an index of their own."""

import shutil
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gumshoe.artifacts.private_data import mark_private
from gumshoe.artifacts.sqlite import explain_damage
from gumshoe.errors import UsageError
from gumshoe.mail.build_report import MailBuildOptions, MailBuildReport
from gumshoe.mail.index_directory import (
    PARTIAL,
    change_index,
    check_is_new,
    digest_content,
    remove_leftovers,
)
from gumshoe.mail.schema import SEGMENT_PREFIX, IndexState, check_exists, write_state
from gumshoe.mail.search_arguments import check_address
from gumshoe.mail.segment import IndexSegments
from gumshoe.mail.segment_rewriter import SegmentRewriter


def extract_inboxes(directory: Path, inboxes: Iterable[str], target: Path) -> MailBuildReport:
    """Write an index with some inboxes of another, and nothing that only other inboxes may see.

    It has the content digest of an index that is built with these inboxes from the same mail. Its counts are those of
    the inboxes' mail that is in the index. Sources without an owner are not recorded, since their names may be those of
    other people, nor are unreadable items.

    Raises:
        UsageError: if there is no index, it does not have an inbox, or there is an index in `target` already.
        UnavailableError: if another build is in progress in `target`.
        GumshoeError: if the index is damaged, or the new one cannot be written.
    """
    started = time.monotonic()
    chosen = tuple(sorted({check_address("inbox", each) for each in inboxes}))
    check_exists(directory)
    with explain_damage(directory), change_index(target):
        check_is_new(target)
        state, segments = IndexSegments.open_present(directory)
        indexed = segments.list_inboxes()
        if missing := [each for each in chosen if each not in indexed]:
            raise UsageError("mail.inbox-not-indexed", f"{directory} has no inbox {missing[0]}; check the address")
        partial = target / PARTIAL
        shutil.rmtree(partial, ignore_errors=True)
        remove_leftovers(target, (), at_once=True)
        try:
            report = _write(segments, chosen, state.facts, target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    report.seconds = time.monotonic() - started
    return report


def _write(segments: IndexSegments, inboxes: tuple[str, ...], old: dict[str, Any], target: Path) -> MailBuildReport:
    rewriter = SegmentRewriter(segments, inboxes=inboxes)
    names = []
    for number, group in enumerate(rewriter.list_groups(), 1):
        names.append(f"{SEGMENT_PREFIX}{number}")
        rewriter.write(group, target / PARTIAL / names[-1])
    options = replace(MailBuildOptions.from_dict(old["options"]), inboxes=inboxes)
    report = rewriter.make_report(digest_content(IndexSegments.open(target / PARTIAL, names), options))
    sources = [each for each in old["sources"] if isinstance(each, dict) and each.get("owner") in inboxes]
    uris = {each["source"] for each in sources}
    facts = {
        "sources": sources,
        "source_messages": {uri: count for uri, count in old["source_messages"].items() if uri in uris},
        "options": asdict(options),
        "built": datetime.now(UTC).isoformat(timespec="seconds"),
        "positions": {uri: position for uri, position in old["positions"].items() if uri in uris},
        **report.to_facts(),
    }
    for name in names:
        (target / PARTIAL / name).replace(target / name)
    mark_private(target, None)
    write_state(target, IndexState(1, tuple(names), facts))
    return report
