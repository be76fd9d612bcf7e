"""Refuse ambiguous requests, and text that cannot be stored or sent, before any route sees them.

Routes and tools can rely on it: no text of a request contains NUL or a lone surrogate, and there is only one value of a
header that decides something.
"""

import json
import re
from collections import Counter
from urllib.parse import unquote_to_bytes

from starlette.types import Scope

from gumshoe.serving.errors import RefusedRequestError
from gumshoe.text_checks import describe_bad_character, find_bad_texts

_SINGLE = (b"host", b"authorization", b"content-type", b"content-length", b"mcp-session-id")
"""Headers that a request may have only once: two proxies could read different ones."""
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
# A quick look at a body for what `find_bad_texts` finds: most have neither. UTF-16 and UTF-32 contain NUL.
_SUSPICIOUS = re.compile(rb"\\u(?:[dD][89a-fA-F]|0000)|\x00|\xed[\xa0-\xbf]")


def check_head(scope: Scope) -> None:
    """Check path, query and headers of a request.

    Raises:
        RefusedRequestError: if a header that must be single is repeated, `Host` is missing, something is not UTF-8 or
            contains NUL, or the path contains a control character.
    """
    count = Counter(name for name, _ in scope["headers"])
    for name in _SINGLE:
        if count[name] > 1:
            raise _malformed(f"There are {count[name]} headers {name.decode().title()}; send one.")
    if not count[b"host"] and scope["http_version"] != "1.0":
        raise _malformed("There is no header Host; send one.")
    path = unquote_to_bytes(scope.get("raw_path") or scope["path"].encode("utf-8", "replace"))
    _check_bytes(path, "The path")
    if _CONTROL.search(path):  # a route also matches its path with a line break at the end
        raise _malformed("The path contains a control character.")
    _check_bytes(unquote_to_bytes(scope["query_string"]), "The query")
    for name, value in scope["headers"]:
        _check_bytes(value, f"The header {name[:60].decode('latin-1').title()}")


def check_body(body: bytes) -> None:
    """Check the texts in a body of JSON. Routes report a body that is not JSON.

    Raises:
        RefusedRequestError: if a text or the name of a field contains NUL or a lone surrogate.
    """
    if _SUSPICIOUS.search(body):
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            return
        for path, fault in find_bad_texts(value):
            raise RefusedRequestError("serving.invalid-request", f"{path or 'the body'}: {fault}")


def _check_bytes(data: bytes, what: str) -> None:
    try:
        fault = describe_bad_character(data.decode())
    except UnicodeDecodeError as error:
        fault = f"byte {error.start + 1} is not UTF-8"
    if fault:
        raise _malformed(f"{what} is not valid text: {fault}.")


def _malformed(detail: str) -> RefusedRequestError:
    return RefusedRequestError("serving.malformed-request", detail)
