"""Parsing of dates, in the forms in which programs and people write them."""

# ruff: noqa: RUF001 - letters that look alike are what is tested

from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gumshoe.mail.dates import parse_date
from gumshoe.mail.message import to_datetime

QUICK = settings(derandomize=True, deadline=None, database=None)


@pytest.mark.parametrize(
    ("text", "utc", "offset"),
    [
        ("Mon, 14 May 2001 05:00:00 -0700 (PDT)", "2001-05-14T12:00:00", -420),
        ("14 May 2001 12:00:00 +0000", "2001-05-14T12:00:00", 0),
        ("13 May 2001 24:00:00 +0000", "2001-05-14T00:00:00", 0),
        ("Mon, 14 May 2001 07:00:00 EST5EDT", "2001-05-14T12:00:00", -300),
        ("Mon, 14 May 2001 17:30:00 +0530", "2001-05-14T12:00:00", 330),
        ("Mon, 14 May 2001 05:00:00 PDT", "2001-05-14T12:00:00", -420),
        ("Mon, 14 May 2001 06:00:00 CST", "2001-05-14T12:00:00", -360),
        ("Mon, 14 May 2001 12:00:00 GMT", "2001-05-14T12:00:00", 0),
        ("Mon, 14 May 2001 12:00:00 UT", "2001-05-14T12:00:00", 0),
        ("Mon, 14 May 2001 12:00:00 -0000", "2001-05-14T12:00:00", None),
        ("Mon, 14 May 2001 12:00:00 XYZ", "2001-05-14T12:00:00", None),
        ("Mon, 14 May 2001 12:00:00", "2001-05-14T12:00:00", None),
        ("Mon, 14 May 01 12:00 +0000", "2001-05-14T12:00:00", 0),
        ("Fri, 14 May 99 12:00:00 +0000", "1999-05-14T12:00:00", 0),
        ("Mon, 14 May 2001 12:00:00 +9999", "2001-05-14T12:00:00", None),
        ("Mon May 14 12:00:00 2001", "2001-05-14T12:00:00", None),
        ("Thu, 1 Jan 1970 00:00:00 +0100", "1969-12-31T23:00:00", 60),
        ("Sun, 29 Feb 2004 23:30:00 -0100", "2004-03-01T00:30:00", -60),
        ("2001-05-14T05:00:00-07:00", "2001-05-14T12:00:00", -420),
        ("2001-05-14T12:00:00Z", "2001-05-14T12:00:00", 0),
        ("2001-05-14T12:00:00", "2001-05-14T12:00:00", None),
        ("2001-05-14 12:00:00.900", "2001-05-14T12:00:00", None),
        ("2001-05-14", "2001-05-14T00:00:00", None),
        (" \t2001-05-14T12:00:00+00:00\r\n", "2001-05-14T12:00:00", 0),
        ("2001-01-01T00:00:00+23:59:59", "2000-12-31T00:00:01", None),
        ("1999/01/31", "1999-01-31T00:00:00", None),
        ("99/01/31", "1999-01-31T00:00:00", None),
        ("31.01.1999 10:00", "1999-01-31T10:00:00", None),
        ("03/04/2024", "2024-04-03T00:00:00", None),
        ("04/23/2024 9:30 PM", "2024-04-23T21:30:00", None),
        ("12:05 am 5 Mar 2024", "2024-03-05T00:05:00", None),
        ("5-Mar-2024 09:30:00 +0100", "2024-03-05T08:30:00", 60),
        ("Tuesday, 05-Mar-24 09:30:00 GMT", "2024-03-05T09:30:00", 0),
        ("Sunday, 31 January 1999", "1999-01-31T00:00:00", None),
        ("Tuesday, March 5th, 2024 9:30 AM", "2024-03-05T09:30:00", None),
        ("Tue, 5 Sept 2024 09.30.00 +0100", "2024-09-05T08:30:00", 60),
        ("2024-03-05 09:30:00 UTC", "2024-03-05T09:30:00", 0),
        ("2024-03-05 09:30:00.5 +0000 UTC m=+0.1", "2024-03-05T09:30:00", 0),
        ("2024-03-05T09:30:00.123456789Z", "2024-03-05T09:30:00", 0),
        ("Tue Mar 05 2024 09:30:00 GMT+0100 (CET)", "2024-03-05T08:30:00", 60),
        ("Tue, 5 Mar 2024 09:30 UTC+1", "2024-03-05T08:30:00", 60),
        ("Tue, 5 Mar 2024 09:30:00 +0100 (CET) (was soon)", "2024-03-05T08:30:00", 60),
        ("Tue Mar  5 09:30:00 PST 2024", "2024-03-05T17:30:00", -480),
        ("Tue, 06 Mar 101 09:30:00 +0100", "2001-03-06T08:30:00", 60),
        ("Tue, 06 Mar 49 09:30:00 +0000", "2049-03-06T09:30:00", 0),
        ("Tue, 06 Mar 50 09:30:00 +0000", "1950-03-06T09:30:00", 0),
        ("Tue, 5 Mar 2024 23:59:60 +0000", "2024-03-05T23:59:59", 0),
        ("5 Mar 2024 0930", "2024-03-05T09:30:00", None),
        ("Tue, 5 Mar 2024 0930 +0100", "2024-03-05T08:30:00", 60),
        ("Mar 5, 2024 093015 EST", "2024-03-05T14:30:15", -300),
        ("05/03/2024 0930", "2024-03-05T09:30:00", None),
        ("5 mars 2024 9h30", "2024-03-05T09:30:00", None),
        ("5 Mar 2024 09:30 (EST)", "2024-03-05T14:30:00", -300),
        ("Tue 5 Mar 09:30 2024 (MET)", "2024-03-05T08:30:00", 60),
        ("5 Mar 2024 09:30 +0100 (EST)", "2024-03-05T08:30:00", 60),
        ("5 Mar 2024 09:30 -0000 (EST)", "2024-03-05T09:30:00", None),
        ("5 Mar 2024 09:30 (no est known)", "2024-03-05T09:30:00", None),
        ("5 Mar 2024 9:30 AM Eastern Standard Time", "2024-03-05T14:30:00", -300),
        ("5 Jul 2024 09:30 (US Pacific Daylight Time)", "2024-07-05T16:30:00", -420),
        ("5 Mar 2024 09:30 W. Europe Standard Time", "2024-03-05T08:30:00", 60),
        ("5 Jul 2024 09:30 W. Europe Daylight Time", "2024-07-05T07:30:00", 120),
        ("5 Jul 2024 09:30 GMT Daylight Time", "2024-07-05T08:30:00", 60),
        ("5 Jul 2024 09:30 Central European Summer Time", "2024-07-05T07:30:00", 120),
        ("5 Mar 2024 09:30 Central European Time", "2024-03-05T08:30:00", 60),
        ("5 Jul 2024 09:30 Mitteleuropäische Sommerzeit", "2024-07-05T07:30:00", 120),
        ("5 Mar 2024 09:30 SA Pacific Standard Time", "2024-03-05T09:30:00", None),
        ("5 Mar 2024 09:30 Eastern Time (US & Canada)", "2024-03-05T09:30:00", None),
        ("989841600", "2001-05-14T12:00:00", None),
        ("989841600000", "2001-05-14T12:00:00", None),
        ("20010514", "2001-05-14T00:00:00", None),
        ("20010514120000", "2001-05-14T12:00:00", None),
    ],
)
def test_a_date_has_a_utc_time_and_an_offset(text: str, utc: str, offset: int | None) -> None:
    assert parse_date(text) == (int(datetime.fromisoformat(utc).replace(tzinfo=UTC).timestamp()), offset)


@pytest.mark.parametrize(
    ("text", "utc", "offset"),
    [
        ("Tue, 5 Mar 2024 09:30:00 0100", "2024-03-05T08:30:00", 60),
        ("2024-03-05 09:30:00 0100", "2024-03-05T08:30:00", 60),
        ("Tue, 5 Mar 2024 09:30:00 - 0500", "2024-03-05T14:30:00", -300),
        ("Tue, 5 Mar 2024 09:30:00 \u22120500", "2024-03-05T14:30:00", -300),
        ("Tue, 5 Mar 2024 09:30:00 \u20130500", "2024-03-05T14:30:00", -300),
        ("Tue, 5 Mar 2024 09:30:00 AEDT", "2024-03-04T22:30:00", 660),
        ("Tue, 5 Mar 2024 09:30:00 HST", "2024-03-05T19:30:00", -600),
        ("Tue, 5 Mar 2024 09:30:00 MSK", "2024-03-05T06:30:00", 180),
        ("5 Mar 2024 09:30 p.m.", "2024-03-05T21:30:00", None),
        ("5 Mar 2024 9:30 a. m.", "2024-03-05T09:30:00", None),
        ("Di, 5 Mrz 2024 09:30:00 +0100", "2024-03-05T08:30:00", 60),
        ("Dienstag, 5. März 2024 09:30", "2024-03-05T09:30:00", None),
        ("5 Okt 2024 10:00:00 +0200", "2024-10-05T08:00:00", 120),
        ("3 Dez 2024 10:00:00 +0100", "2024-12-03T09:00:00", 60),
        ("Sam, 5 Mai 2024 10:00:00 +0200 (MESZ)", "2024-05-05T08:00:00", 120),
        ("Lun, 5 Ago 2024 10:00:00 +0200", "2024-08-05T08:00:00", 120),
        ("Gio, 5 Dic 2024 10:00:00 +0100", "2024-12-05T09:00:00", 60),
        ("Vie, 5 Ene 2024 10:00:00 -0500", "2024-01-05T15:00:00", -300),
        ("Qui, 5 Set 2024 10:00:00 -0300", "2024-09-05T13:00:00", -180),
        ("Mar, 5 Avr 2024 10:00:00 +0200", "2024-04-05T08:00:00", 120),
        ("mar, 5 mar 2024 09:30:00 +0100", "2024-03-05T08:30:00", 60),
        ("mar, 9 apr 2024 09:30:00 +0200", "2024-04-09T07:30:00", 120),
        ("mardi 5 mars 2024 09:30", "2024-03-05T09:30:00", None),
        ("lun., 5 févr. 2024 à 09:30", "2024-02-05T09:30:00", None),
        ("jeu. 1 août 2024 09:30", "2024-08-01T09:30:00", None),
        ("5 de diciembre de 2024 9:30", "2024-12-05T09:30:00", None),
        ("qui, 5 dez 2024 09:30:00 -0300", "2024-12-05T12:30:00", -180),
        ("5 maart 2024", "2024-03-05T00:00:00", None),
        ("tor 5 okt 2023 09:30", "2023-10-05T09:30:00", None),
        ("5 października 2023", "2023-10-05T00:00:00", None),
        ("Вт, 5 мар 2024 09:30:00 +0300", "2024-03-05T06:30:00", 180),
        ("5 мая 2024 г. 09:30", "2024-05-05T09:30:00", None),
        ("2024年3月5日(火) 9:30", "2024-03-05T09:30:00", None),
        ("2024年3月5日 星期二 下午3:30", "2024-03-05T15:30:00", None),
        ("2024년 3월 5일 오후 3:30", "2024-03-05T15:30:00", None),
        ("２０２４年３月５日 ９:３０", "2024-03-05T09:30:00", None),
    ],
)
def test_local_and_broken_forms_of_a_date_are_read(text: str, utc: str, offset: int | None) -> None:
    assert parse_date(text) == (int(datetime.fromisoformat(utc).replace(tzinfo=UTC).timestamp()), offset)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "Mon, 0 May 2001 12:00:00 +0000",
        "Mon, 31 Feb 2001 12:00:00 +0000",
        "14 13 2001 12:00:00 +0000",
        "2001-13-01",
        "2001-02-30T12:00:00",
        "0000-01-01",
        "14 May 99999 12:00:00 +0000",
        "14 May 2001 25:00:00 +0000",
        "9999-12-31T23:59:59-23:59",
        "0001-01-01T00:00:00+23:59",
        "\0",
        "Monday",
        "10",
        "10:30",
        "May 5",
        "May 2001",
        "1.2.3",
        "20011399",
        "31/31/2024",
        "2024-03",
        "at 9 on 5 March 2024",
        "5 März April 2024",
        "March 5, April 2024",
        "mar, 5 mar apr 2024",
        "5 jui 2024",
        "5 Mar 2024 09:30 2025",
        "2024年3月",
        "Mon, 14 May 2001 12:00:00 +" + "9" * 5000,
        "14 May " + "9" * 5000,
    ],
)
def test_an_invalid_date_or_offset_is_none(text: str) -> None:
    sent, offset = parse_date(text)
    assert offset is None
    assert sent is None or "+999" in text


@settings(QUICK)
@given(st.one_of(st.text(), st.from_regex(r"[0-9]{1,2} [A-Z][a-z]{2} [0-9]{1,6} [0-9]{2}:[0-9]{2} [+-][0-9]{1,6}")))
def test_parsing_a_date_never_fails(text: str) -> None:
    to_datetime(*parse_date(text))


@settings(QUICK)
@given(
    st.datetimes(
        datetime.fromisoformat("1970-01-01"),
        datetime.fromisoformat("9000-01-01"),
        timezones=st.integers(-1439, 1439)
        .map(lambda minutes: st.just(timezone(timedelta(minutes=minutes))))
        .flatmap(lambda zone: zone),
    )
)
def test_mail_and_iso_dates_survive_a_round_trip(moment: datetime) -> None:
    offset = moment.utcoffset()
    assert offset is not None
    moment = moment.replace(microsecond=0)
    expected = (int(moment.timestamp()), round(offset.total_seconds() / 60))
    assert parse_date(moment.isoformat()) == expected
    assert parse_date(format_datetime(moment)) == expected
    shown = to_datetime(*parse_date(moment.isoformat()))
    assert shown is not None
    assert (shown, shown.utcoffset()) == (moment, offset)
