"""Results of mail servers about senders: parsing, verdicts, and which server's word counts."""

import re

import pytest

from gumshoe.mail import authentication_results
from gumshoe.mail.authentication_results import check_sender, find_statements, parse_results

ANN = "ann@example.com"
MX = "mx.example.net"


def judge(*values: str, sender: str = ANN, trusted: tuple[str, ...] = (MX,)) -> str:
    return check_sender(find_statements({"authentication-results": values}, sender), trusted)


@pytest.mark.parametrize(
    ("value", "server", "results"),
    [
        ("mx.example.net; none", MX, []),
        ("MX.example.net 1; dkim=pass", MX, [("dkim", "pass", {})]),
        ('"mx.example.net"; spf=fail', MX, [("spf", "fail", {})]),
        ("mx.example.net (a (nested; dmarc=pass) b); spf=none (x;y)", MX, [("spf", "none", {})]),
        ('mx.example.net;\r\n dkim=pass reason="a; dmarc=pass" header.d=x', MX, None),
        ("spf=pass (sender IP is 1.2.3.4) smtp.mailfrom=x.example; dkim=none", "", None),
    ],
)
def test_headers_are_parsed(value: str, server: str, results: list[tuple[str, str, dict[str, str]]] | None) -> None:
    found, listed = parse_results(value)
    assert found == server
    assert "dmarc" not in {each.method for each in listed}
    if results is not None:
        assert [tuple(each) for each in listed] == results


@pytest.mark.parametrize(
    "value",
    [
        "mx.example.net; dmarc=pass (",
        "mx.example.net; dmarc=pass header.from=example.com (a (b)",
        'mx.example.net; dmarc=pass header.from="example.com',
        "mx.example.net) ; dmarc=pass header.from=example.com",
        "mx.example.net; dmarc=pass header.from=example.com" + " " * 20_000,
        "",
        ";",
    ],
)
def test_malformed_headers_say_nothing(value: str) -> None:
    assert parse_results(value)[1] == []
    assert judge(value) == ""


@pytest.mark.parametrize(
    ("results", "verdict"),
    [
        ("dmarc=pass header.from=example.com", "pass"),
        ("dmarc=pass header.from=ann@EXAMPLE.com", "pass"),
        ("dmarc=pass header.from=evil.example", ""),
        ("dmarc=pass", ""),
        ("dmarc=fail header.from=example.com", "fail"),
        ("dmarc=fail header.from=example.com; dkim=pass header.d=example.com", "fail"),
        ("dmarc=pass header.from=example.com; dmarc=fail header.from=example.com", "fail"),
        ("dmarc=pass header.from=evil.example; dmarc=pass header.from=example.com", ""),
        ("dmarc=none header.from=example.com; dkim=pass header.d=example.com", "pass"),
        ("dkim=pass header.i=@example.com", "pass"),
        ("dkim=pass header.d=evil.example", ""),
        ("dkim=pass header.d=le.com", ""),
        ("dkim=pass header.d=sub.example.com", ""),
        ("dkim=fail header.d=evil.example; dkim=pass header.d=example.com", "pass"),
        ("dkim=fail header.d=example.com; spf=pass smtp.mailfrom=example.com", "fail"),
        ("spf=pass smtp.mailfrom=ann@example.com", ""),
        ("spf=fail smtp.mailfrom=ann@example.com", "fail"),
        ("spf=fail smtp.mailfrom=bounces@list.example", ""),
        ("spf=softfail smtp.mailfrom=ann@example.com", ""),
        ("auth=pass smtp.auth=ann@example.com", "pass"),
        ("auth=pass smtp.auth=eve@example.com", ""),
        ("none", ""),
    ],
)
def test_a_trusted_server_confirms_or_refuses_a_sender(results: str, verdict: str) -> None:
    assert judge(f"{MX}; {results}") == verdict


@pytest.mark.parametrize(
    "results",
    [
        'dkim=pass header.i="x@example.com"@evil.example',
        'dkim=pass header.i="x@example.com "@evil.example',
        'dkim=pass header.i=x"@example.com"',
        'dkim=pass header.i="x header.d=example.com"@evil.example',
        'dkim=pass header.b="x"header.d=example.com header.d=evil.example',
        "dkim=pass header.b=x;header.d=example.com",
        "dkim=pass header.i=@evil.example header.i=@example.com",
        "dkim=pass reason=a text header.d=example.com",
        "x dkim=pass header.d=example.com",
        "dkim=neutral dkim=pass header.d=example.com",
        'auth=pass smtp.auth="ann@example.com"@evil.example',
        'auth=pass smtp.auth="ann@example.com',
        'dmarc=pass header.from="ann@example.com"@evil.example',
        'spf=pass smtp.mailfrom="a; dmarc=pass header.from=example.com"@evil.example',
        'spf=pass smtp.mailfrom=a"; dmarc=pass header.from=example.com "@evil.example',
        "spf=pass smtp.mailfrom=(; dmarc=pass header.from=example.com)a@evil.example",
        "dkim=pass header.d=exam\u212aple.com",
        "dkim=pass header.d=com",
    ],
)
def test_values_that_senders_choose_confirm_nobody(results: str) -> None:
    """A server repeats the sender's address, and the names in a signature: the sender may write anything there."""
    assert judge(f"{MX}; {results}") == ""


@pytest.mark.parametrize(
    ("results", "sender"),
    [
        ('dkim=pass header.i="x"@example.com', ANN),
        ('dkim=pass header.d="example.com"', ANN),
        ("dkim/1 = pass (1024 bits) header.d = EXAMPLE.com", ANN),
        ('dkim=pass (2048-bit key) header.s=s header.b="a/b+c=" header.a=rsa-sha256 header.i=@example.com', ANN),
        ("auth=pass (login) smtp.auth=ann@example.com smtp.mailfrom=x@y.example", ANN),
        ("dkim=pass header.d=example.com", "ann@mail.example.com"),
        ("dkim=pass header.d=localhost", "ann@localhost"),
    ],
)
def test_valid_forms_confirm_a_sender(results: str, sender: str) -> None:
    assert judge(f"{MX}; {results}", sender=sender) == "pass"


@pytest.mark.parametrize(
    ("written", "verdict"),
    [
        ("mx.bank.example", "pass"),
        ("MX.Bank.Example", "pass"),
        ('"mx.bank.example"', "pass"),
        ("(x) mx.bank.example (y) 1", "pass"),
        ("mx.bank.example 2", ""),
        ("mx.ban\u212a.example", ""),
        ("mx.bank.example.", ""),
        ("mx.bank.example x", ""),
        ("mx.bank.example=1", ""),
    ],
)
def test_names_of_servers_are_compared_exactly(written: str, verdict: str) -> None:
    assert judge(f"{written}; {CONFIRMED}", trusted=("mx.bank.example",)) == verdict


def test_parsing_takes_time_in_proportion_to_the_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attackers choose the text. A search for pairs would begin anew at each character; each is tried once."""
    calls = 0
    pattern = authentication_results._PAIR

    class Counting:
        def match(self, text: str, position: int) -> re.Match[str] | None:
            nonlocal calls
            calls += 1
            return pattern.match(text, position)

    monkeypatch.setattr(authentication_results, "_PAIR", Counting())
    for text in ("a" * 15_000, "a." * 7_500, "a " * 7_500, "a/ " + "1" * 15_000):
        parse_results(f"{MX}; {text}")
    assert calls == 4


CONFIRMED = "dmarc=pass header.from=example.com"
REFUSED = "dmarc=fail header.from=example.com"
UNREADABLE = [
    f"{MX}; spf=none smtp.mailfrom=a(b@evil.example",
    f'{MX}; spf=none smtp.mailfrom="b@evil.example',
    f"{MX}; {'dkim=pass header.d=evil.example; ' * 600}",
]
"""Headers of a trusted server into which a sender brought something that cannot be read."""


@pytest.mark.parametrize(
    ("values", "trusted", "verdict"),
    [
        ([f"{MX}; {CONFIRMED}"], (), ""),
        ([f"{MX}; {REFUSED}"], (), "fail"),
        ([f"{MX}; {REFUSED}", f"{MX}; {CONFIRMED}"], (MX,), "fail"),
        ([f"{MX}; none", f"{MX}; {CONFIRMED}"], (MX,), ""),
        ([f"other.example; {CONFIRMED}"], (MX,), ""),
        ([f"other.example; {CONFIRMED}", f"{MX}; {REFUSED}"], (MX,), "fail"),
        (["inner.example.net; none", f"{MX}; {CONFIRMED}"], (MX,), "pass"),
        ([f"{MX}; {REFUSED}", f"inner.example.net; {CONFIRMED}"], (MX, "inner.example.net"), "fail"),
        ([f"x{MX}; {CONFIRMED}"], (MX,), ""),
        (["dmarc=pass header.from=example.com"], (MX, ""), ""),
    ],
)
def test_only_the_topmost_statement_of_a_trusted_server_counts(
    values: list[str], trusted: tuple[str, ...], verdict: str
) -> None:
    assert judge(*values, trusted=tuple(filter(None, trusted))) == verdict


@pytest.mark.parametrize("unreadable", UNREADABLE)
def test_nothing_below_an_unreadable_header_confirms_a_sender(unreadable: str) -> None:
    """The sender wrote what is below the header of the trusted server."""
    assert judge(unreadable, f"{MX}; {CONFIRMED}") == ""
    assert judge(unreadable, f"{MX}; {REFUSED}") == "fail"
    assert judge(f"{MX}; {CONFIRMED}", unreadable) == "pass"
    sealed = arc("list.example")
    sealed["authentication-results"].insert(0, unreadable)
    assert check_sender(find_statements(sealed, ANN), (MX, "list.example")) == "fail"


def arc(*sealers: str, first: str = CONFIRMED, result: str = "arc=pass") -> dict[str, list[str]]:
    numbers = range(len(sealers), 0, -1)
    return {
        "authentication-results": [f"{MX}; {result}; {REFUSED}"],
        "arc-seal": [f"i={n}; a=rsa-sha256; cv=pass; d={sealers[n - 1]}; s=k; b=x" for n in numbers],
        "arc-authentication-results": [f"i={n}; server; {first if n == 1 else 'none'}" for n in numbers],
    }


@pytest.mark.parametrize(
    ("headers", "trusted", "verdict"),
    [
        (arc("list.example"), (MX, "list.example"), "pass"),
        (arc("google.com"), (MX, "mx.google.com"), "pass"),
        (arc("list.example"), (MX,), "fail"),
        (arc("list.example", "evil.example"), (MX, "list.example"), "fail"),
        (arc("evil.example", "list.example"), (MX, "list.example"), "fail"),
        (arc("list.example", first=REFUSED), (MX, "list.example"), "fail"),
        (arc("list.example", result="arc=fail"), (MX, "list.example"), "fail"),
        (arc("list.example", result="spf=pass"), (MX, "list.example"), "fail"),
        (arc("list.example"), ("list.example",), "fail"),
        ({**arc("list.example"), "arc-seal": []}, (MX, "list.example"), "fail"),
        ({**arc("list.example"), "arc-seal": ["i=2; d=list.example"]}, (MX, "list.example"), "fail"),
        ({**arc("list.example"), "arc-seal": ["d=list.example"]}, (MX, "list.example"), "fail"),
        (
            {**arc("list.example"), "arc-seal": ["i=1; d=evil.example", "i=1; d=list.example"]},
            (MX, "list.example"),
            "fail",
        ),
        (
            {**arc("list.example"), "arc-authentication-results": [f"i=1; x; {CONFIRMED}", f"i=1; x; {REFUSED}"]},
            (MX, "list.example"),
            "fail",
        ),
    ],
)
def test_forwarded_mail_is_confirmed_by_seals_of_trusted_servers_only(
    headers: dict[str, list[str]], trusted: tuple[str, ...], verdict: str
) -> None:
    assert check_sender(find_statements(headers, ANN), trusted) == verdict
