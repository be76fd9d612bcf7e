"""Catalogue of error codes: the cause and the remedy of each.

Each package lists the codes that it raises in its own `errors.toml`:

    ["mail.unreadable-mbox"]
    cause = "A file that was named as an mbox does not begin with a `From ` line."
    remedy = "Name an mbox file, or use the prefix of the format that the file has."

`python -m gumshoe.error_codes` prints them as a page of Markdown, which is `docs/reference/errors.md`.
"""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import groupby

_PACKAGES = ("gumshoe", "gumshoe_pipelines")
_FILE = "errors.toml"


@dataclass(frozen=True)
class ErrorCode:
    """Entry of the catalogue. Cause and remedy are one or two sentences of Markdown each."""

    code: str
    cause: str
    remedy: str

    @property
    def area(self) -> str:
        """The part of the code before the dot, e.g. `mail`."""
        return self.code.partition(".")[0]


def load_error_codes() -> dict[str, ErrorCode]:
    """Return every code of the installed packages, sorted by code.

    Raises:
        ValueError: if two packages list the same code.
    """
    found: dict[str, ErrorCode] = {}
    for package in _PACKAGES:
        for file in _catalogues(files(package)):
            for code, entry in tomllib.loads(file.read_text(encoding="utf-8")).items():
                if code in found:
                    raise ValueError(f"{code} is listed twice")
                found[code] = ErrorCode(code, **entry)
    return dict(sorted(found.items()))


def _catalogues(directory: Traversable) -> Iterator[Traversable]:
    for each in directory.iterdir():
        if each.is_dir():
            yield from _catalogues(each)
        elif each.name == _FILE:
            yield each


def render_page() -> str:
    """Return the reference page of all codes in Markdown, with one section per area."""
    lines = [
        "# Error codes",
        "",
        "Every error of Gumshoe ends with a code in brackets. The code stays the same when the wording changes, so",
        "scripts should test it. `gumshoe explain CODE` prints an entry of this page. With `--json`, a command that",
        'fails prints `{"error": {"code": ..., "message": ..., "exit_status": ...}}`. The agent server sends the code',
        "in the `type` of its problem details (RFC 9457), as `urn:gumshoe:error:CODE`.",
    ]
    for area, codes in groupby(load_error_codes().values(), lambda each: each.area):
        lines += ["", f"## {area}"]
        for each in codes:
            lines += ["", f"### {each.code}", "", each.cause, "", f"**Remedy:** {each.remedy}"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(render_page(), end="")  # noqa: T201
