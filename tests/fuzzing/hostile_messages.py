"""Messages that are made to break a reader of mail: to exhaust it, to hide text from it, or to get lost.

They are made by code and always the same: `python -m tests.fuzzing.hostile_messages DIRECTORY` writes them as files,
e.g. to try another program.
"""

import sys
from pathlib import Path

from tests.fuzzing import hostile_contents, hostile_structures  # noqa: F401 - they register messages
from tests.fuzzing.hostile_registry import MAKERS

WITHOUT_TEXT = {"zero bytes", "only spaces", "NUL bytes", "random bytes"}
"""Messages without headers and text. They are counted as unreadable."""


def names() -> list[str]:
    """Return the names of all messages."""
    return list(MAKERS)


def make(name: str) -> bytes:
    """Return a message."""
    return MAKERS[name]()


def main(directory: str) -> None:
    """Write all messages to a directory."""
    place = Path(directory)
    place.mkdir(parents=True, exist_ok=True)
    for name in names():
        (place / f"{name.replace(' ', '-')}.eml").write_bytes(make(name))


if __name__ == "__main__":
    main(sys.argv[1])
