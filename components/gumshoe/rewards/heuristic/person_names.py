"""Compare names of people: nicknames and initials."""

from functools import lru_cache

from nicknames import NickNamer

_NOT_ALIKE = frozenset({frozenset({"bill", "robert"}), frozenset({"bill", "fred"})})  # in the data, and not in use


@lru_cache(maxsize=1)
def _namer() -> NickNamer:
    return NickNamer()


@lru_cache(maxsize=16384)
def is_nickname(one: str, other: str) -> bool:
    """Return True if one given name, in lower case, is a short form of the other, e.g. "jeff" of "jeffrey"."""
    if frozenset((one, other)) in _NOT_ALIKE:
        return False
    namer = _namer()
    return other in namer.nicknames_of(one) or one in namer.nicknames_of(other)
