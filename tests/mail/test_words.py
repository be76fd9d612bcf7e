"""Terms of texts and of keywords, and whether a keyword finds a text."""

# ruff: noqa: RUF001 - letters that look alike are what is tested

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gumshoe.mail.stems import Stemmer
from gumshoe.mail.words import MailAnalyzer, find_tokens, hash_term, normalize_word, split_tokens
from tests.cpu_time import limit_cpu

ANALYZER = MailAnalyzer()
CHARACTERS = st.sampled_from(
    [
        *"abAB 019,.'-_\n\u2019\u00a0\u202f\u00ad\u200b\u0301\u00e9\u00df\u00fc\u00b2\u00bd\u0660\uff11\uff0c",
        *"会议ひカーｶﾞ회의\u1112\u1160\u3164สวั\u0e4dक\u093f",
        *"①㎏ک",
        "123",
        "000",
        "USD",
        "eur",
    ]
)


def finds(text: str, keyword: str) -> bool:
    """Return True if the terms of a keyword, in one way to write it, stand in a text at the same distances."""
    found = ANALYZER.analyze(text)
    places = set(zip(found.terms.tolist(), found.positions.tolist(), strict=True))
    return any(
        all((term, start + offset) in places for term, offset in zip(query.terms, query.offsets, strict=True))
        for query in ANALYZER.list_alternatives(keyword)
        for start in range(found.tokens if query else 0)
    )


@pytest.mark.parametrize(
    ("text", "keyword"),
    [
        ("会议改到星期五下午三点", "星期五"),
        ("会议改到星期五下午三点", "会"),
        ("会议改到星\n期五", "星期五"),
        ("打ち合わせは金曜日の午後", "金曜日"),
        ("ｶﾞｽ料金", "ガス"),
        ("東京tower", "Tower"),
        ("회의가 금요일 오후로", "금요일"),
        ("회의가 금요일 오후로", "회의"),
        ("회의가 금요일 오후로", "금요일 오후"),
        ("\u1112\u116c\u110b\u1174\u1100\u1161", "회의"),
        ("พบกันวันศุกร์", "ศุกร์"),
        ("Your in\u00advoice num\u200bber", "invoice number"),
        ("Your invoice", "in\u00advoice"),
        ("in\u3164voice", "invoice"),
        ("Send an e\u2011mail", "e-mail"),
        ("Send an e-mail", "e\u2011mail"),
        ("I don\u2019t know", "don't"),
        ("Søren waits in the Parkstraße", "Soren"),
        ("Søren waits in the Parkstraße", "Soeren"),
        ("Søren waits in the Parkstraße", "PARKSTRASSE"),
        ("Parkstrasse", "parkstraße"),
        ("Müller", "Mueller"),
        ("Müller", "muller"),
        ("Mu\u0308ller", "Müller"),
        ("Łódź, Đorđe, Þór, Œuvre", "lodz dorde thor oeuvre"),
        ("Herr Mueller", "Müller"),
        ("Herr Muller", "Müller"),
        ("ueber Maenner und Guenther", "über Männer und Günther"),
        ("Tschuess", "Tschüß"),
        ("Soeren in Aarhus", "Søren in Århus"),
        ("Ｆｕｌｌ ﬁle", "full file"),
        ("㈱山田", "株"),
        ("5㎏ of ㎡", "kg of m2"),
        ("①Agenda ⑵Minutes", "1 Agenda 2 Minutes"),
        ("Ⓐ and ⓑ", "a and b"),
        ("№5", "No. 5"),
        ("№5", "5"),
        ("ЁЛКА", "елка"),
        ("İstanbul ısı", "istanbul isi"),
        ("مُحَمَّد", "محمد"),
        ("مـحمد", "محمد"),
        ("کتاب", "كتاب"),
        ("كتاب", "کتاب"),
        ("علی", "علي"),
        ("على", "علی"),
        ("مدرسة", "مدرسه"),
        ("أحمد", "احمد"),
        ("می\u200cروم", "ميروم"),
        ("שָׁלוֹם", "שלום"),
        ("The invoices were paid", "invoice"),
        ("The invoice was paid", "invoices"),
        ("It costs $298,000.00 in all", "298000"),
        ("It costs 298000", "298,000"),
        ("1.250.000 EUR", "1250000"),
        ("USD1,250", "1250"),
        ("USD1,250", "usd 1,250"),
        ("usd 1250", "USD1,250"),
        ("USD1250", "1,250"),
        ("1250EUR é", "1,250"),
        ("1250EUR", "1250 EUR"),
        ("EUR1.250,00", "1250"),
        ("CHF1'250.50 für Ö", "1250"),
        ("€1.250,00", "1,250.00"),
        ("US$1,250", "1250"),
        ("$1.5M", "1.5"),
        ("Rs1250", "1250"),
        ("PO4711", "4711"),
        ("v1.2.3", "1.2.3"),
        ("1'250'000", "1,250,000"),
        ("1\u202f250\u00a0kg", "1250"),
        ("Rs 12,50,000", "1250000"),
        ("٢٩٨٬٠٠٠", "298000"),
        ("２９８，０００", "298000"),
        ("about 250,000MW", "250000"),
        ("120 m² of carpet", "m2"),
        ("The price² is final", "price"),
        ("3½ hours", "½"),
        ("to be or not", "to be"),
        ("under_score", "score"),
        ("Send an e-mail", "email"),
        ("Send two e-mails", "email"),
        ("Send an email", "e-mail"),
        ("Send an E\u2011Mail – „sofort“", "email"),
        ("“on-line”", "online"),
        ("会议 e-mail", "email"),
        ("$1,250 by e-mail – and é", "email"),
        ("USD1,250 by e-mail", "email"),
        ("A follow up call", "follow-up call"),
        ("A followup call", "follow-up call"),
        ("A follow-up call", "followup call"),
        ("A new follow-up", "new followup"),
        ("A day-to-day plan", "day to day plan"),
        ("Shaquille O'Neal's shoes", "oneal"),
        ("Shaquille ONeal", "O\u2019Neal"),
        ("Shaquille O\u2019Neal", "O'Neal"),
        ("Made in the U.S.A.", "USA"),
        ("Made in the USA.", "U.S.A."),
        ("at 9 p.m. sharp", "9 PM"),
        ("J.P. Morgan", "JP Morgan"),
        ("Order ABC-123", "ABC123"),
        ("Order abc123", "ABC-123"),
        ("Call 713-853-4218.", "7138534218"),
        ("Call (713) 853-4218", "8534218"),
        ("Call 8534218", "853-4218"),
        ("on 2001-05-14", "20010514"),
        ("(re-sent)--e-mail--", "email"),
    ],
)
def test_a_keyword_finds_a_text(text: str, keyword: str) -> None:
    assert finds(text, keyword)


@pytest.mark.parametrize(
    ("text", "keyword"),
    [
        ("会议改到星期五下午", "星期六"),
        ("会。议", "会议"),
        ("회의 금요일", "의금"),
        ("invoice number", "number invoice"),
        ("1 250", "1250"),
        ("ด้าน", "ดาน"),
        ("कि", "की"),
        ("a b", ""),
        ("blue, does, goes, issued, value, queue, guest", "blu"),
        ("does", "dos"),
        ("guest", "gust"),
        ("queues", "quus"),
        ("AB12", "12"),
        ("a b", "--- !"),
        ("Tell us", "U.S."),
        ("pages 10-15", "1015"),
        ("I don't", "dont"),
        ("www.foo-bar.com", "foobar"),
        ("foo-bar@example.com", "foobar"),
        ("1,250-300,000", "250300"),
        ("a-b-c-d-e", "abcde"),
        ("e mail", "email"),
        ("e-\nmail", "email"),
        ("café-bar", "cafébar"),
    ],
)
def test_a_keyword_does_not_find_a_text(text: str, keyword: str) -> None:
    assert not finds(text, keyword)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("3,4 and 1,2,3", ["3", "4", "and", "1", "2", "3"]),
        ("12.05.2024", ["12", "05", "2024"]),
        ("v1.250.3 1.250.3", ["v1", "250", "3", "1", "250", "3"]),
        ("0.125", ["0", "125"]),
        ("192.168.100.200", ["192", "168", "100", "200"]),
        ("100.000.000.000", ["100.000.000.000"]),
        ("713.853.4218", ["713", "853", "4218"]),
        ("1,250,00", ["1", "250", "00"]),
        ("1,250.50", ["1,250", "50"]),
        ("2001,250", ["2001", "250"]),
        ("USD1,250 1250EUR EURO5", ["USD", "1,250", "1250", "EUR", "EURO5"]),
        ("USD1250EUR 1USD2,000 1,250USD5", ["USD", "1250EUR", "1USD2", "000", "1,250", "USD5"]),
        ("1250EURO XUSD1 Aug15 15Aug", ["1250EURO", "XUSD1", "Aug15", "15Aug"]),
        ("O'Brien", ["O", "Brien"]),
        ("e\u0301te\u0301", ["e\u0301te\u0301"]),
        ("ab\ue000cd", ["ab", "cd"]),
    ],
)
def test_tokens_stand_in_the_text(text: str, tokens: list[str]) -> None:
    assert split_tokens(text) == tokens
    assert split_tokens(text + " é") == [*tokens, "é"]


@given(st.lists(CHARACTERS).map("".join))
def test_positions_are_numbers_of_tokens(text: str) -> None:
    found = ANALYZER.analyze(text)
    tokens = [match[0] for match in find_tokens(text)]
    assert split_tokens(text) == tokens
    assert split_tokens(text + " USD5") == [*tokens, "USD", "5"]
    assert found.tokens == len(tokens)
    first = {position: term for term, position in zip(found.terms.tolist(), found.positions.tolist(), strict=True)}
    assert list(first) == sorted(first)
    for position, token in enumerate(tokens):
        terms = ANALYZER.analyze_query(token).terms
        assert not terms or (finds(token, token) and terms[0] in found.terms[found.positions == position].tolist())


@given(st.lists(CHARACTERS).map("".join))
def test_a_text_is_found_by_itself(text: str) -> None:
    assert finds(text, text) or not ANALYZER.analyze(text).terms.size


@given(st.text(st.characters(max_codepoint=127)))
def test_ascii_text_has_the_same_terms_among_other_text(text: str) -> None:
    alone, beside = ANALYZER.analyze(text), ANALYZER.analyze(text + " \u00e9 会")
    assert beside.terms.tolist()[: len(alone.terms)] == alone.terms.tolist()
    assert [token.lower() for token in split_tokens(text)] == split_tokens(text.lower())


def test_terms_are_digests_of_kind_and_text() -> None:
    assert ANALYZER.analyze("Invoices 1,000 会").terms.tolist() == [
        hash_term("w", "invoic"), hash_term("w", "1000"), hash_term("c", "会"),
    ]  # fmt: skip
    assert ANALYZER.analyze_query("会议室").terms == (hash_term("c", "会议"), hash_term("c", "议室"))
    assert hash_term("w", "invoic") == 13933986528046010992


def test_terms_do_not_depend_on_the_process() -> None:
    code = (
        "from gumshoe.mail.words import MailAnalyzer; print(MailAnalyzer().analyze('Søren 会议 paid').terms.tolist())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == str(ANALYZER.analyze("Søren 会议 paid").terms.tolist())


def test_another_language_has_other_stems() -> None:
    german = MailAnalyzer("de")
    assert german.analyze("Rechnungen").terms == german.analyze("Rechnung").terms
    assert Stemmer("zu").stem("invoices") == "invoices"


def test_long_tokens_only_lose_their_case() -> None:
    assert normalize_word("É" * 300) == "é" * 300


@pytest.mark.parametrize(
    "part",
    [
        "a",
        "1",
        "1,111,",
        "1,11,",
        "1.111.",
        "a\u0301\u0323",
        "\u200b",
        "111\u00a0",
        "会",
        "ก\u0e49\u0e38",
        "\u3164",
        "\uff9e",
        "'1",
        "USD1",
        "1USD,",
        "usd",
        "ue",
        "a-",
        "a-a ",
        "a.",
        "o'neil",
        "'a",
    ],
)
def test_hostile_text_takes_linear_time(part: str) -> None:
    with limit_cpu(6):
        text = part * (300_000 // len(part))
        ANALYZER.analyze(text)
        ANALYZER.analyze("é " + text)
