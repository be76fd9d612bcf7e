"""Bytes to text: charsets that are declared, missing or wrong, and HTML."""

# ruff: noqa: RUF001 - letters that look alike are what is tested

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gumshoe.mail.text import decode, decode_html, html_to_text
from tests.cpu_time import limit_cpu

QUICK = settings(derandomize=True, deadline=None, database=None)
RUSSIAN = "Привет, как дела? Отчёт готов, жду ответа до пятницы."
CHINESE = "你好,会议改到星期五下午三点。"
JAPANESE = "会議は金曜日の午後三時に変更されました。"
MULTI_BYTE = ["utf-8", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-7", "gb18030"]


@pytest.mark.parametrize(
    ("text", "charset"),
    [
        ("Grüße aus Köln", "iso-8859-1"),
        ("“Café” — 5 €", "windows-1252"),
        ("Zażółć gęślą jaźń", "iso-8859-2"),
        (RUSSIAN, "koi8-r"),
        (RUSSIAN, "windows-1251"),
        (CHINESE, "gb2312"),
        (CHINESE, "gb18030"),
        ("會議改到星期五下午三點。", "big5"),
        (JAPANESE, "shift_jis"),
        (JAPANESE, "euc-jp"),
        (JAPANESE, "iso-2022-jp"),
        ("회의가 금요일로 변경되었습니다", "euc-kr"),
        (CHINESE, "hz"),
        (RUSSIAN, "utf-16"),
        ("plain ASCII", "utf-16-le"),
        (CHINESE, "utf-16-be"),
        ("plain ASCII", "utf-32"),
        ("héllo + wörld", "utf-7"),
        ("Grüße", " 'UTF-8' "),
    ],
)
def test_text_is_decoded_with_its_declared_charset(text: str, charset: str) -> None:
    assert decode(text.encode(charset.strip("' ")), charset) == text


@settings(QUICK)
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\ufeff\0")), charset=st.sampled_from(MULTI_BYTE))
def test_any_text_in_a_multibyte_charset_survives_a_round_trip(text: str, charset: str) -> None:
    data = text.encode(charset)
    if charset.startswith("utf-16-") and b"\0" not in data:
        return  # ambiguous bytes, covered by the test of text wrongly declared as UTF-16
    assert decode(data, charset) == text


@settings(QUICK)
@given(text=st.text(st.characters(max_codepoint=127)), charset=st.sampled_from([None, "us-ascii", "latin-1", "utf-8"]))
def test_any_ascii_text_survives_a_round_trip(text: str, charset: str | None) -> None:
    assert decode(text.encode(), charset) == text


@settings(QUICK)
@given(data=st.binary(), charset=st.one_of(st.none(), st.text(), st.sampled_from([*MULTI_BYTE, "hz", "koi8-r"])))
def test_decoding_never_fails(data: bytes, charset: str | None) -> None:
    assert isinstance(decode(data, charset), str)
    assert isinstance(decode_html(data, charset), str)


@pytest.mark.parametrize("declared", ["iso-8859-1", "us-ascii", "windows-1252", "koi8-r", "macintosh", "cp850", None])
@pytest.mark.parametrize("text", ["Grüße", "naïve “quotes” — dash", RUSSIAN, CHINESE])
def test_utf_8_wins_over_a_declared_single_byte_charset(text: str, declared: str | None) -> None:
    assert decode(text.encode(), declared) == text


@pytest.mark.parametrize("declared", ["us-ascii", "utf-8", "iso-8859-1", "x-unknown", "utf-7", None])
def test_wrongly_declared_windows_1252_is_decoded(declared: str | None) -> None:
    assert decode("Café “quoted” — 5 €".encode("cp1252"), declared) == "Café “quoted” — 5 €"


@pytest.mark.parametrize(("narrow", "text"), [("gb2312", "镕基"), ("shift_jis", "①髙"), ("euc-kr", "똠방각하")])
def test_characters_of_a_successor_charset_are_decoded(narrow: str, text: str) -> None:
    successor = {"gb2312": "gb18030", "shift_jis": "cp932", "euc-kr": "cp949"}[narrow]
    assert decode(text.encode(successor), narrow) == text


@pytest.mark.parametrize(
    "declared",
    [
        "unicode_escape",
        "raw_unicode_escape",
        "idna",
        "punycode",
        "undefined",
        "base64",
        "rot13",
        "zlib",
        "hex",
        "no such charset",
        "\0",
        "é",
        "x" * 10_000,
        "",
        None,
    ],
)
def test_an_unknown_charset_is_ignored(declared: str | None) -> None:
    assert decode(rb"C:\new\u0041", declared) == r"C:\new\u0041"
    assert decode("Grüße".encode(), declared) == decode("Grüße".encode("cp1252"), declared) == "Grüße"


@pytest.mark.parametrize(
    ("text", "charset", "declared"),
    [
        ("日本語①", "cp932", "windows-31j"),
        ("日本語", "cp932", "x-sjis"),
        ("电子邮件", "gbk", "x-gbk"),
        ("电子邮件", "gbk", "GB_2312-80"),
        ("การประชุม", "cp874", "windows-874"),
        ("שלום", "iso8859-8", "iso-8859-8-i"),
        ("läuft", "cp850", "cp-850"),
        ("läuft", "mac-roman", "x-mac-roman"),
        # Another charset of the same language is declared.
        ("メール、日本語", "cp932", "iso-2022-jp"),
        ("メール、日本語", "euc_jp", "iso-2022-jp"),
        ("メール、日本語", "cp932", "euc-jp"),
        ("한국어 메일", "cp949", "iso-2022-kr"),
        ("电子邮件", "gb18030", "hz-gb-2312"),
        ("會議改到星期五下午三點，請帶上鑰匙", "big5", "gb2312"),
        ("会議は金曜日の午後三時です", "euc_jp", "shift_jis"),
        # Windows adds characters to the declared charset, or programs misspell it.
        ("Zażółć gęślą jaźń – „piątek”", "cp1250", "iso-8859-2"),
        ("Toplantı – “cuma”", "cp1254", "iso-8859-9"),
        ("Η συνάντηση – “τρεις”", "cp1253", "iso-8859-7"),
        ("הפגישה – “שלוש”", "cp1255", "iso-8859-8"),
        ("การประชุม – “วันศุกร์”", "cp874", "tis-620"),
        ("Встреча", "cp1251", "win-1251"),
        ("Встреча", "koi8-r", "koi8-ru"),
        ("회의", "cp949", "ks_c_5601-1989"),
    ],
)
def test_misnamed_charsets_are_recognized(text: str, charset: str, declared: str) -> None:
    assert decode(text.encode(charset), declared) == text


@pytest.mark.parametrize("declared", [None, "us-ascii", "utf-8", "iso-8859-1"])
def test_japanese_text_without_its_charset_is_decoded(declared: str | None) -> None:
    assert decode(JAPANESE.encode("iso-2022-jp"), declared) == JAPANESE
    assert decode(b"\x1b[1mbold\x1b[0m", declared).endswith("bold\x1b[0m")


@pytest.mark.parametrize("declared", [None, "us-ascii", "iso-8859-1", "windows-1252", "utf-8", "x-unknown"])
@pytest.mark.parametrize(
    ("text", "charset"),
    [
        ("请查收附件中的合同，谢谢！", "gbk"),
        ("會議改到星期五下午三點，請帶上鑰匙", "big5"),
        ("会議は金曜日の午後三時です。鍵を持ってきてください", "cp932"),
        ("회의는 금요일 오후 세 시입니다", "cp949"),
        ("Встреча в пятницу в три часа, возьмите ключи", "cp1251"),
        ("Встреча в пятницу в три часа, возьмите ключи", "iso8859-5"),
        ("Η συνάντηση είναι την Παρασκευή στις τρεις", "cp1253"),
        ("الاجتماع يوم الجمعة الساعة الثالثة", "cp1256"),
    ],
)
def test_the_charset_of_text_that_is_not_western_is_guessed(text: str, charset: str, declared: str | None) -> None:
    assert decode(text.encode(charset), declared) == text


@pytest.mark.parametrize("declared", [None, "us-ascii", "iso-8859-1", "utf-8"])
@pytest.mark.parametrize(
    "text",
    [
        "Übergrößenträger? Ääkkönen öööö!",
        "“«Où êtes-vous ?»” – à l’été…",
        "————————————————\nñandú",
        "ÀÉÎÕÜ" + " x" * 9,
    ],
)
def test_western_text_is_not_guessed(text: str, declared: str | None) -> None:
    assert decode(text.encode("cp1252"), declared) == text


def test_the_charset_of_long_text_is_guessed() -> None:
    text = " ".join([RUSSIAN] * 5)
    assert decode(text.encode("koi8-r")) == text
    assert decode((CHINESE * 20).encode("gb18030")) == CHINESE * 20


@pytest.mark.parametrize("declared", ["utf-8", "iso-8859-1", None])
def test_a_few_broken_characters_are_tolerated(declared: str | None) -> None:
    whole = RUSSIAN.encode()
    assert decode(whole[: whole.index("ж".encode()) + 1], declared) == RUSSIAN[: RUSSIAN.index("ж")] + "\ufffd"
    assert decode(whole + b" \xff", declared) == RUSSIAN + " \ufffd"


def test_broken_characters_in_a_stateful_charset_are_tolerated() -> None:
    broken = JAPANESE.encode("iso-2022-jp").replace(b"0l", b"\x7f\x7f") + b"\x1b$B-!\x1b(B"  # NEC's circled 1
    assert decode(broken, "iso-2022-jp").startswith(JAPANESE)


@pytest.mark.parametrize("declared", ["utf-16", "utf-16le", "utf-32"])
@pytest.mark.parametrize("text", ["plain ASCII!", "Grüße, naïve"])
def test_text_wrongly_declared_as_utf_16_is_decoded(text: str, declared: str) -> None:
    assert decode(text.encode(), declared) == text


def test_japanese_text_of_windows_in_iso_2022_jp_is_decoded() -> None:
    data = b"\x1b$B4A;z-!-j-b\x1b(B end \x1b(I1234\x1b(B\n\x1b$B4A;z\x1b(J"
    assert decode(data, "iso-2022-jp") == "漢字①㈱№ end ｱｲｳｴ\n漢字"
    assert decode(b"\x1b$B-", "iso-2022-jp") == ""
    assert "text" in decode(b"\x1b$B-!\x1b$Z text \x1b", "iso-2022-jp")


def test_truncated_utf_16_is_decoded() -> None:
    assert decode("\ufeffThe lease.".encode("utf-16-le") + b"x", "utf-16") == "The lease.\ufffd"


def test_a_byte_order_mark_is_removed() -> None:
    assert decode(b"\xef\xbb\xbfText", "utf-8") == decode(b"\xef\xbb\xbfText") == "Text"
    assert decode("Grüße".encode("utf-8-sig"), "iso-8859-1") == "Grüße"


QUOTED = "https%3A%2F%2Fexample.com%2Fa"
HERE, SECURE = "here <www.example.com/a>", "here <https://example.com/a>"


def lines(html: str) -> list[str]:
    return [" ".join(line.split()) for line in html_to_text(html).split("\n") if line.strip()]


def test_html_is_laid_out_in_lines() -> None:
    assert lines("<p>First<br>second</p><div>third</div><ul><li>one</li><li>two</li></ul>") == [
        "First",
        "second",
        "third",
        "• one",
        "• two",
    ]
    assert lines("<b>bold</b> and <i>italic</i>, one line") == ["bold and italic, one line"]


def test_table_rows_are_lines() -> None:
    shown = lines("<table><tr><th>Deal</th><th>Price</th></tr><tr><td>A-17</td><td>$4.25</td></tr></table>")
    assert len(shown) == 2
    assert shown[0].split() == ["Deal", "Price"]
    assert shown[1].split() == ["A-17", "$4.25"]


def test_entities_are_decoded() -> None:
    assert lines("<p>Fish &amp; chips &lt; 5&nbsp;&euro; &#8212; caf&eacute; &#x4f60;</p>") == [
        "Fish & chips < 5 € — café 你"
    ]


def test_scripts_styles_and_comments_are_removed() -> None:
    html = "<head><title>T</title><style>p{color:red}</style><script>var x='secret'</script></head>"
    shown = html_to_text(f"<html>{html}<body><!-- hidden note --><p>Shown</p><script>more()</script></body></html>")
    assert "Shown" in shown
    assert not {word for word in ("color", "secret", "hidden", "more()") if word in shown}


@pytest.mark.parametrize(
    "meta",
    [
        '<meta charset="koi8-r">',
        "<META CHARSET=koi8-r>",
        '<meta http-equiv="Content-Type" content="text/html; charset=koi8-r">',
    ],
)
def test_the_charset_declared_in_html_is_used(meta: str) -> None:
    data = f"<html><head>{meta}</head><body>{RUSSIAN}</body></html>".encode("koi8-r")
    assert RUSSIAN in decode_html(data)
    assert RUSSIAN in decode_html(data, "koi8-r")


def test_a_wrong_utf_16_declaration_in_html_is_ignored() -> None:
    assert decode_html('<meta charset="utf-16"><p>Grüße</p>'.encode()).strip() == "Grüße"


def test_an_xml_declaration_is_removed() -> None:
    data = '<?xml version="1.0" encoding="UTF-8"?><html xmlns="x"><body><p>Grüße</p></body></html>'.encode()
    assert decode_html(data).strip() == "Grüße"


@pytest.mark.parametrize("html", ["", " \n", "<html></html>", "<!-- -->", "<img src='cid:1'>", "<", "<p", "&"])
def test_empty_html_gives_no_text(html: str) -> None:
    assert html_to_text(html).strip() in {"", "<", "&"}


def test_malformed_html_gives_its_text() -> None:
    assert lines("just text") == ["just text"]
    assert lines("<p>one<p>two<b>three") == ["one", "twothree"]


@pytest.mark.parametrize("tag", ["div", "table><tr><td", "blockquote", "span", "font"])
def test_deeply_nested_html_is_fast(tag: str) -> None:
    with limit_cpu(10):
        assert "bottom" in html_to_text(f"<{tag}>" * 5000 + "bottom")


@pytest.mark.parametrize("declared", ["gb2312", "gbk", "big5", "shift_jis", "euc-jp", "euc-kr", "iso-2022-jp"])
@pytest.mark.parametrize("text", [CHINESE, JAPANESE, "회의가 금요일로 변경되었습니다", "Grüße aus Köln"])
def test_utf_8_wins_over_a_wrongly_declared_multi_byte_charset(text: str, declared: str) -> None:
    assert decode(text.encode(), declared) == text


def test_text_with_a_utf_16_byte_order_mark_is_decoded() -> None:
    assert decode("Grüße".encode("utf-16")) == decode("Grüße".encode("utf-16"), "us-ascii") == "Grüße"


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ('Join <a href="https://meet.example.com/j/93817">here</a>.', "Join here <https://meet.example.com/j/93817>."),
        ("<a href='mailto:help@example.com?subject=x'>Write</a>", "Write <help@example.com>"),
        ("<a\nclass=b HREF = https://example.com/?a=1&amp;b=2 >x</a>", "x <https://example.com/?a=1&b=2>"),
        ('<a href="https://www.example.com/">example.com</a>', "example.com"),
        ('<a href="mailto:ann@example.com">Ann (ann@example.com)</a>', "Ann (ann@example.com)"),
        ('<a href="//example.com/a">here</a>', "here <//example.com/a>"),
        ('<a href="www.example.com/a">here</a> <a href="www.example.com">example.com</a>', HERE + " example.com"),
        (f'<a href="https://nam02.safelinks.protection.outlook.com/?url={QUOTED}&amp;data=05%7C">here</a>', SECURE),
        (f'<a href="https://eu1.safelinks.protection.outlook.com/ap/w-59/?data=1&url={QUOTED}">here</a>', SECURE),
        (f'<a href="https://www.google.com/url?sa=D&amp;q={QUOTED}&amp;usg=x">here</a>', SECURE),
        ('<a href="https://urldefense.com/v3/__https://example.com/a__;!!Ab!x$">here</a>', SECURE),
        ('<a href="https://www.google.com/url?q=javascript%3Ax">here</a>', "here"),
        ('<a href="https://example.com/a"><img src=x alt=Logo></a>', ""),
        ('<a href="#top">top</a> <a name=x>y</a> <a href="javascript:x()">z</a> <a href="cid:1">c</a>', "top y z c"),
        ('<a href="https://example.com/a">not closed', "not closed"),
        (f'<a href="https://example.com/a?{"x" * 500}">long</a>', "long <https://example.com/a>"),
        (f'<a href="https://example.com/{"x" * 500}">l</a>', f"l <https://example.com/{'x' * 180}…>"),
    ],
)
def test_the_targets_of_links_stay_in_the_text(html: str, text: str) -> None:
    assert html_to_text(html).strip() == text


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("10<sup>9</sup> cells", "10^9 cells"),
        ("10<SUP class=x><b>-3</b></SUP> m", "10^-3 m"),
        ("2<sup>n</sup>", "2^n"),
        ("1<sup>st</sup> of May", "1st of May"),
        ("H<sub>2</sub>O", "H2O"),
    ],
)
def test_raised_numbers_stay_apart(html: str, text: str) -> None:
    assert html_to_text(html).strip() == text


def test_invisible_padding_is_removed() -> None:
    padding = "&#847;&zwnj;&nbsp;&#8199;&shy;" * 100
    shown = html_to_text(f"<div>Receipt{padding}</div><p>Your in&shy;voice num&#8203;ber\ufeff is 7731.</p>")
    assert shown.split() == ["Receipt", "Your", "invoice", "number", "is", "7731."]


@pytest.mark.parametrize("text", ["می‌خواهم", "क्‍ष", "👨‍👩‍👧", "❤️"])
def test_joiners_stay_where_they_are_needed(text: str) -> None:
    assert html_to_text(f"<p>a\u200cb {text}\u200c</p>").strip() == f"ab {text}"


@pytest.mark.parametrize(
    "hidden",
    [
        "hidden",
        'style="display:none"',
        "style='color:red; DISPLAY: none'",
        'style="display :none !important"',
        'style="max-height:0;overflow:hidden"',
        'style="max-height: 0px; opacity: 0"',
        'style="mso-hide:all"',
    ],
)
def test_hidden_elements_are_removed_unless_there_is_nothing_else(hidden: str) -> None:
    assert html_to_text(f"<div {hidden}>preheader</div><p>Shown</p>").strip() == "Shown"
    assert html_to_text(f"<div {hidden}>All</div>").strip() == "All"


@pytest.mark.parametrize(
    "piece", ['<a href="', "<a ", '<a x href="y" ', "<sup>", "<sup ", "\xa0 ", "<a href=x>", "<!--"]
)
def test_odd_html_is_fast(piece: str) -> None:
    with limit_cpu(10):
        html_to_text(piece * 50_000)
        html_to_text("<a" + piece[2:] * 50_000)
