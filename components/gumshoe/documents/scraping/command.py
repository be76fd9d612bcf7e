"""`gumshoe documents scrape`: fetch web pages as documents."""

import asyncio
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from gumshoe.errors import UnavailableError, UsageError
from gumshoe.terminal import JsonFlag, out, print_json, print_next, printable, progress

if TYPE_CHECKING:
    from gumshoe.documents.scraping.scrape import FailedPage, ScrapeReport

_MAX_LISTED = 20  # kinds of failure that are shown


def scrape(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="Records with a URL each: jsonl:FILE[.gz], hf:DATASET or hf:DATASET@SPLIT. Or a file with one URL "
            "per line. Files may be file:// or s3:// URIs.",
        ),
    ],
    path: Annotated[
        Path, typer.Option("--out", metavar="FILE.jsonl", help="Output file; documents are appended as they arrive.")
    ],
    address: Annotated[
        str | None,
        typer.Option("--field", metavar="NAME", help="Record field with the URL (default: url, document_url, ...)."),
    ] = None,
    id_field: Annotated[
        str | None, typer.Option(metavar="NAME", help="Record field with the document id (default: from the URL).")
    ] = None,
    keep: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Record field to copy to the metadata (repeatable).")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=100, help="Number of hosts to request concurrently.")] = 8,
    delay: Annotated[float, typer.Option(min=0, help="Pause between two requests to a host, in seconds.")] = 1.0,
    user_agent: Annotated[
        str | None,
        typer.Option(
            envvar="GUMSHOE_USER_AGENT",
            help='User-Agent header; identify yourself, e.g. "name/1.0 (+https://...)".',
        ),
    ] = None,
    tries: Annotated[int, typer.Option(min=1, max=20, help="Attempts per request.")] = 4,
    longest_wait: Annotated[
        float, typer.Option(min=0, help="Maximum Retry-After or Crawl-delay to wait for, in seconds.")
    ] = 60,
    page_seconds: Annotated[float, typer.Option(min=0.1, help="Time limit per request, in seconds.")] = 30,
    page_mb: Annotated[float, typer.Option(min=0.001, help="Maximum decompressed page size in MB.")] = 5,
    probe: Annotated[
        bool,
        typer.Option("--probe/--no-probe", help="Request a nonexistent page from each host, to detect error pages."),
    ] = True,
    ocr: Annotated[
        bool, typer.Option("--ocr/--no-ocr", help="Recognize text on scanned pages of PDF files with tesseract.")
    ] = True,
    language: Annotated[str, typer.Option(metavar="CODE", help="Language of scanned pages (ISO 639).")] = "en",
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="NETWORK", help="Private network that may be reached, e.g. 10.0.0.0/8 (repeatable)."),
    ] = None,
    cache: Annotated[Path | None, typer.Option(metavar="DIR", help="Cache directory (default: in ~/.cache).")] = None,
    cache_mb: Annotated[int, typer.Option(min=0, help="Maximum cache size in MB; 0 disables the cache.")] = 2000,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Retry pages that failed permanently.")] = False,
    json: JsonFlag = False,
) -> None:
    """Fetch web pages and save their main text as documents for `gumshoe documents index jsonl:FILE`.

    A repeated run fetches only missing pages. Failures and their reasons are listed in FILE.failed.jsonl. Exits with 75
    if pages failed temporarily, and with 0 if all failures are permanent.
    """
    from gumshoe.artifacts.response_cache import default_cache_path
    from gumshoe.documents.scraping.addresses import RecordFields, list_wanted_pages
    from gumshoe.documents.scraping.fetching import Politeness
    from gumshoe.documents.scraping.guard import parse_network
    from gumshoe.documents.scraping.scrape import ScrapeSettings, scrape_pages
    from gumshoe.extraction.ocr import check_scan_language

    agent = user_agent or f"Gumshoe/{version('gumshoe-agents')}"
    if not agent.isascii() or not agent.isprintable():
        raise UsageError(
            "scraping.invalid-user-agent",
            f"the user agent must be printable ASCII, e.g. name/1.0 (+https://example.com), got {agent!r}",
        )
    settings = ScrapeSettings(
        politeness=Politeness(
            user_agent=agent,
            delay=delay,
            attempts=tries,
            max_wait=longest_wait,
            page_seconds=page_seconds,
            page_bytes=round(page_mb * 1e6),
            probe=probe,
        ),
        workers=workers,
        allowed=tuple(map(parse_network, allow or ())),
        cache=(cache or default_cache_path("pages").with_suffix("")) if cache_mb else None,
        cache_bytes=cache_mb * 1_000_000,
        ocr=ocr,
        language=check_scan_language(language),
        retry_failed=retry_failed,
    )
    wanted = list_wanted_pages(source, RecordFields(address, id_field, tuple(keep or ())))
    with progress("Scraping", total=len(wanted)) as advance:
        report = asyncio.run(scrape_pages(wanted, path, settings, advance))
    if json:
        print_json(asdict(report) | {"reasons": report.reasons})
    else:
        _print_report(report, path)
    if report.may_pass:
        raise UnavailableError(
            "scraping.pages-failed",
            f"{report.may_pass:,} pages failed temporarily; run the command again to retry them",
        )
    if not json:
        print_next("gumshoe", "documents", "index", f"jsonl:{path}", "--out", "index")


def _print_report(report: "ScrapeReport", path: Path) -> None:
    unchanged = f", {report.unchanged:,} of them unchanged in the cache" if report.unchanged else ""
    out.print(
        f"[bold]{report.written:,} pages[/] added to {printable(path)}{unchanged}; {report.already_there:,} existed",
        soft_wrap=True,
    )
    if not report.failed:
        return
    counts = ", ".join(f"{count:,} {reason}" for reason, count in report.reasons.items())
    out.print(f"{len(report.failed):,} of {report.wanted:,} failed: {counts}", soft_wrap=True)
    groups: dict[tuple[str | None, str, bool], list[FailedPage]] = {}
    for each in report.failed:
        groups.setdefault((urlsplit(each.url).hostname, each.reason, each.may_pass), []).append(each)
    for group in sorted(groups.values(), key=len, reverse=True)[:_MAX_LISTED]:
        first = group[0]
        more = f" and {len(group) - 1:,} more from this host" if len(group) > 1 else ""
        retry = " [yellow](temporary)[/]" if first.may_pass else ""
        cause = f"{printable(first.reason)}: {printable(first.detail)}"
        out.print(f"  {printable(first.url)}[dim]{more}[/]  {cause}{retry}", soft_wrap=True)
    out.print(f"All failures are listed in {printable(path.with_suffix('.failed.jsonl'))}", soft_wrap=True)
