"""Redact personal data in text: addresses, numbers and credentials, by kind, with a count of each.

Phone numbers are found by `phonenumbers` (Google's libphonenumber), and the check digits of account and card numbers by
`python-stdnum`. Names of people are not found: that requires a language model.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Literal, NamedTuple, get_args

from gumshoe.errors import UsageError
from gumshoe.installation import install_command
from gumshoe.redaction import MASK, redact

PersonalDataKind = Literal["credential", "email", "iban", "card", "ip", "phone"]
KINDS: tuple[PersonalDataKind, ...] = get_args(PersonalDataKind)
"""All kinds. If two overlap, the first one in this order counts."""
KINDS_OF_LIBRARIES: frozenset[PersonalDataKind] = frozenset({"iban", "card", "phone"})
"""The kinds that need libraries of the extra `redact`."""
PLACEHOLDERS: dict[PersonalDataKind, str] = {
    "credential": "[credential]",
    "email": "[email address]",
    "iban": "[account number]",
    "card": "[card number]",
    "ip": "[IP address]",
    "phone": "[phone number]",
}
_OWN_STARS = "\0"
"""Character in place of stars that are part of the text. No text of a scenario contains it."""
_EMAIL = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}")
_IBAN = re.compile(r"(?<!\w)[A-Z]{2}\d{2}(?: ?[A-Z0-9]{1,4}){3,8}(?!\w)")
_CARD = re.compile(r"(?<![\w-])[3-6]\d{3}(?:[ -]?\d){9,15}(?![\w-])")
_IP = re.compile(r"(?<![\w.:])(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7})(?![\w:])")


class _Finding(NamedTuple):
    start: int
    end: int
    kind: PersonalDataKind


@dataclass(frozen=True, slots=True)
class Redaction:
    """A redacted text, and the number of values that were replaced, by kind."""

    text: str
    counts: Counter[PersonalDataKind] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class PersonalDataRedactor:
    """Replace personal data in text with placeholders such as `[phone number]`.

    >>> PersonalDataRedactor(("email",)).redact("Mail ann@example.com.").text
    'Mail [email address].'

    Raises:
        UsageError: if a region does not exist, or a library is not installed.
    """

    kinds: Sequence[PersonalDataKind]
    regions: Sequence[str] = ("US", "GB")
    """Countries (ISO 3166) whose phone numbers are found without a country code; others only with one."""

    def __post_init__(self) -> None:
        if KINDS_OF_LIBRARIES.isdisjoint(self.kinds):
            return
        try:
            import stdnum.luhn  # noqa: F401
            from phonenumbers import SUPPORTED_REGIONS
        except ImportError as error:
            raise UsageError(
                "scenarios.redaction-unavailable",
                f"redacting {', '.join(self.kinds)} requires {error.name}: {install_command(extra='redact')}; or use "
                "--redact none",
            ) from None
        if wrong := [each for each in self.regions if each not in SUPPORTED_REGIONS]:
            raise UsageError(
                "scenarios.unknown-phone-region",
                f"unknown country of phone numbers: {wrong[0]!r}; use two letters of ISO 3166, e.g. US or DE",
            )

    def redact(self, text: str) -> Redaction:
        """Return a text without personal data."""
        counts: Counter[PersonalDataKind] = Counter()
        if "credential" in self.kinds:
            text = redact(text.replace(MASK, _OWN_STARS))
        parts, done = list[str](), 0
        for start, end, kind in sorted(self._find(text)):
            if start >= done:
                parts += [text[done:start], PLACEHOLDERS[kind]]
                counts[kind] += 1
                done = end
        return Redaction("".join([*parts, text[done:]]).replace(_OWN_STARS, MASK), counts)

    def _find(self, text: str) -> Iterator[_Finding]:
        """Yield the findings that do not overlap with one of an earlier kind."""
        taken = list[_Finding]()
        for kind in KINDS:
            if kind in self.kinds:
                for start, end in _FINDERS[kind](text, self.regions):
                    if all(end <= each.start or start >= each.end for each in taken):
                        taken.append(_Finding(start, end, kind))
        yield from taken


def _find_credentials(text: str, _: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the masks of credentials, which `gumshoe.redaction` has put in their place."""
    return (each.span() for each in re.finditer(re.escape(MASK), text))


def _find_emails(text: str, _: Sequence[str]) -> Iterator[tuple[int, int]]:
    return (each.span() for each in _EMAIL.finditer(text))


def _find_ibans(text: str, _: Sequence[str]) -> Iterator[tuple[int, int]]:
    from stdnum import iban

    for each in _IBAN.finditer(text):
        found = each[0]
        while found and not iban.is_valid(found, check_country=False):
            found = found.rpartition(" ")[0]  # a word in capital letters may follow
        if found:
            yield each.start(), each.start() + len(found)


def _find_cards(text: str, _: Sequence[str]) -> Iterator[tuple[int, int]]:
    from stdnum import luhn

    return (each.span() for each in _CARD.finditer(text) if luhn.is_valid(re.sub("[ -]", "", each[0])))


def _find_ips(text: str, _: Sequence[str]) -> Iterator[tuple[int, int]]:
    for each in _IP.finditer(text):
        try:
            ip_address(each[0])
        except ValueError:
            continue
        yield each.span()


def _find_phones(text: str, regions: Sequence[str]) -> Iterator[tuple[int, int]]:
    from phonenumbers import PhoneNumberMatcher

    for region in (None, *regions):
        for each in PhoneNumberMatcher(text, region):
            yield each.start, each.end


_FINDERS = {
    "credential": _find_credentials,
    "email": _find_emails,
    "iban": _find_ibans,
    "card": _find_cards,
    "ip": _find_ips,
    "phone": _find_phones,
}
