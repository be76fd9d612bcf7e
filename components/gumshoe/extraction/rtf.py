"""Extract the text of RTF (Rich Text Format), in time that grows linearly with its size."""

import codecs
import re
from dataclasses import dataclass, field

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


@dataclass(slots=True)
class _State:
    """State of one group: it is inherited by the groups inside."""

    hidden: bool = False
    skip: int = 1
    """Number of bytes that follow a Unicode character for programs without Unicode."""


@dataclass(slots=True)
class _RtfReader:
    codec: str = "cp1252"
    text: list[str] = field(default_factory=list)
    pending: bytearray = field(default_factory=bytearray)
    """Bytes in the document's charset that are not decoded yet."""
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
            self.text.append(self.pending.decode(self.codec, "replace"))
            self.pending.clear()

    def control(self, word: bytes, number: int | None) -> None:
        """Obey one control word."""
        if word in _SYMBOLS:
            self.add(_SYMBOLS[word])
        elif word in _HIDDEN_GROUPS:
            self.states[-1].hidden = True
        elif word == b"shptxt":  # the text of a box, in groups that are hidden
            self.states[-1].hidden = False
        elif word == b"htmlrtf":  # text that repeats HTML for programs without it
            self.flush()
            self.states[-1].hidden = number != 0
        elif word == b"ansicpg" and number:
            self._set_codec(f"cp{number}")
        elif word == b"uc":
            self.states[-1].skip = max(number or 0, 0)
        elif word == b"u" and number is not None:
            self.add(_to_character(number))
            self.to_skip = self.states[-1].skip

    def _set_codec(self, name: str) -> None:
        try:
            self.codec = codecs.lookup("utf-8" if name == "cp65001" else name).name
        except LookupError:
            return


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
                reader.states.append(_State(current.hidden, current.skip))
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
