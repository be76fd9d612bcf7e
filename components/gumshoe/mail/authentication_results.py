"""Read the verdicts of mail servers on the sender of a message: `Authentication-Results` (RFC 8601) and ARC (RFC 8617).

A statement counts only if it is that of a server that is trusted by name, and the topmost of that server: everything
below came with the message, and anybody may have written it. The same holds for everything below a header that cannot
be read, since that may be the one of the trusted server.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from gumshoe.mail.identities import lower_ascii

Verdict = Literal["pass", "fail", ""]

_MAX_STATEMENTS = 20  # headers of a message that are read
_MAX_LENGTH = 16_000  # characters of one
_QUOTED = r'"(?:[^"\\]|\\.)*+"'
_VALUE = rf"(?:[^\s\";]++|{_QUOTED})++"  # also "ann lee"@example.com
_ONE_QUOTED = re.compile(_QUOTED, re.S)
_PIECE = re.compile(rf"{_QUOTED}|[^\"()\\]++|\\.", re.S)
_COMMENT_PIECE = re.compile(r"[()]|\\.|[^()\\]++", re.S)
_PART = re.compile(rf"(?:[^\";]|{_QUOTED})++", re.S)
_SERVER = re.compile(rf"\s*+({_QUOTED}|[^\s;=\"]++)(?:\s++(\d{{1,4}}+))?\s*+", re.S)
_PAIR = re.compile(rf"\s*+([\w.-]++)\s*+(?:/\s*+\d++\s*+)?=\s*+({_VALUE})(?=\s|$)", re.S | re.A)
_VERSIONS = {None, "1"}
_INSTANCE = re.compile(r"\s*i\s*=\s*(\d{1,2})\s*;")
_SEALER = re.compile(r"(?:^|;)\s*d\s*=\s*([^\s;]++)")


class Result(NamedTuple):
    """The result of one method, e.g. `dkim=pass header.d=example.com`."""

    method: str
    result: str
    properties: Mapping[str, str]


class ServerStatement(NamedTuple):
    """The verdict of a server on the sender of a message."""

    server: str
    """Name of the server, in lower case. Empty if it does not name itself."""
    verdict: Verdict
    """`pass` if it confirmed the sender, `fail` if it found that the sender is forged."""
    sealers: tuple[str, ...]
    """Domains of the servers that forwarded the message, if the first confirmed the sender and all seals are valid."""

    def without_confirmation(self) -> "ServerStatement":
        """Return the statement as it is if it refuses the sender, and otherwise one that says nothing."""
        return ServerStatement(self.server, "fail" if self.verdict == "fail" else "", ())


def parse_results(value: str) -> tuple[str, list[Result]]:
    """Return the name of the server and the results of an `Authentication-Results` header.

    Returns no results if the header is malformed or of an unknown version. A result is read up to the first text that
    is not part of one.

    >>> parse_results("mx.example.com; dkim=pass (good) header.d=example.com")
    ('mx.example.com', [Result(method='dkim', result='pass', properties={'header.d': 'example.com'})])
    """
    text = _remove_comments(value) if len(value) <= _MAX_LENGTH else None
    if text is None:
        return "", []
    parts = _PART.findall(text)
    if not parts:
        return "", []
    named = _SERVER.fullmatch(parts[0])
    if named and named[2] not in _VERSIONS:
        parts = []
    results = []
    for part in parts[1:] if named else parts:
        pairs = list(_read_pairs(part))
        if pairs:
            results.append(Result(*pairs[0], dict(reversed(pairs[1:]))))
    return lower_ascii(_unquote(named[1])) if named else "", results


def _read_pairs(part: str) -> Iterator[tuple[str, str]]:
    """Yield the names and values at the beginning of a text, in lower case."""
    position = 0
    while pair := _PAIR.match(part, position):
        yield lower_ascii(pair[1]), lower_ascii(_unquote(pair[2]))
        position = pair.end()


def _unquote(text: str) -> str:
    """Return the text of a quotation. A text that only contains one is returned as it is."""
    return re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.S) if _ONE_QUOTED.fullmatch(text) else text


def _remove_comments(text: str) -> str | None:
    """Return a header without its comments, or None if a comment or a quotation has no end."""
    kept: list[str] = []
    position = 0
    while position < len(text):
        if text[position] == "(":
            position = _find_comment_end(text, position)
            kept.append(" ")
            if not position:
                return None
            continue
        piece = _PIECE.match(text, position)
        if piece is None:
            return None
        kept.append(piece[0])
        position = piece.end()
    return "".join(kept)


def _find_comment_end(text: str, start: int) -> int:
    """Return the index behind a comment, which may have others in it, or 0 if it has no end."""
    depth = 0
    for piece in _COMMENT_PIECE.finditer(text, start):
        depth += {"(": 1, ")": -1}.get(piece[0], 0)
        if not depth:
            return piece.end()
    return 0


def find_statements(headers: Mapping[str, Sequence[str]], sender: str) -> list[ServerStatement]:
    """Return what servers say about the address of a sender, the topmost first, and one statement of each server.

    Below a header that cannot be read, nothing confirms a sender.
    """
    found: dict[str, ServerStatement] = {}
    is_readable = True
    for value in headers.get("authentication-results", [])[:_MAX_STATEMENTS]:
        server, results = parse_results(value)
        is_readable = is_readable and bool(server or results)
        if server not in found:
            has_valid_seals = any(each.method == "arc" and each.result == "pass" for each in results)
            sealers = _find_sealers(headers, sender) if has_valid_seals else ()
            statement = ServerStatement(server, _judge(results, sender), sealers)
            found[server] = statement if is_readable else statement.without_confirmation()
    return list(found.values())


def _judge(results: Iterable[Result], sender: str) -> Verdict:
    """Return the verdict of results on an address. DMARC decides; otherwise a signature or login of the sender does.

    SPF alone confirms nobody, since many senders share servers.
    """
    domain = sender.rpartition("@")[2]
    by_method: dict[str, list[Result]] = {}
    for each in results:
        by_method.setdefault(each.method, []).append(each)
    dmarc = by_method.get("dmarc", [])
    if any(each.result == "fail" for each in dmarc):
        return "fail"
    if dmarc and all(each.result == "pass" and _domain(each, "header.from") == domain for each in dmarc):
        return "pass"
    signatures = by_method.get("dkim", [])
    if any(each.result == "pass" and _covers(_domain(each, "header.d", "header.i"), domain) for each in signatures):
        return "pass"
    logins = by_method.get("auth", [])
    if any(each.result == "pass" and each.properties.get("smtp.auth") == sender for each in logins):
        return "pass"
    refused = [each for each in by_method.get("spf", []) if _covers(_domain(each, "smtp.mailfrom"), domain)]
    return "fail" if any(each.result == "fail" for each in (*signatures, *refused)) else ""


def _domain(result: Result, *names: str) -> str:
    """Return the domain in the first of some properties that a result has."""
    value = next((result.properties[name] for name in names if name in result.properties), "")
    return value.rpartition("@")[2]


def _covers(domain: str, other: str) -> bool:
    """Return True if a domain is another one or contains it. A top-level domain such as `com` contains no other."""
    return bool(domain) and (other == domain or ("." in domain and other.endswith(f".{domain}")))


def _find_sealers(headers: Mapping[str, Sequence[str]], sender: str) -> tuple[str, ...]:
    """Return the domains of all seals of a message whose first forwarder confirmed the sender, or nothing."""
    sealers: dict[int, str] = {}
    for value in headers.get("arc-seal", [])[:_MAX_STATEMENTS]:
        number, domain = _INSTANCE.match(value), _SEALER.search(value)
        if number is None or domain is None or int(number[1]) in sealers:
            return ()
        sealers[int(number[1])] = lower_ascii(domain[1])
    first = [
        value[number.end() :]
        for value in headers.get("arc-authentication-results", [])
        if (number := _INSTANCE.match(value)) and int(number[1]) == 1
    ]
    if len(first) != 1 or sorted(sealers) != list(range(1, len(sealers) + 1)):
        return ()
    return tuple(sorted(set(sealers.values()))) if _judge(parse_results(first[0])[1], sender) == "pass" else ()


def check_sender(statements: Sequence[ServerStatement], trusted: Collection[str]) -> Verdict:
    """Return what is known about a sender. Only trusted servers can confirm one.

    Without a statement of a trusted server, the topmost one of any server can say that the sender is forged.
    """
    for each in statements:
        if each.server in trusted:
            is_sealed = each.sealers and all(_is_trusted(sealer, trusted) for sealer in each.sealers)
            return "pass" if is_sealed else each.verdict
    return "fail" if statements and statements[0].verdict == "fail" else ""


def _is_trusted(domain: str, trusted: Collection[str]) -> bool:
    """Return True if a domain seals mail for a trusted server, as google.com does for mx.google.com."""
    return any(_covers(domain, server) for server in trusted)
