"""What the time of the year decides: the clock, the weather, and what people write about."""

from collections.abc import Sequence
from datetime import date, datetime, timedelta, tzinfo
from functools import cache
from typing import Any

from gumshoe.synthesis.grammar import load_text


class _Britain(tzinfo):
    """The clock of the United Kingdom, by rule: `zoneinfo` needs data that not every machine has."""

    def utcoffset(self, moment: datetime | None, /) -> timedelta:
        return self.dst(moment)

    def dst(self, moment: datetime | None, /) -> timedelta:
        if moment is None:
            return timedelta()
        begins, ends = (_last_sunday(moment.year, month) for month in (3, 10))
        day = moment.date()
        after_begin = day > begins or (day == begins and moment.hour >= 1)
        before_end = day < ends or (day == ends and moment.hour < 2)
        return timedelta(hours=after_begin and before_end)

    def tzname(self, moment: datetime | None, /) -> str:
        return "BST" if self.dst(moment) else "GMT"


BRITAIN = _Britain()


def _last_sunday(year: int, month: int) -> date:
    """Of a month with 31 days."""
    last = date(year, month, 31)
    return last - timedelta(days=last.isoweekday() % 7)


def in_season(described: Sequence[Any], moment: datetime) -> list[Any]:
    """Those of the texts that suit the month; what names no months suits all."""
    month = f"{moment:%B}"
    return [each for each in described if isinstance(each, str) or month in each.get("months", [month])]


def words_in_season(moment: datetime) -> dict[str, list[str]]:
    """The word lists, with the words that belong to the season."""
    return _words(f"{moment:%B}")


@cache
def _words(month: str) -> dict[str, list[str]]:
    words: dict[str, list[str]] = dict(load_text("words"))
    for season in load_text("seasons")["season"]:
        if month in season["months"]:
            words |= {name: words[name] + more for name, more in season.items() if name != "months"}
    return words
