"""Parse JSON from outside, and refuse what would fail later, where nobody can tell its source any more; escape JSON.

Python's parser accepts text that cannot be stored (see `text_checks`), numbers that JSON does not have, and values that
are nested too deeply to be written again.
"""

import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

from gumshoe.text_checks import find_bad_texts

MAX_DEPTH = 200
"""Maximum depth of nested lists and objects."""
# A quick look for what `find_bad_texts` finds: most JSON has neither.
_SUSPICIOUS = re.compile(r"\\u(?:[dD][89a-fA-F]|0000)|[\x00\ud800-\udfff]")


class InvalidJsonError(ValueError):
    """Report text that is not JSON, or that contains values which cannot be stored. The message says why."""


def load_json(
    data: bytes | str,
    *,
    is_recorded: bool = False,
    object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """Return the value of a JSON document. Bytes are UTF-8, with or without a byte order mark.

    With `is_recorded`, texts may contain NUL and numbers may be NaN or infinite, such as what a model sampled and its
    log-probabilities. `object_pairs_hook` is as for `json.loads`.

    Raises:
        InvalidJsonError: if it is not JSON, is nested more than `MAX_DEPTH` deep, or contains NaN, an infinite number,
            NUL or a lone surrogate.
    """
    try:
        text = data.decode("utf-8-sig") if isinstance(data, bytes) else data
        hooks: dict[str, Any] = {} if is_recorded else {"parse_constant": _refuse_constant, "parse_float": _parse_float}
        value = json.loads(text, object_pairs_hook=object_pairs_hook, **hooks)
    except (ValueError, RecursionError) as error:
        raise InvalidJsonError(str(error)) from None
    if _is_deep(value):
        raise InvalidJsonError(f"it is nested more than {MAX_DEPTH} levels deep")
    if _SUSPICIOUS.search(text):
        for path, fault in find_bad_texts(_remove_nul(value) if is_recorded else value):
            raise InvalidJsonError(f"{path}: {fault}" if path else fault)
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _parse_float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def _remove_nul(value: Any) -> Any:
    """Return a value of JSON without NUL in its texts. It is not nested deeply."""
    if isinstance(value, str):
        return value.replace("\0", "")
    if isinstance(value, list):
        return [_remove_nul(each) for each in value]
    if isinstance(value, dict):
        return {_remove_nul(name): _remove_nul(each) for name, each in value.items()}
    return value


def _is_deep(value: Any) -> bool:
    """Return True if a value of JSON is nested more than `MAX_DEPTH` deep."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            inner
            for each in level
            if isinstance(each, list | dict)
            for inner in (each.values() if isinstance(each, dict) else each)
            if isinstance(inner, list | dict)
        ]
        if not level:
            return False
    return True


def escape_unprintable(text: str) -> str:
    """Return JSON with escapes for all characters that would change how a terminal or an editor shows it.

    Line breaks between values stay.
    """
    return "\n".join(line if line.isprintable() else _escape_line(line) for line in text.split("\n"))


def _escape_line(line: str) -> str:
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in line)
