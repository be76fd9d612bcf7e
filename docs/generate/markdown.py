"""Write Markdown that GitHub and MkDocs show alike."""

import html
import re
from collections.abc import Iterable, Iterator, Sequence


def code(text: object) -> str:
    """Return text as code, also in a table. Markdown has no way to write `|` in code there that works everywhere."""
    shown = str(text)
    if "|" in shown or "`" in shown:
        return f"<code>{html.escape(shown, quote=False).replace('|', '&#124;')}</code>"
    return f"`{shown}`"


def prose(text: str) -> str:
    """Return text as one line for a table: addresses are links, and names in capitals or with `<` are not markup."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(part if part.startswith("`") else _escape(part) for part in parts)


def _escape(text: str) -> str:
    escaped = re.sub(r"([|*<])", r"\\\1", text)
    return re.sub(r"(?<![<(\[])(https?://[^\s),;]*[^\s),;.:])", r"<\1>", escaped)


def sentence(text: str) -> str:
    """Return a description as a sentence: with a capital letter and a full stop."""
    shown = prose(text)
    first = shown[:1].upper() if re.match(r"[a-z][a-z'-]*[ ,.;]", shown) else shown[:1]
    return first + shown[1:] + ("" if not shown or shown.endswith((".", "!", "?")) else ".")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table, with an empty line before and after."""
    yield ""
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def anchor(name: str) -> str:
    """Return an invisible target for links, e.g. `train-settings.md#optimizer.beta`."""
    return f'<a id="{name}"></a>'


def page(title: str, *parts: str | Iterable[str]) -> str:
    """Return a page. Each part is a paragraph, or lines."""
    lines = [f"# {title}", ""]
    for part in parts:
        lines += [part, ""] if isinstance(part, str) else [*part, ""]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"
