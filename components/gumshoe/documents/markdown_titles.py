"""Split the front matter from Markdown, and find the titles of Markdown and of other plain text."""

import json
import re
import tomllib
from typing import Any

_YAML = re.compile(r"\A---[ \t]*\n(.*?)\n(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.S)
_TOML = re.compile(r"\A\+\+\+[ \t]*\n(.*?)\n\+\+\+[ \t]*(?:\n|\Z)", re.S)
_YAML_NULL = {"", "~", "null", "Null", "NULL"}
_MAX_FRONT_MATTER = 50_000  # characters; YAML takes a second for these
_MAX_HEAD = 20_000  # characters in which a title is looked for
_HTML_HEADING = re.compile(r"<h[1-6]\b[^<>]*>(.{1,2000}?)</h[1-6]\s*>", re.I | re.S)
_TAG = re.compile(r"<[^<>]*>")
_COMMENT = re.compile(r"<!--.*?-->", re.S)
_ATTRIBUTES = re.compile(r"\s*\{[#.:][^{}]*\}\s*$")  # behind a heading, as in Pandoc and MkDocs
_UNDERLINE = re.compile(r"([=\-~^\"'#*+_`:.])\1{2,}[ \t]*")


def split_front_matter(text: str) -> tuple[dict[str, Any], str]:
    """Return the front matter of a Markdown file in YAML, TOML or JSON, and the rest of the text.

    Values of YAML are kept as written. Without valid front matter, all of it is text.
    """
    for pattern, load in ((_YAML, _load_yaml), (_TOML, tomllib.loads)):
        found = pattern.match(text)
        if found is not None and len(found[1]) <= _MAX_FRONT_MATTER:
            return _try(load, found[1], text, found.end())
    if text.startswith("{\n"):
        return _split_json(text)
    return {}, text


def _try(load: Any, front: str, text: str, end: int) -> tuple[dict[str, Any], str]:
    try:
        loaded = load(front)
    except (ValueError, OverflowError, RecursionError):
        return {}, text
    return (loaded, text[end:]) if isinstance(loaded, dict) else ({}, text)


def _load_yaml(front: str) -> Any:
    import yaml

    from gumshoe.yaml_text import PlainTextLoader

    try:
        loaded = yaml.load(front, PlainTextLoader)  # noqa: S506 - it creates only strings, lists and mappings
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    if not isinstance(loaded, dict):
        return loaded
    return {key: value for key, value in loaded.items() if not isinstance(value, str) or value not in _YAML_NULL}


def _split_json(text: str) -> tuple[dict[str, Any], str]:
    try:
        loaded, end = json.JSONDecoder().raw_decode(text[:_MAX_FRONT_MATTER])
    except (ValueError, RecursionError):
        return {}, text
    is_front = isinstance(loaded, dict) and text[end : end + 1] in {"\n", ""} and text[end:].strip()
    return (loaded, text[end:].lstrip("\n")) if is_front else ({}, text)


def find_markdown_title(text: str) -> str:
    """Return the text of the first heading in Markdown, or "". Headings in code, quotes and lists do not count."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark")
    state = parser.disable("inline").parse(_cut(_YAML.sub("", text, count=1)))  # it may be invalid, and still there
    for place, token in enumerate(state):
        if token.level:
            continue
        if token.type == "heading_open" and (title := _to_plain_text(state[place + 1].content)):
            return title
        if token.type == "html_block" and (found := _HTML_HEADING.search(_COMMENT.sub("", token.content))):
            title = " ".join(_TAG.sub(" ", found[1]).split())
            if title:
                return title
    return ""


def _to_plain_text(content: str) -> str:
    """Return the text of a line of Markdown without its marks, e.g. the text of links."""
    from markdown_it import MarkdownIt

    content = _ATTRIBUTES.sub("", content[:2_000])
    (token,) = MarkdownIt("commonmark").parseInline(content)
    kinds = {"text", "code_inline", "softbreak", "image"}
    shown = "".join(
        " " if each.type == "softbreak" else each.content for each in token.children or () if each.type in kinds
    )
    return " ".join(shown.split())


def find_underlined_title(text: str) -> str:
    """Return the title of reStructuredText or plain text: its first line, if the next one underlines it, or ""."""
    lines = [line.rstrip() for line in _cut(text).split("\n")]
    while lines and (not lines[0] or lines[0].startswith((".. ", ":"))):  # comments, labels and fields stand above
        del lines[0]
    if len(lines) > 2 and _is_underline(lines[0], lines[1].strip()) and _is_underline(lines[2], lines[1].strip()):
        return lines[1].strip()
    if len(lines) > 1 and lines[0] and not lines[0][0].isspace() and _is_underline(lines[1], lines[0]):
        return lines[0].strip()
    return ""


def _is_underline(line: str, title: str) -> bool:
    return bool(title) and _UNDERLINE.fullmatch(line) is not None and 2 * len(line) >= len(title)


def _cut(text: str) -> str:
    """Return the beginning of a text, in whole lines if there are any."""
    if len(text) <= _MAX_HEAD:
        return text
    return text[: text.rfind("\n", 0, _MAX_HEAD) + 1] or text[:_MAX_HEAD]
