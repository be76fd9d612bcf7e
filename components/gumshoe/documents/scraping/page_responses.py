"""Read what responses without a page say: the target of a redirect, or the failure, and the pause it asks for."""

from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus

import httpx

from gumshoe.documents.scraping.failure import PageFailure
from gumshoe.documents.scraping.guard import normalize_url
from gumshoe.documents.scraping.web import HttpResponse

REDIRECTS = {301, 302, 303, 307, 308}
"""Statuses of redirects."""
TEMPORARY_STATUSES = {408, 421, 425, 429, 500, 502, 503, 504, 507, 508, 509, 520, 521, 522, 523, 524, 527, 529}
"""Statuses of failures that may pass."""
_GONE_STATUSES = {404, 410}


def find_redirect_target(url: httpx.URL, answer: HttpResponse) -> httpx.URL:
    """Return the target of a redirect.

    Raises:
        PageFailure: if it has no target, or an invalid one.
    """
    to = answer.headers.get("location", "")
    if not to:
        raise PageFailure("redirects", f"{url} redirects without a location")
    return find_target(url, to)


def find_target(url: httpx.URL, to: str) -> httpx.URL:
    """Return the URL that a page leads to.

    Raises:
        PageFailure: if it is invalid, or no address on the web.
    """
    with suppress(UnicodeError):  # servers send unescaped URLs in UTF-8
        to = to.encode("latin-1").decode("utf-8")
    try:
        return normalize_url(str(url.join(to)))
    except (httpx.InvalidURL, ValueError) as error:
        raise PageFailure("redirects", f"{url} redirects to an invalid address ({error})") from None
    except PageFailure as failure:
        raise PageFailure("redirects", f"{url} redirects to {to[:200]}: {failure.detail}") from None


def explain_status(answer: HttpResponse) -> PageFailure:
    """Return the failure for a status other than success."""
    try:
        status_text = f"{answer.status} {HTTPStatus(answer.status).phrase}"
    except ValueError:
        status_text = str(answer.status)
    if answer.status in _GONE_STATUSES:
        return PageFailure("not found", status_text)
    return PageFailure(
        "status", status_text, may_pass=answer.status in TEMPORARY_STATUSES, wait=_parse_retry_after(answer)
    )


def _parse_retry_after(answer: HttpResponse) -> float | None:
    """Return the seconds of a Retry-After header, which is a number or a date (RFC 9110, 10.2.3)."""
    header = answer.headers.get("retry-after", "").strip()
    if header.isdecimal():
        return float(header)
    try:
        when = parsedate_to_datetime(header)
        when = when if when.tzinfo else when.replace(tzinfo=UTC)
        return max(0.0, (when - datetime.now(UTC)).total_seconds())
    except (ValueError, OverflowError):
        return None
