"""A value in a text: its kind, meanings, unit, sign and bound. Two values are equal only if all of these are."""

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Literal

Kind = Literal["address", "date", "period", "time", "phone", "code", "ordinal", "number"]
Sign = Literal["", "+", "-"]
Bound = Literal["", ">", ">=", "<", "<="]
Meanings = frozenset[object]

_NO_TOLERANCE = Decimal("1e-9")
_MIN_PHONE_DIGITS = 7  # minimum digits of a telephone number without country and area code
_DIGITS = frozenset({"number", "phone", "code"})  # an extension may be any of these
_TOLERANCE = Decimal("0.01")  # relative difference of two lengths, weights etc. in different units, which are rounded


@dataclass(frozen=True, slots=True)
class Value:
    """A value in a text, independent of how it is written."""

    kind: Kind
    means: Meanings
    """All possible meanings: 5/8 is a day in May or in August."""
    weekday: int | None = None
    """Weekday of a date that names one, from 0 (Monday) to 6."""
    unit: str | None = None
    """Unit or dimension of a number: a currency such as USD, %, a unit of time, or e.g. [length]."""
    scale: Decimal = Decimal(1)
    """Base units of the dimension in one unit as written, e.g. 1000 for km."""
    offset: Decimal = Decimal(0)
    """Base units at zero of the unit as written, e.g. 273.15 for degrees Celsius."""
    is_exact: bool = True
    """False if the unit is rounded when converted, such as miles to km."""
    per: str | None = None
    """Unit after "per": "month" for $50 a month."""
    sign: Sign = ""
    """Direction of a change, or of a profit or loss; empty if the text does not say."""
    is_sign_written: bool = False
    """The sign is written with the number ("-5%"), not in words ("a fall of 5%")."""
    bound: Bound = ""
    zone: Meanings = frozenset()
    """Minutes of the day in UTC of a time with a time zone, each with daylight saving time or not."""
    is_whole: bool = True
    """False for a date that is only a weekday."""
    start: int = 0
    """Start in the text."""
    end: int = 0
    """End in the text."""

    def agrees(self, reference: "Value") -> bool:
        """Return True if it matches a value of the reference. Missing parts of dates and units are ignored."""
        is_same_sign = (self.sign == "-") == (reference.sign == "-")
        return is_same_sign and self.has_amount_of(reference) and not self._contradicts_bound(reference)

    def has_amount_of(self, reference: "Value") -> bool:
        """Return True if it matches a value of the reference in all but sign and bound."""
        if self.kind != reference.kind:
            return {self.kind, reference.kind} <= _DIGITS and bool(self._digits() & reference._digits())
        if None not in (self.weekday, reference.weekday) and self.weekday != reference.weekday:
            return False
        if self.kind == "number":
            return self._has_quantity_of(reference)
        if not reference.is_whole:
            return self.weekday is not None or reference.weekday in {
                day.weekday() for day in self.means if isinstance(day, date)
            }
        if self.kind == "phone":
            return any(_is_same_line(one, other) for one in self._digits() for other in reference._digits())
        if self.zone and reference.zone:
            return bool(self.zone & reference.zone)
        return bool(self.means & reference.means)

    def has_kind_of(self, wanted: "Value") -> bool:
        """Return True if it has the kind and unit of `wanted`, so that it could be an answer in its place."""
        like = self.kind == wanted.kind or {self.kind, wanted.kind} <= {"number", "ordinal", "phone", "date", "code"}
        return like and (self.unit == wanted.unit or None in (self.unit, wanted.unit))

    def _has_quantity_of(self, reference: "Value") -> bool:
        if None not in (self.per, reference.per) and self.per != reference.per:
            return False
        if self.unit is None or reference.unit is None:
            return self.unit != "%" and bool(self.means & reference.means)
        if self.unit != reference.unit:
            return False
        if (self.scale, self.offset) == (reference.scale, reference.offset):
            return bool(self.means & reference.means)
        tolerance = _TOLERANCE if self._is_rounded_in(reference) else _NO_TOLERANCE
        return any(
            abs(one - other) <= tolerance * abs(other) for one in self._amounts() for other in reference._amounts()
        )

    def _is_rounded_in(self, reference: "Value") -> bool:
        """Return True if the units are not of one system, so that amounts are rounded when converted."""
        if self.is_exact and reference.is_exact:
            return False
        power = (self.scale / reference.scale).log10()
        return self.offset != reference.offset or abs(power - round(power)) > _NO_TOLERANCE

    def _amounts(self) -> list[Decimal]:
        """Return its possible amounts in base units."""
        return [each * self.scale + self.offset for each in self.means if isinstance(each, Decimal)]

    def _contradicts_bound(self, reference: "Value") -> bool:
        return "" not in (self.bound, reference.bound) and self.bound != reference.bound

    def _digits(self) -> set[str]:
        """Return its possible meanings as digits, if it has any."""
        written = {f"{each:f}" if isinstance(each, Decimal) else str(each) for each in self.means}
        return {each for each in written if each.isdigit()}


def _is_same_line(one: str, other: str) -> bool:
    """Return True if two numbers are the same telephone number, with or without country or area code."""
    short, long = sorted((one.lstrip("0"), other.lstrip("0")), key=len)
    return len(short) >= _MIN_PHONE_DIGITS and long.endswith(short)
