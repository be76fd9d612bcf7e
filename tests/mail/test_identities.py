"""Test the form in which addresses of callers are compared: no two different addresses are taken for the same one."""

import string
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gumshoe.mail.identities import IdentityError, parse_identity, parse_identity_pattern
from gumshoe.mail.message import normalize_address
from tests.errors import raises

ANN = "ann@example.com"

SPELLINGS = {
    "ann@example.com": ANN,
    "Ann@EXAMPLE.com": ANN,
    "o'brien@example.com": "o'brien@example.com",
    "first.last+tag@sub.example.com": "first.last+tag@sub.example.com",
    "a_b@x_y.example": "a_b@x_y.example",
    "ann@localhost": "ann@localhost",
    "ann@bücher.example": "ann@xn--bcher-kva.example",
    "ann@XN--BCHER-KVA.example": "ann@xn--bcher-kva.example",
    "ann@straße.example": "ann@xn--strae-oqa.example",
    "jörg.müller@example.com": "jörg.müller@example.com",
    "用户@例子.example": "用户@xn--fsqu00a.example",
}

REFUSED = {
    "nothing": "",
    "no at": "ann",
    "no local part": "@example.com",
    "no domain": "ann@",
    "two ats": "ann@b@example.com",
    "full-width at": "ann\uff20example.com",
    "small at": "ann\ufe6bexample.com",
    "Kelvin sign": "\u212aate@example.com",
    "Kelvin sign in the domain": "kate@\u212aelvin.example",
    "long s": "\u017fue@example.com",
    "full-width letter": "\uff41nn@example.com",
    "full-width dot": "ann@example\uff0ecom",
    "ideographic dot": "ann@example\u3002com",
    "ligature": "\ufb01n@example.com",
    "capital outside ASCII": "\u00c4nn@example.com",
    "decomposed": "a\u0308nn@example.com",
    "decomposed domain": "ann@bu\u0308cher.example",
    "space before": " ann@example.com",
    "space after": "ann@example.com ",
    "space inside": "a nn@example.com",
    "tab": "\tann@example.com",
    "newline before": "\nann@example.com",
    "newline after": "ann@example.com\n",
    "carriage return": "ann@example.com\r",
    "no-break space": "\u00a0ann@example.com",
    "narrow space": "ann\u202f@example.com",
    "line separator": "ann\u2028@example.com",
    "NUL": "ann@example.com\0",
    "C1 control": "a\u0085nn@example.com",
    "lone surrogate": "a\ud800nn@example.com",
    "unassigned": "a\u0378nn@example.com",
    "private use": "a\ue000nn@example.com",
    "soft hyphen": "a\u00adnn@example.com",
    "zero-width space": "a\u200bnn@example.com",
    "zero-width joiner": "a\u200dnn@example.com",
    "zero-width non-joiner in the domain": "ann@ex\u200cample.com",
    "byte order mark": "\ufeffann@example.com",
    "word joiner": "ann\u2060@example.com",
    "right to left override": "a\u202enn@example.com",
    "directional isolate": "ann@\u2066example.com",
    "Hangul filler": "a\u3164nn@example.com",
    "variation selector": "ann\ufe0f@example.com",
    "tag character": "ann\U000e0061@example.com",
    "combining first": "\u0301ann@example.com",
    "apostrophes": "'ann@example.com'",
    "apostrophe before": "'ann@example.com",
    "apostrophe after": "ann@example.com'",
    "quoted": '"ann"@example.com',
    "quotes around": '"ann@example.com"',
    "brackets": "<ann@example.com>",
    "comment": "ann(me)@example.com",
    "comment after": "ann@example.com(me)",
    "name": "Ann <ann@example.com>",
    "list": "ann@example.com,bob@example.com",
    "semicolon": "ann@example.com;",
    "group": "team:ann@example.com;",
    "backslash": "a\\nn@example.com",
    "pattern": "*@example.com",
    "pattern of domains": "ann@*",
    "address literal": "ann@[127.0.0.1]",
    "empty label": "ann@example..com",
    "dot after": "ann@example.com.",
    "dot before the domain": "ann@.example.com",
    "hyphen first": "ann@-example.com",
    "hyphen last": "ann@example-.com",
    "false A-label": "ann@xn--a.example",
    "A-label of a variant": "ann@xn--kelvin-.example",
    "long label": f"ann@{'a' * 64}.example",
    "long domain": f"ann@{'a.' * 127}example",
    "long address": f"{'a' * 400}@example.com",
}


@pytest.mark.parametrize("address", SPELLINGS)
def test_an_address_has_one_form(address: str) -> None:
    assert parse_identity(address) == SPELLINGS[address]
    assert parse_identity(parse_identity(address)) == SPELLINGS[address]
    assert normalize_address(address) == SPELLINGS[address], "the index stores the same form"


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_a_plain_address_is_refused(name: str) -> None:
    with raises("mail.invalid-identity"):
        parse_identity(REFUSED[name])


def test_a_pattern_is_normalized_like_an_address() -> None:
    assert parse_identity_pattern("*@Bücher.example") == "*@xn--bcher-kva.example"
    assert parse_identity_pattern("Team-*@*.Example.com") == "team-*@*.example.com"
    assert parse_identity_pattern("*@*") == "*@*"
    for wrong in (
        "*",
        "everybody",
        " *@example.com",
        "*@exam ple.com",
        "*@example.com\n",
        "*@*ü.example",
        "'*@a.example",
    ):
        with raises("mail.invalid-identity", repr(wrong)):
            parse_identity_pattern(wrong)


_LETTERS = st.one_of(
    st.sampled_from(
        string.ascii_letters + string.digits + "@.-_'\"<> *\u212a\u0130\u00df\u03c2\u00c4\u00e4\u200d\u00a0"
    ),
    st.characters(),
)


@given(st.lists(_LETTERS, max_size=12).map("".join), st.lists(_LETTERS, max_size=12).map("".join))
def test_the_index_does_not_change_an_accepted_address(local: str, domain: str) -> None:
    """So no two different accepted addresses are the same one in the index."""
    text = f"{local}@{domain}"
    try:
        found = parse_identity(text)
    except IdentityError:
        return
    assert normalize_address(found) == found
    assert found.isprintable()
    assert unicodedata.normalize("NFC", found) == found
    assert found.partition("@")[2].isascii()
    assert found.partition("@")[0] == "".join(each.lower() if each.isascii() else each for each in local)
