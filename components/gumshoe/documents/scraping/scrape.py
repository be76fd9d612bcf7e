"""Scrape web pages into a file of documents, and resume where a run was stopped."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import orjson

from gumshoe.artifacts.storage import explain_os_errors, make_writable_directory, open_locked_file, write_atomically
from gumshoe.documents.scraping.addresses import WantedPage
from gumshoe.documents.scraping.extraction import LIBRARIES, check_installed, open_extractor
from gumshoe.documents.scraping.failure import PageFailure
from gumshoe.documents.scraping.fetching import FetchedPage, Fetcher, Politeness
from gumshoe.documents.scraping.guard import Network, Resolve, resolve_host
from gumshoe.documents.scraping.page_cache import PageCache
from gumshoe.documents.scraping.web import open_web_client
from gumshoe.errors import GumshoeError, UsageError
from gumshoe.extraction.ocr import TextRecognition
from gumshoe.terminal import Advance


@dataclass(frozen=True, slots=True)
class ScrapeSettings:
    """Settings of a scraping run."""

    politeness: Politeness
    workers: int = 8
    """Number of hosts that are requested concurrently, one page at a time each."""
    allowed: tuple[Network, ...] = ()
    """Networks that may be reached in addition to the public internet."""
    cache: Path | None = None
    """Directory for pages that have an ETag or a date. None disables the cache."""
    cache_bytes: int = 2 << 30
    """Maximum size of the cache after a run."""
    extraction_seconds: float = 20.0
    """Time limit for extracting the text of one page."""
    ocr: bool = True
    """Recognize the text of scanned pages, if tesseract is installed."""
    language: str = "en"
    """ISO 639 code of the language of scanned pages."""
    retry_failed: bool = False
    """Retry pages that failed permanently in an earlier run."""


@dataclass(frozen=True, slots=True)
class FailedPage:
    """A page that was not fetched, and the reason."""

    url: str
    reason: str
    detail: str
    may_pass: bool
    """True if the failure may be temporary. The next run retries it."""


@dataclass(slots=True)
class ScrapeReport:
    """The result of a scraping run."""

    wanted: int = 0
    """Number of requested pages, each counted once."""
    already_there: int = 0
    """Pages that the file already contained."""
    written: int = 0
    """Pages that were added."""
    unchanged: int = 0
    """Added pages that came from the cache, because they had not changed."""
    failed: list[FailedPage] = field(default_factory=list)
    """Pages that are missing, including permanent failures of earlier runs."""
    seconds: float = 0

    @property
    def reasons(self) -> dict[str, int]:
        """Failed pages by reason, most frequent first."""
        return dict(Counter(each.reason for each in self.failed).most_common())

    @property
    def may_pass(self) -> int:
        """Failures that may be temporary."""
        return sum(each.may_pass for each in self.failed)


async def scrape_pages(
    wanted: list[WantedPage],
    path: Path,
    settings: ScrapeSettings,
    advance: Advance,
    *,
    resolve: Resolve = resolve_host,
) -> ScrapeReport:
    """Fetch the wanted pages that a file of documents lacks, and append one line per page.

    `NAME.failed.jsonl` beside the file lists failures. Permanent failures are not retried.

    Raises:
        UsageError: if the arguments are invalid, or another process writes to the file; nothing was started.
        StorageError: if the file or the cache is not writable.
    """
    check_installed("scraping", LIBRARIES)
    if path.suffix != ".jsonl":
        raise UsageError(
            "scraping.output-not-jsonl", f"output file {path} must end in .jsonl, e.g. {path.with_suffix('.jsonl')}"
        )
    make_writable_directory(str(path.parent))
    started = time.monotonic()
    cache = PageCache(settings.cache, settings.cache_bytes) if settings.cache else None
    report = ScrapeReport(wanted=len(wanted))
    with _Output.open(path, forget_failed=settings.retry_failed) as output:
        report.failed = [output.failed[page.url] for page in wanted if page.url in output.failed]
        missing = [page for page in wanted if page.url not in output.failed and page.url not in output.done]
        report.already_there = len(wanted) - len(missing) - len(report.failed)
        advance(total=len(missing))
        if missing:
            async with _open_fetcher(settings, cache, resolve, is_online=bool(output.done)) as fetcher:
                run = _ScrapeRun(fetcher, output, report, advance)
                await run.scrape_all(missing, settings.workers)
    if cache:
        cache.shrink()
    report.seconds = time.monotonic() - started
    return report


@asynccontextmanager
async def _open_fetcher(
    settings: ScrapeSettings, cache: PageCache | None, resolve: Resolve, *, is_online: bool
) -> AsyncIterator[Fetcher]:
    politeness, workers = settings.politeness, settings.workers
    recognition = TextRecognition(settings.language) if settings.ocr else None
    processes = min(os.cpu_count() or 1, workers)
    with open_extractor(processes, settings.extraction_seconds, recognition=recognition) as reader:
        async with open_web_client(
            politeness.user_agent, workers, settings.allowed, resolve, is_online=is_online
        ) as client:
            yield Fetcher(client, politeness, reader, cache)


@dataclass(slots=True)
class _ScrapeRun:
    fetcher: Fetcher
    output: "_Output"
    report: ScrapeReport
    advance: Advance
    new_failures: int = 0

    async def scrape_all(self, pages: list[WantedPage], workers: int) -> None:
        """Fetch all pages:

        `workers` hosts concurrently, those with the most pages first, each host's pages in order.
        """
        hosts: dict[str, list[WantedPage]] = {}
        for page in pages:
            hosts.setdefault("" if page.fault else str(urlsplit(page.url).hostname), []).append(page)
        waiting = iter(sorted(hosts.values(), key=len, reverse=True))

        async def work() -> None:
            for host in waiting:
                for page in host:
                    await self._scrape_page(page)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(workers, len(hosts))):
                    group.create_task(work())
        except* GumshoeError as errors:
            raise errors.exceptions[0] from None

    async def _scrape_page(self, wanted: WantedPage) -> None:
        try:
            page = await self._fetch_page(wanted)
        except PageFailure as failure:
            failed = FailedPage(wanted.url, failure.reason, failure.detail, failure.may_pass)
            self.output.add_failure(failed)
            self.report.failed.append(failed)
            self.new_failures += 1
        else:
            self.output.write(_to_record(wanted, page))
            self.report.written += 1
            self.report.unchanged += page.is_unchanged
        self.advance(1, note=f"{self.report.written:,} written, {self.new_failures:,} failed")

    async def _fetch_page(self, wanted: WantedPage) -> FetchedPage:
        """Fetch one page.

        Raises:
            PageFailure: if it is not available. Unexpected errors become a PageFailure too, so that other pages
                continue.
            StorageError: if the cache is not writable.
        """
        if wanted.fault:
            raise wanted.fault
        try:
            return await self.fetcher.fetch(wanted.url)
        except (PageFailure, GumshoeError):
            raise
        except Exception as error:
            raise PageFailure("broken answer", f"{type(error).__name__}: {error}"[:200]) from error


def _to_record(wanted: WantedPage, page: FetchedPage) -> dict[str, Any]:
    """Return the page as a line of the file."""
    moved = {"moved_to": page.url} if page.url != wanted.url else {}
    numbers = [str(each.number) for each in page.text.problems]
    unread = {"unread_pages": numbers} if numbers else {}
    return {
        "id": wanted.document_id,
        "title": page.text.title,
        "text": page.text.text,
        "url": wanted.url,
        "fetched": datetime.now(UTC).isoformat(timespec="seconds"),
        "metadata": {"site": str(urlsplit(wanted.url).hostname), **wanted.metadata, **moved, **unread},
    }


@dataclass(slots=True)
class _Output:
    """A file of documents to append to, and the list of failures beside it."""

    path: Path
    file: BinaryIO
    done: set[str]
    """URLs of the documents in the file."""
    failed: dict[str, FailedPage]
    """Pages that failed permanently."""

    @classmethod
    @contextmanager
    def open(cls, path: Path, *, forget_failed: bool) -> Iterator["_Output"]:
        """Open the file without any incomplete line, and lock it until the block or this process ends.

        Raises:
            UsageError: if another process has the file, or it contains something else.
        """
        with ExitStack() as stack:
            with explain_os_errors(path):
                file = stack.enter_context(open_locked_file(path))
                done = {str(record["url"]) for record in _read_complete_lines(file, path, {"id", "text", "url"})}
                found = [] if forget_failed else _read_failures(_failures_path(path))
                permanent = {each.url: each for each in found if not each.may_pass and each.url not in done}
                write_atomically(
                    _failures_path(path), BytesIO(b"".join(map(_to_line, map(asdict, permanent.values()))))
                )
            yield cls(path, file, done, permanent)

    def write(self, record: dict[str, Any]) -> None:
        with explain_os_errors(self.path):
            self.file.write(_to_line(record))
            self.file.flush()

    def add_failure(self, failed: FailedPage) -> None:
        listed = _failures_path(self.path)
        with explain_os_errors(listed), listed.open("ab") as file:
            file.write(_to_line(asdict(failed)))


def _failures_path(path: Path) -> Path:
    return path.with_suffix(".failed.jsonl")


def _read_failures(path: Path) -> list[FailedPage]:
    if not path.exists():
        return []
    names = [each.name for each in fields(FailedPage)]
    with path.open("r+b") as file:
        return [
            FailedPage(**{name: record[name] for name in names}) for record in _read_complete_lines(file, path, names)
        ]


def _to_line(record: dict[str, Any]) -> bytes:
    return orjson.dumps(record) + b"\n"


def _read_complete_lines(file: BinaryIO, path: Path, names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the records of a file. An incomplete last line, left by a killed run, is removed.

    An incomplete first line is an error, because the file may be something else.
    """
    file.seek(0)
    whole = 0
    for number, line in enumerate(file, 1):
        is_cut, fault = not line.endswith(b"\n"), ""
        try:
            record = orjson.loads(line)
            if not isinstance(record, dict) or not record.keys() >= set(names):
                fault = f"must be an object with {', '.join(sorted(names))}"
        except orjson.JSONDecodeError as error:
            fault = "" if is_cut and number > 1 else str(error)
        if fault:
            raise UsageError(
                "scraping.foreign-output",
                f"{path}:{number} was not written by `gumshoe documents scrape` ({fault}); choose another file, or "
                "remove it",
            )
        if is_cut:
            break
        whole += len(line)
        yield record
    file.truncate(whole)
