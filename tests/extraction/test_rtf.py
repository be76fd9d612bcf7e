"""RTF: each font may have a charset of its own."""

import pytest

from gumshoe.extraction.rtf import extract_rtf


def escape(text: str, codec: str) -> bytes:
    r"""Return text as RTF writes it in a charset: `\'cf` for each byte."""
    return "".join(f"\\'{byte:02x}" for byte in text.encode(codec)).encode()


@pytest.mark.parametrize(
    ("charset", "codec", "text"),
    [
        (204, "cp1251", "Договор аренды"),
        (161, "cp1253", "Συμφωνία"),
        (238, "cp1250", "Žluťoučký kůň"),
        (162, "cp1254", "İğneli şiş"),
        (177, "cp1255", "שלום"),
        (178, "cp1256", "عقد"),
        (186, "cp1257", "Šķēršļi"),
        (222, "cp874", "สัญญา"),
        (128, "cp932", "契約ソフト"),
        (129, "cp949", "계약"),
        (134, "cp936", "合同"),
        (136, "cp950", "合約"),
        (77, "mac_roman", "Grüße"),
    ],
)
def test_text_has_the_charset_of_its_font(charset: int, codec: str, text: str) -> None:
    fonts = rb"{\fonttbl{\f0\fswiss\fcharset0 Arial;}{\f1\froman\fcharset%d{\*\falt x}Times;}}" % charset
    document = rb"{\rtf1\ansi\ansicpg1252\deff0%s Gr\'fc\'dfe {\f1 %s} Gr\'fc\'dfe\par\f1 %s}"
    assert extract_rtf(document % (fonts, escape(text, codec), escape(text, codec))) == f"Grüße {text} Grüße\n{text}"


PEACE = escape("мир", "cp1251")
ARIAL = rb"{\f0\fcharset0 Arial;}"


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (
            rb"{\rtf1\ansi\deff1{\fonttbl%s{\f1\fcharset204 B;}}%s \f0 \'fc\plain %s}" % (ARIAL, PEACE, PEACE),
            "мир üмир",
        ),
        (rb"{\rtf1\ansi{\fonttbl\f0\fcharset0 A;\f1\fcharset204 B;}\f1 %s\f0 \'fc}" % PEACE, "мирü"),
        (rb"{\rtf1\ansi{\fonttbl{\f5\fcharset1\cpg1251 A;}}\f5 %s}" % PEACE, "мир"),
        (
            rb"{\rtf1\ansi\ansicpg1251{\fonttbl%s{\f2\fcharset2 Symbol;}}%s\f2 %s\f9 %s}" % (ARIAL, *[PEACE] * 3),
            "мир" * 3,
        ),
        (rb"{\rtf1\ansi\ansicpg1252{\fonttbl{\f1\fcharset204 A;}}{\stylesheet{\s1\f1 x;}}\'fc}", "ü"),
        (rb"{\rtf1\ansi{\fonttbl{\f1\fcharset204 A;}}\f1\u1084 \'ec\u1080?%s}" % PEACE[-4:], "мир"),
        (rb"{\rtf1\mac\ansicpg10000 Gr\'9f\'a7e}", "Grüße"),
        (rb"{\rtf1\pc Gr\'81\'e1e}", "Grüße"),
        (rb"{\rtf1\ansi{\fonttbl{\f1\fcharset204\cpg99999 A;}}\fcharset161\f1 %s}" % PEACE, "мир"),
    ],
    ids=[
        "default font",
        "table without groups",
        "code page of a font",
        "charset of the document",
        "font of a style",
        "Unicode",
        "Macintosh",
        "DOS",
        "unknown code page",
    ],
)
def test_the_present_font_decides(document: bytes, expected: str) -> None:
    assert extract_rtf(document) == expected
