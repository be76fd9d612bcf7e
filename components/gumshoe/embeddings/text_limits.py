"""Shorten texts that a server rejects, because they may be too long for its model."""

MAX_CHARACTERS = 8_000
"""Characters of a text that are sent to a server. The rest is cut off."""
MAYBE_TOO_LONG = {400, 413, 422}
"""Status codes with which servers reject a text or a request that is too long, among other reasons."""
_MIN_CHARACTERS = 250  # a server that rejects such short texts does so for another reason than their length


def halve_limit(limit: int) -> int | None:
    """Return half of a limit in characters, at least 250, or None if it is not above that."""
    return max(limit // 2, _MIN_CHARACTERS) if limit > _MIN_CHARACTERS else None
