"""The clock, the weather and the topics of a season."""

from collections.abc import Sequence
from datetime import date, datetime, timedelta, tzinfo
from functools import cache
from typing import Any

from gumshoe.synthesis.grammar import load_text


class _Britain(tzinfo):
    """Time zone of the United Kingdom, by rule, because `zoneinfo` needs data that some machines lack."""

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
    """Return the last Sunday of a month with 31 days."""
    last = date(year, month, 31)
    return last - timedelta(days=last.isoweekday() % 7)


def select_in_season(described: Sequence[Any], moment: datetime) -> list[Any]:
    """Return the texts that suit the month. A text without months suits every month."""
    month = f"{moment:%B}"
    return [each for each in described if isinstance(each, str) or month in each.get("months", [month])]


def load_words_in_season(moment: datetime) -> dict[str, list[str]]:
    """Return the word lists, including the words of the season."""
    return _load_words(f"{moment:%B}")


@cache
def _load_words(month: str) -> dict[str, list[str]]:
    words: dict[str, list[str]] = dict(load_text("words"))
    for season in load_text("seasons")["season"]:
        if month in season["months"]:
            words |= {name: words[name] + more for name, more in season.items() if name != "months"}
    return words
