"""`gumshoe documents scrape`: web pages to documents."""

import asyncio
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from gumshoe.errors import UnavailableError, UsageError
from gumshoe.terminal import JsonFlag, out, print_json, printable, progress

if TYPE_CHECKING:
    from gumshoe.documents.scraping.scrape import FailedPage, ScrapeReport

_LISTED = 20  # kinds of failure that are shown


def scrape(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="jsonl:FILE[.gz], hf:DATASET or hf:DATASET@SPLIT, records with an address each; or a file of "
            "addresses, one a line. Files may lie under file:// or s3://.",
        ),
    ],
    path: Annotated[Path, typer.Option("--out", metavar="FILE.jsonl", help="Documents go here as they come.")],
    address: Annotated[
        str | None, typer.Option("--field", metavar="NAME", help="The records' field with the address; url and such.")
    ] = None,
    id_field: Annotated[
        str | None, typer.Option(metavar="NAME", help="The records' field with the document's id; made of the address.")
    ] = None,
    keep: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A field of the records that becomes metadata; repeatable.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=100, help="Hosts asked at once, one page at a time each.")] = 8,
    delay: Annotated[float, typer.Option(min=0, help="Seconds between two requests to a host.")] = 1.0,
    user_agent: Annotated[
        str | None,
        typer.Option(
            envvar="GUMSHOE_USER_AGENT", help='What servers are told; say who you are: "name/1.0 (+https://...)".'
        ),
    ] = None,
    tries: Annotated[int, typer.Option(min=1, max=20, help="Of a request whose failure may pass.")] = 4,
    longest_wait: Annotated[
        float, typer.Option(min=0, help="Most seconds that a host's Retry-After or Crawl-delay is waited for.")
    ] = 60,
    page_seconds: Annotated[float, typer.Option(min=0.1, help="Longest time of one request.")] = 30,
    page_mb: Annotated[float, typer.Option(min=0.001, help="Largest page, unpacked, in MB.")] = 5,
    probe: Annotated[
        bool, typer.Option("--probe/--no-probe", help="Ask a host once for a page that cannot be there, to know such.")
    ] = True,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NETWORK", help="A network that may be connected to although it is private, such as 10.0.0.0/8."
        ),
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where pages with an ETag or a date are kept; in ~/.cache.")
    ] = None,
    cache_mb: Annotated[int, typer.Option(min=0, help="Most that is left there, in MB; 0 keeps nothing.")] = 2000,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Ask again for what had failed for good.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Take the main text of web pages as documents that `gumshoe documents index jsonl:FILE` reads.

    Started again, only what is missing is asked for. What failed, and why, is listed in FILE.failed.jsonl. Ends with
    75 where pages failed for what may pass, and with 0 where all others failed for good.
    """
    from gumshoe.artifacts.response_cache import default_cache
    from gumshoe.documents.scraping import scrape as scraping
    from gumshoe.documents.scraping.addresses import Fields, wanted_pages
    from gumshoe.documents.scraping.fetching import Politeness
    from gumshoe.documents.scraping.guard import as_network

    agent = user_agent or f"Gumshoe/{version('gumshoe-agents')}"
    if not agent.isascii() or not agent.isprintable():
        raise UsageError(
            "scraping.invalid-user-agent",
            f"the user agent must be printable ASCII, e.g. name/1.0 (+https://example.com), got {agent!r}",
        )
    settings = scraping.ScrapeSettings(
        manners=Politeness(
            user_agent=agent,
            delay=delay,
            tries=tries,
            longest_wait=longest_wait,
            page_seconds=page_seconds,
            page_bytes=round(page_mb * 1e6),
            probe=probe,
        ),
        workers=workers,
        allowed=tuple(map(as_network, allow or ())),
        cache=(cache or default_cache("pages").with_suffix("")) if cache_mb else None,
        cache_bytes=cache_mb * 1_000_000,
        retry_failed=retry_failed,
    )
    wanted = wanted_pages(source, Fields(address, id_field, tuple(keep or ())))
    with progress("Scraping", total=len(wanted)) as advance:
        report = asyncio.run(scraping.scrape(wanted, path, settings, advance))
    if json:
        print_json(asdict(report) | {"reasons": report.reasons})
    else:
        _print(report, path)
    if report.may_pass:
        raise UnavailableError(
            "scraping.pages-failed",
            f"{report.may_pass:,} pages failed temporarily; run the command again to retry them",
        )


def _print(report: "ScrapeReport", path: Path) -> None:
    unchanged = f", {report.unchanged:,} of them unchanged since they were kept" if report.unchanged else ""
    out.print(
        f"[bold]{report.written:,} pages[/] added to {printable(path)}{unchanged}; {report.already_there:,} were there",
        soft_wrap=True,
    )
    if not report.failed:
        return
    counts = ", ".join(f"{count:,} {reason}" for reason, count in report.reasons.items())
    out.print(f"{len(report.failed):,} of {report.wanted:,} failed: {counts}", soft_wrap=True)
    alike: dict[tuple[str | None, str, bool], list[FailedPage]] = {}
    for each in report.failed:
        alike.setdefault((urlsplit(each.url).hostname, each.reason, each.may_pass), []).append(each)
    for group in sorted(alike.values(), key=len, reverse=True)[:_LISTED]:
        first = group[0]
        more = f" and {len(group) - 1:,} more there" if len(group) > 1 else ""
        again = " [yellow](may pass)[/]" if first.may_pass else ""
        told = f"{printable(first.reason)}: {printable(first.detail)}"
        out.print(f"  {printable(first.url)}[dim]{more}[/]  {told}{again}", soft_wrap=True)
    out.print(f"{printable(path.with_suffix('.failed.jsonl'))} lists them", soft_wrap=True)
