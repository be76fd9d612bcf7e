"""Measure how fast mail is indexed and searched, compared with a plain solution: `make benchmarks`.

The plain solution inserts messages one by one into tables of messages and recipients and an FTS5 table. Its query
matches the text, and then checks for each match if the inbox is a recipient.

This uses the real mail beside the checkout; half a million messages are the real ones repeated with new ids,
addresses and dates. Takes some minutes and 4 GB of temporary disk. Numbers are medians unless noted otherwise.
"""

import argparse
import gzip
import json
import random
import sqlite3
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gumshoe.mail.build import build_mail_index
from gumshoe.mail.index import MailIndex

DATA = Path(__file__).parents[3] / "shared" / "data" / "enron"
COMMON = ["the", "please", "enron", "you", "would"]
PHRASES = ["let me know", "thank you", "of the", "please find attached", "conference call"]
RARE_IN = range(5, 50)  # number of real messages that contain a rare word

Query = tuple[str, str, list[str], str | None, str | None]  # kind, inbox, keywords, sent_after, sent_before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copies", type=int, default=31, help="number of repetitions of the 16,920 real messages")
    parser.add_argument("--runs", type=int, default=5, help="number of indexing runs")
    parser.add_argument("--queries", type=int, default=400, help="number of queries")
    options = parser.parse_args()
    if not DATA.is_dir():
        sys.exit(f"the real mail does not exist: {DATA}")
    with tempfile.TemporaryDirectory(prefix="gumshoe-benchmark-") as directory:
        index_small(Path(directory), options.runs)
        search_large(Path(directory), options.copies, options.queries)


def show(title: str, header: list[str], rows: list[list[str]]) -> None:
    table = Table(*header, title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    Console(width=110).print(table)


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def index_small(directory: Path, runs: int) -> None:
    """Measure messages indexed per second: raw files, and the real mail as JSONL, compared with the plain loop."""
    raw = directory / "raw"
    with tarfile.open(DATA / "maildir-993.tar.gz") as archive:
        archive.extractall(raw, filter="data")
    files = sum(path.is_file() for path in raw.rglob("*"))
    source = f"jsonl:{DATA / 'mail.jsonl.gz'}"
    count = sum(1 for _ in real_messages())
    ours, plain = directory / "small", directory / "small.sqlite"
    paces: dict[str, list[float]] = {"raw": [], "jsonl": [], "plain": []}
    for _ in range(runs):
        paces["raw"].append(files / timed(lambda: build_mail_index([f"maildir:{raw}"], ours, replace=True)))
        plain.unlink(missing_ok=True)
        paces["plain"].append(count / timed(lambda: plain_build(plain, real_messages())))
        paces["jsonl"].append(count / timed(lambda: build_mail_index([source], ours, replace=True)))
    show(
        "Indexing, messages per second",
        ["", "median", "best", "worst", "against the plain loop"],
        [
            ["raw RFC 822 files (993)", *spread(paces["raw"]), ""],
            ["real mail, JSONL (16,920)", *spread(paces["jsonl"]), ratio(paces["jsonl"], paces["plain"])],
            ["plain loop, the same JSONL", *spread(paces["plain"]), ""],
        ],
    )


def spread(values: list[float], digits: int = 0) -> list[str]:
    return [f"{value:,.{digits}f}" for value in (statistics.median(values), max(values), min(values))]


def ratio(ours: list[float], theirs: list[float]) -> str:
    return f"{statistics.median(ours) / statistics.median(theirs):.2f} times"


def real_messages() -> Iterator[dict[str, Any]]:
    with gzip.open(DATA / "mail.jsonl.gz") as lines:
        yield from map(json.loads, lines)


def repeat_messages(copies: int) -> Iterator[dict[str, Any]]:
    """Yield the real messages repeatedly, each time with other ids, addresses and dates."""
    messages = list(real_messages())
    for copy in range(copies):
        for message in messages:
            renamed = {
                role: [f"{address.strip().lower()}.{copy}" for address in message[role]] for role in ("to", "cc", "bcc")
            }
            sent = datetime.fromisoformat(message["date"]) + timedelta(days=37 * copy, minutes=copy)
            yield {
                **message,
                **renamed,
                "body": message["body"].replace("\r\n", "\n").replace("\r", "\n"),  # as the product counts the length
                "from": f"{message['from'].strip().lower()}.{copy}",
                "message_id": f"{message['message_id'][:-1]}.{copy}>",
                "date": sent.isoformat(),
            }


def plain_build(path: Path, messages: Iterator[dict[str, Any]]) -> None:
    """Build the plain database, one message at a time."""
    database = sqlite3.connect(path)
    database.executescript(
        """
        PRAGMA journal_mode = off; PRAGMA synchronous = off;
        CREATE TABLE messages (
            id INTEGER PRIMARY KEY, message_id TEXT UNIQUE, sent INTEGER, sender TEXT, subject TEXT, body TEXT
        );
        CREATE TABLE recipients (message INTEGER, address TEXT, PRIMARY KEY (message, address)) WITHOUT ROWID;
        CREATE VIRTUAL TABLE text USING fts5(
            subject, body, content='messages', content_rowid='id', tokenize='unicode61 remove_diacritics 2'
        );
        """
    )
    seen: dict[tuple[str, str, str], int | None] = {}
    for message in messages:
        everyone = message["to"] + message["cc"] + message["bcc"]
        addresses = {each.strip().lower() for each in [message["from"], *everyone]}
        key = (message["subject"], message["body"], message["from"])
        if len(message["body"]) > 5000 or len(everyone) > 30:
            continue
        if key in seen:  # recipients of the duplicate find the message too
            pairs = [(seen[key], address) for address in addresses]
            database.executemany("INSERT OR IGNORE INTO recipients VALUES (?, ?)", pairs)
            continue
        sent = int(datetime.fromisoformat(message["date"]).timestamp())
        number = database.execute(
            "INSERT INTO messages (message_id, sent, sender, subject, body) VALUES (?, ?, ?, ?, ?)",
            (message["message_id"], sent, message["from"], message["subject"], message["body"]),
        ).lastrowid
        seen[key] = number
        for address in addresses:
            database.execute("INSERT INTO recipients VALUES (?, ?)", (number, address))
        database.execute(
            "INSERT INTO text (rowid, subject, body) VALUES (?, ?, ?)", (number, message["subject"], message["body"])
        )
    database.commit()
    database.close()


def plain_search(database: sqlite3.Connection, query: Query, by: str) -> list[str]:
    """Search the plain database: match the text, then check the recipients of each match."""
    _, inbox, keywords, *days = query
    match = " AND ".join(f'"{keyword}"' for keyword in keywords)
    first, last = (int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()) if day else None for day in days)
    rows = database.execute(
        "SELECT message_id, snippet(text, 1, '', '', ' … ', 24) FROM text JOIN messages ON id = text.rowid "
        "WHERE text MATCH ? AND (? IS NULL OR sent >= ?) AND (? IS NULL OR sent < ?) "
        "AND EXISTS (SELECT 1 FROM recipients WHERE message = id AND address = ?) "
        f"ORDER BY {by} LIMIT 10",
        (match, first, first, last, last, inbox),
    )
    return [message_id for message_id, _ in rows]


@dataclass
class Timings:
    """Milliseconds of each query, by kind."""

    by_kind: dict[str, list[float]]

    def everything(self) -> list[float]:
        return [each for several in self.by_kind.values() for each in several]


def measure(queries: list[Query], search: Callable[[Query], object]) -> Timings:
    timings: dict[str, list[float]] = {}
    for query in queries:
        timings.setdefault(query[0], []).append(1000 * timed(lambda query=query: search(query)))  # type: ignore[misc]
    return Timings(timings)


def p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[98]


def make_queries(copies: int, number: int) -> tuple[list[Query], int]:
    """Return queries over all inboxes, and the number of inboxes."""
    chance = random.Random(0)
    words: Counter[str] = Counter()
    received: Counter[str] = Counter()
    for message in real_messages():
        words.update({word for word in message["body"].lower().split() if word.isascii() and word.isalpha()})
        received.update({address.strip().lower() for address in [message["from"], *message["to"]]})
    rare = sorted(word for word, count in words.items() if count in RARE_IN)
    inboxes = [f"{address}.{copy}" for address, count in received.items() if count >= 100 for copy in range(copies)]
    queries: list[Query] = []
    for turn in range(number):
        inbox = chance.choice(inboxes)
        day = datetime(2000, 1, 1, tzinfo=UTC) + timedelta(days=chance.randrange(1500))
        days = f"{day:%Y-%m-%d}", f"{day + timedelta(days=365):%Y-%m-%d}"
        queries.append(
            [
                ("rare word", inbox, [chance.choice(rare)], None, None),
                ("common word", inbox, [chance.choice(COMMON)], None, None),
                ("phrase", inbox, [chance.choice(PHRASES)], None, None),
                ("date range", inbox, [chance.choice(COMMON)], *days),
                (
                    "several words",
                    inbox,
                    [chance.choice(COMMON), chance.choice(COMMON), chance.choice(rare)],
                    None,
                    None,
                ),
            ][turn % 5]
        )
    return queries, len(inboxes)


def search_large(directory: Path, copies: int, number: int) -> None:
    """Measure searches in half a million messages, of both solutions, and compare their results."""
    source, ours, plain = directory / "large.jsonl", directory / "large", directory / "large.sqlite"
    with source.open("w") as file:
        for message in repeat_messages(copies):
            file.write(json.dumps(message) + "\n")
    started = time.perf_counter()
    report = build_mail_index([f"jsonl:{source}"], ours)
    ours_pace = report.read / (time.perf_counter() - started)
    with source.open() as lines:
        plain_pace = report.read / timed(lambda: plain_build(plain, map(json.loads, lines)))
    source.unlink()
    show(
        f"Indexing {report.read:,} messages, {report.messages:,} kept",
        ["", "messages per second", "file"],
        [
            ["ours", f"{ours_pace:,.0f}", f"{(ours / 'mail.sqlite').stat().st_size >> 20:,} MiB"],
            ["plain loop", f"{plain_pace:,.0f}", f"{plain.stat().st_size >> 20:,} MiB"],
        ],
    )
    queries, inboxes = make_queries(copies, number)
    database = sqlite3.connect(plain)
    index = MailIndex(ours)
    same = sum(find(index, query, "date") == plain_search(database, query, "sent DESC, id") for query in queries)
    rows, in_use = [], dict[str, list[float]]()
    for order, by in (("date", "sent DESC, id"), ("relevance", "rank")):
        index = MailIndex(ours)  # newly opened, without cached results or inboxes
        mine = measure(queries, lambda query, index=index, order=order: find(index, query, order))  # type: ignore[misc]
        # The same queries with another limit, so that no result is cached.
        again = measure(queries, lambda query, index=index, order=order: find(index, query, order, 9))  # type: ignore[misc]
        in_use[order] = again.everything()
        theirs = measure(queries, lambda query, by=by: plain_search(database, query, by))  # type: ignore[misc]
        for kind in (*mine.by_kind, "all"):
            a = mine.by_kind.get(kind) or mine.everything()
            b = theirs.by_kind.get(kind) or theirs.everything()
            figures = [statistics.median(a), p99(a), statistics.median(b), p99(b)]
            rows.append([order, kind, *(f"{figure:.2f}" for figure in figures), f"{figures[3] / figures[1]:.0f} times"])
    show(
        f"Searching {report.messages:,} messages, {len(queries)} queries in {inboxes:,} inboxes, milliseconds",
        ["order", "query", "median", "p99", "plain median", "plain p99", "faster at p99"],
        rows,
    )
    console = Console(width=110)
    for order, timings in in_use.items():
        console.print(f"After warmup, by {order}: median {statistics.median(timings):.2f}, p99 {p99(timings):.2f}")
    console.print(f"Same results in the same order (by date): {same} of {len(queries)}")
    console.print(f"Memory of a searching process, without the page cache: {memory(ours, queries):.0f} MiB")


def find(index: MailIndex, query: Query, order: Any, limit: int = 10) -> list[str]:
    _, inbox, keywords, after, before = query
    hits = index.search(inbox, keywords, sent_after=after, sent_before=before, order=order, limit=limit)
    return [hit.message_id for hit in hits]


_MEMORY = """
import json, sys
from pathlib import Path
from gumshoe.mail.index import MailIndex
index = MailIndex(Path(sys.argv[1]))
for _, inbox, keywords, after, before in json.load(sys.stdin):
    index.search(inbox, keywords, sent_after=after, sent_before=before)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(int(status["RssAnon"].split()[0]) / 1024)
"""


def memory(index: Path, queries: list[Query]) -> float:
    """Return the private memory of a new process after the queries, in MiB."""
    run = subprocess.run(
        [sys.executable, "-c", _MEMORY, str(index)],
        input=json.dumps(queries),
        capture_output=True,
        text=True,
        check=True,
    )
    return float(run.stdout)


if __name__ == "__main__":
    main()
