"""Strategies of random bytes: examples with random damage, and pieces of a format in random order."""

from collections.abc import Sequence

from hypothesis import strategies as st

NASTY_TEXTS = (
    "", " ", "\0", "\ud800", "\udfff", "\ufeff", "\u202e", "\u2028", "\r", "\n", "\r\n", "\t", "\x1b[31m", "é",
    "漢", "😀",
    "İ", "ß", "\u212a", "e\u0301", "\\", "'", '"', "`", "%", "%s", "{}", "${x}", "<", ">", "&amp;", "AND",
    "NEAR(", "*", "-", "(",
    '"""', "--", ";", "..", "/", "NULL", "None", "nan", "Infinity", "-0", "1e999", "9" * 30, "a" * 300,
    "[" * 300, "0x7f",
)  # fmt: skip
"""Texts that break parsers, query languages and encodings."""
NASTY_BYTES = (
    b"", b"\0", b"\xff", b"\xfe\xff", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\xc0\x80",
    b"\xf5\x80\x80\x80", b"\r", b"\n", b"\r\n",
    b"\x1b$B", b"\x80" * 8, b"\xff" * 8, b"\x7f\xff\xff\xff", b"\0" * 16, b"A" * 300, b"(" * 200, b"<" * 200,
    b'"', b"\\",
)  # fmt: skip


def texts(max_size: int = 20) -> st.SearchStrategy[str]:
    """Return short texts of any code points, lone surrogates included, and texts that break parsers."""
    return st.text(st.characters(), max_size=max_size) | st.sampled_from(NASTY_TEXTS)


def json_values(max_leaves: int = 8) -> st.SearchStrategy[object]:
    """Return values of JSON, with numbers and texts at the limits."""
    numbers = st.integers() | st.floats() | st.sampled_from([2**31, 2**53, 2**63, -(2**63) - 1, 10**400, -1, 0])
    return st.recursive(
        st.none() | st.booleans() | numbers | texts(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts(8), inner, max_size=4),
        max_leaves=max_leaves,
    )


@st.composite
def damaged(draw: st.DrawFn, examples: Sequence[bytes], pieces: Sequence[bytes] = (), most: int = 6) -> bytes:
    """Return an example after up to `most` random changes. `pieces` are inserted beside random bytes."""
    data = draw(st.sampled_from(examples))
    inserted = st.sampled_from([*NASTY_BYTES, *pieces]) | st.binary(max_size=8)
    for _ in range(draw(st.integers(0, most))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.sampled_from([0, 0, 1, 1, 2, 4, 8, 32, 200, 1 << 20])))
        match draw(st.sampled_from(["replace", "replace", "repeat", "copy", "flip"])):
            case "replace":
                new = draw(inserted)
            case "repeat":
                new = data[start:end] * draw(st.integers(2, 50))
            case "copy":
                source = draw(st.integers(0, len(data)))
                new = data[source : source + draw(st.integers(0, 200))]
            case _:
                new = bytes(each ^ draw(st.integers(1, 255)) for each in data[start : min(end, start + 4)])
                end = start + len(new)
        data = data[:start] + new + data[end:]
        if len(data) > 1 << 20:
            return data[: 1 << 20]
    return data


def joined(pieces: Sequence[bytes], max_size: int = 30) -> st.SearchStrategy[bytes]:
    """Return pieces of a format, and random bytes, in random order."""
    piece = st.sampled_from([*pieces, *pieces, *NASTY_BYTES]) | st.binary(max_size=6)
    return st.lists(piece, max_size=max_size).map(b"".join)
