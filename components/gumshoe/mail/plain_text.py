"""Read the conventions of text in mail: flowed lines, enriched text, and signatures and encryption by PGP."""

import re

_QUOTES = re.compile(r">*")
_HASH_HEADERS = re.compile(r"(?:[A-Za-z-]{1,40}: [^\n]*\n)*\n?")
_RICH_COMMAND = re.compile(r"<(/?)([A-Za-z0-9-]{1,60})>")
_RICH_CHARACTERS = {"lt": "<", "nl": "\n", "np": "\n"}
_ENRICHED_COMMAND = re.compile(r"<<|<(/?)([A-Za-z0-9-]{1,60})>")
_ARMOR = re.compile(r"[A-Za-z0-9+/]{20}")
_SIGNED = "-----BEGIN PGP SIGNED MESSAGE-----"
_SIGNATURE = "-----BEGIN PGP SIGNATURE-----"
_SIGNATURE_END = "-----END PGP SIGNATURE-----"
_ARMORED = {"MESSAGE": "[encrypted: PGP]", "PUBLIC KEY BLOCK": "[PGP public key]", "PRIVATE KEY BLOCK": "[PGP key]"}
_ARMOR_LINES = re.compile(
    r"(?:[> ]*+(?:[A-Za-z-]{1,40}: [^\n]*+|=?[A-Za-z0-9+/]{4}={0,2}|[A-Za-z0-9+/]{20,}={0,2}|)\n)*+"
)


def unwrap_flowed(text: str, *, delete_space: bool) -> str:
    """Join the lines of `format=flowed` text to paragraphs (RFC 3676). `delete_space` is its parameter DelSp."""
    paragraphs: list[str] = []
    open_depth = -1  # quote depth of the paragraph that goes on in the next line
    pieces: list[str] = []
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        quotes = _QUOTES.match(line)
        depth = len(quotes[0]) if quotes else 0
        content = line[depth:].removeprefix(" ")
        is_signature = content == "-- "
        if pieces and (depth != open_depth or is_signature):
            paragraphs.append("".join(pieces))
            pieces = []
        if not pieces:
            pieces.append(f"{'>' * depth} " if depth else "")
        is_flowed = content.endswith(" ") and not is_signature
        pieces.append(content[:-1] if is_flowed and delete_space else content)
        open_depth = depth
        if not is_flowed:
            paragraphs.append("".join(pieces))
            pieces = []
    if pieces:
        paragraphs.append("".join(pieces))
    return "\n".join(paragraphs)


def convert_enriched(text: str) -> str:
    """Return the text of `text/enriched` (RFC 1896): one line end is a space, and each further one a line end."""
    pieces: list[str] = []
    is_hidden, position = False, 0
    lines = re.sub(r"\n(\n*)", lambda found: found[1] or " ", text.replace("\r\n", "\n"))
    for command in _ENRICHED_COMMAND.finditer(lines):
        if not is_hidden:
            pieces.append(lines[position : command.start()] + ("<" if command[0] == "<<" else ""))
        position = command.end()
        if (command[2] or "").lower() == "param":  # e.g. a color
            is_hidden = not command[1]
    return "".join([*pieces, "" if is_hidden else lines[position:]])


def convert_rich(text: str) -> str:
    """Return the text of `text/richtext` (RFC 1341): a line end is a space, and commands write line ends."""
    pieces: list[str] = []
    is_hidden, position = False, 0
    lines = text.replace("\r\n", "\n").replace("\n", " ")
    for command in _RICH_COMMAND.finditer(lines):
        name = command[2].lower()
        if not is_hidden:
            pieces.append(lines[position : command.start()])
            pieces.append("\n" if name == "paragraph" else _RICH_CHARACTERS.get(name, ""))
        position = command.end()
        if name == "comment":
            is_hidden = not command[1]
    return "\n".join(map(str.strip, "".join([*pieces, "" if is_hidden else lines[position:]]).split("\n")))


def strip_pgp(text: str) -> str:
    """Return a text without PGP signatures, and with a note in place of each encrypted block or key."""
    if "-----BEGIN PGP " not in text:
        return text
    text = _open_signed(text.replace("\r\n", "\n"))
    for kind, note in _ARMORED.items():
        text = _replace_blocks(text, f"-----BEGIN PGP {kind}-----", f"-----END PGP {kind}-----", note)
    return text


def _open_signed(text: str) -> str:
    """Return a text with the content of signed blocks, without their headers, signatures and escaped dashes."""
    pieces, position = [], 0
    while (start := text.find(_SIGNED, position)) >= 0 and (signature := text.find(_SIGNATURE, start)) >= 0:
        line_end = text.find("\n", start, signature)
        headers = _HASH_HEADERS.match(text, line_end + 1, signature) if line_end >= 0 else None
        content = text[headers.end() if headers else start + len(_SIGNED) : signature]
        pieces += [text[position:start], *(line.removeprefix("- ") for line in content.splitlines(keepends=True))]
        end = text.find(_SIGNATURE_END, signature)
        position = end + len(_SIGNATURE_END) if end >= 0 else len(text)
    return "".join([*pieces, text[position:]])


def _replace_blocks(text: str, begin: str, end: str, note: str) -> str:
    pieces, position = [], 0
    while (start := text.find(begin, position)) >= 0:
        stop = text.find(end, start)
        if stop < 0:  # cut off, or only mentioned
            armor = _ARMOR_LINES.match(text + "\n", start + len(begin) + 1)
            if armor and _ARMOR.search(armor[0]):
                pieces += [text[position:start], note, "\n"]
                position = min(armor.end(), len(text))
            break
        pieces += [text[position:start], note]
        position = stop + len(end)
    return "".join([*pieces, text[position:]])
