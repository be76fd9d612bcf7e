"""Extract the text of RTF (Rich Text Format), in time that grows linearly with its size."""

import codecs
import re
from dataclasses import dataclass, field, replace

_TOKEN = re.compile(rb"\\([a-z]{1,32})(-?\d{1,10})? ?|\\'([0-9a-fA-F]{2})|\\(.)|([{}])|[\r\n]+|([^\\{}\r\n]+)", re.S)
# Groups that hold no text of the document.
_HIDDEN_GROUPS = frozenset(
    b"aftncn aftnsep aftnsepc author bkmkend bkmkstart buptim category colorschememapping colortbl comment company "
    b"creatim datafield datastore doccomm docvar factoidname falt fchars ffdeftext ffentrymcr ffexitmcr ffformat "
    b"ffhelptext ffl ffname ffstattext file filetbl fldinst fldtype fname fontemb fontfile fonttbl ftncn ftnsep "
    b"ftnsepc g generator gridtbl hl hlfr hlinkbase hlloc hlsrc hsv info keycode keywords latentstyles lchars "
    b"levelnumbers leveltext lfolevel linkval list listlevel listname listoverride listoverridetable listpicture "
    b"listtable listtext manager mmath nextfile nonesttables objalias objclass objdata object objname objsect "
    b"objtime oldcprops operator panose password passwordhash pgp pgptbl picprop pict pn pnseclvl pntext pntxta "
    b"pntxtb printim private propname propid protusertbl pxe revtbl revtim rsidtbl rxe shp shpgrp shpinst shppict "
    b"shprslt sp staticval stylesheet subject sv svb tc template themedata title ts tsrowd tx ud upr userprops "
    b"wgrffmtfilter windowcaption writereservation writereservhash xe xform xmlattrname xmlattrvalue xmlclose "
    b"xmlname xmlnstbl xmlopen".split()
)
_SYMBOLS = {
    b"par": "\n", b"sect": "\n\n", b"page": "\n\n", b"line": "\n", b"row": "\n", b"tab": "\t", b"cell": "\t",
    b"emdash": "\u2014", b"endash": "\u2013", b"bullet": "\u2022", b"lquote": "\u2018", b"rquote": "\u2019",
    b"ldblquote": "\u201c", b"rdblquote": "\u201d",
}  # fmt: skip
_MAX_DEPTH = 1000
_CHARSETS = {b"mac": "mac_roman", b"pc": "cp437", b"pca": "cp850"}  # of documents without a code page
# Code pages of the charsets of fonts. Others, such as 0 (ANSI), 1 (default) and 2 (symbols), have the document's.
_FONT_CHARSETS = {
    77: "mac_roman", 78: "cp932", 79: "cp949", 80: "cp936", 81: "cp950", 85: "mac_greek", 86: "mac_turkish",
    88: "mac_latin2", 89: "mac_cyrillic", 128: "cp932", 129: "cp949", 130: "johab", 134: "cp936", 136: "cp950",
    161: "cp1253", 162: "cp1254", 163: "cp1258", 177: "cp1255", 178: "cp1256", 179: "cp1256", 180: "cp1256",
    181: "cp1255", 186: "cp1257", 204: "cp1251", 222: "cp874", 238: "cp1250", 254: "cp437",
}  # fmt: skip


@dataclass(slots=True)
class _State:
    """State of one group: it is inherited by the groups inside."""

    hidden: bool = False
    skip: int = 1
    """Number of bytes that follow a Unicode character for programs without Unicode."""
    font: int | None = None
    """Number of the font of the text. None for the default font."""
    lists_fonts: bool = False
    """True in the table of fonts, in which `font` is the one that is described."""


@dataclass(slots=True)
class _RtfReader:
    codec: str = "cp1252"
    """Charset of text in fonts without a charset."""
    font_codecs: dict[int, str] = field(default_factory=dict)
    default_font: int = 0
    text: list[str] = field(default_factory=list)
    pending: bytearray = field(default_factory=bytearray)
    """Bytes in the charset of the present font that are not decoded yet."""
    states: list[_State] = field(default_factory=lambda: [_State()])
    to_skip: int = 0

    def add(self, text: str) -> None:
        self.flush()
        if not self.states[-1].hidden:
            self.text.append(text)

    def add_bytes(self, data: bytes) -> None:
        data, self.to_skip = data[self.to_skip :], max(self.to_skip - len(data), 0)
        if not self.states[-1].hidden:
            self.pending += data

    def flush(self) -> None:
        if self.pending:
            font = self.states[-1].font
            codec = self.font_codecs.get(self.default_font if font is None else font, self.codec)
            self.text.append(self.pending.decode(codec, "replace"))
            self.pending.clear()

    def control(self, word: bytes, number: int | None) -> None:
        """Obey one control word."""
        if word in _SYMBOLS:
            self.add(_SYMBOLS[word])
        elif word in _HIDDEN_GROUPS:
            self.states[-1].hidden = True
            self.states[-1].lists_fonts |= word == b"fonttbl"
        elif word == b"shptxt":  # the text of a box, in groups that are hidden
            self.states[-1].hidden = False
        elif word == b"htmlrtf":  # text that repeats HTML for programs without it
            self.flush()
            self.states[-1].hidden = number != 0
        elif word == b"uc":
            self.states[-1].skip = max(number or 0, 0)
        elif word == b"u" and number is not None:
            self.add(_to_character(number))
            self.to_skip = self.states[-1].skip
        else:
            self._choose_charset(word, number)

    def _choose_charset(self, word: bytes, number: int | None) -> None:
        """Obey a control word if it is about fonts or charsets."""
        state = self.states[-1]
        if word in _CHARSETS:
            self.codec = _CHARSETS[word]
        elif word == b"ansicpg":
            self.codec = _find_codec(number) or self.codec
        elif word == b"deff":
            self.default_font = number or 0
        elif word in (b"f", b"plain"):
            self.flush()
            state.font = number if word == b"f" else None
        elif state.lists_fonts and state.font is not None and word in (b"fcharset", b"cpg"):
            codec = _FONT_CHARSETS.get(number or 0) if word == b"fcharset" else _find_codec(number)
            if codec:
                self.font_codecs[state.font] = codec


def _find_codec(page: int | None) -> str | None:
    """Return the codec of a code page. None if Python has none."""
    try:
        return codecs.lookup("utf-8" if page == 65001 else f"cp{page}").name
    except LookupError:
        return None


def _to_character(number: int) -> str:
    """Return the character of a UTF-16 code unit, which RTF writes as a signed number."""
    code = number + 0x10000 if number < 0 else number
    return chr(code) if 0 < code < 0x10000 else ""


def extract_rtf(data: bytes) -> str:
    """Return the text of RTF. What is not RTF gives its own text."""
    reader = _RtfReader()
    for match in _TOKEN.finditer(data):
        word, number, code, escaped, brace, plain = match.groups()
        if plain:
            reader.add_bytes(plain)
        elif word:
            reader.control(word, int(number) if number else None)
        elif code:
            reader.add_bytes(bytes.fromhex(code.decode()))
        elif brace == b"{":
            if len(reader.states) < _MAX_DEPTH:
                current = reader.states[-1]
                reader.flush()
                reader.states.append(replace(current))
        elif brace == b"}":
            reader.flush()
            if len(reader.states) > 1:
                reader.states.pop()
        elif escaped == b"*":
            reader.flush()
            reader.states[-1].hidden = True
        elif escaped:
            reader.add(
                {b"~": " ", b"_": "-", b"-": "", b"\n": "\n", b"\r": "\n"}.get(escaped, escaped.decode("latin-1"))
            )
    reader.flush()
    joined = "".join(reader.text)
    return joined.encode("utf-16", "surrogatepass").decode("utf-16", "replace").strip()
