"""Mask secrets in text that is logged, printed as an error, reported or stored.

`redact` finds credentials by their form (user and password of any URL, signed URLs, credential headers, values of
fields such as `api_key`, keys and tokens of known formats) and by their value: those of environment variables such as
AWS_SECRET_ACCESS_KEY, and those passed to `register_secret`. All errors of Gumshoe, all log records and all tracebacks
of uncaught exceptions pass through it, so that no caller has to remember it. Mail, questions and answers do not.
"""

import base64
import html
import json
import logging
import os
import re
import sys
import threading
import traceback
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote

from gumshoe import credential_patterns as patterns

MASK = "***"
"""Text in place of a secret. It may stand in a URL."""

_USER_SCHEMES = ("imap:", "imaps:", "ssh:")  # a name without a password says which mailbox or account is meant
_MIN_PART = 6  # characters of a password in a URL that is searched for in the rest of its text
_MAX_PASSWORDS = 100  # of one text that are searched for in the rest of it, so that a hostile one takes no longer
_MIN_VALUE = 8  # characters of a value that is searched for; shorter ones may be ordinary words
_ORDINARY = {"password", "anonymous", "disabled", "required", "optional"}  # placeholders that are no secrets
_MAX_NAMES, _MAX_NAME_LENGTH = 4096, 64  # of fields that are remembered, and characters of each
_registered: set[str] = set()
_cached: tuple[dict[Any, Any], set[str], list[str]] | None = None
"""Environment and registered secrets, and the values that follow from them."""


def redact(text: object) -> str:
    """Return text with all credentials masked.

    >>> redact("GET http://ann:pw@vllm:8000/v1?token=abc failed")
    'GET http://***@vllm:8000/v1?token=*** failed'
    """
    return _redact(str(text), _secret_values())


def _redact(text: str, secrets: list[str]) -> str:
    """Return text with these secrets masked, and all credentials of a known form."""
    for value in secrets:
        text = text.replace(value, MASK)
    if not patterns.NO_SEPARATORS.fullmatch(text):
        text = _mask_named(text)
    return patterns.KNOWN_FORMS.sub(MASK, text)


def _mask_named(text: str) -> str:
    """Return a text with the credentials masked that follow a name, e.g. that of a field."""
    if "//" in text or "\\/" in text:
        text = _mask_user_info(text)
    if "%40" in text:
        text = patterns.ENCODED_USER_INFO.sub(rf"\g<name>{MASK}", text)
    for form in patterns.NAMED:
        text = form.sub(rf"\g<name>{MASK}", text)
    return _mask_fields(text)


def _mask_user_info(text: str) -> str:
    """Mask user and password in URLs, and the password elsewhere in the text: libraries quote parts of a URL."""
    passwords: set[str] = set()

    def mask(match: re.Match[str]) -> str:
        _, colon, password = match[0][len(match["name"]) : -1].partition(":")
        if not colon and match["name"].lower().startswith(_USER_SCHEMES):
            return match[0]
        passwords.update(
            each for each in (password, unquote(password), *re.split("[/@?#]", password)) if len(each) >= _MIN_PART
        )
        return f"{match['name']}{MASK}@"

    found = patterns.USER_INFO.sub(mask, text)
    for each in sorted(passwords, key=len, reverse=True)[:_MAX_PASSWORDS]:
        found = found.replace(each, MASK)
    return found


def _mask_fields(text: str) -> str:
    """Mask the values of fields, headers and variables whose name says that they are secret."""
    parts, done = list[str](), 0
    for match in patterns.FIELD.finditer(text):
        if match.start() >= done and (end := _find_secret_end(text, match)) > match.end():
            parts += [text[done : match.end()], MASK]
            done = end
    return patterns.OPTION.sub(_mask_option, "".join([*parts, text[done:]]))


def _mask_option(match: re.Match[str]) -> str:
    return f"{match['name']}{MASK}" if _is_secret_name(match["option"]) else match[0]


def _find_secret_end(text: str, match: re.Match[str]) -> int:
    """Return where the secret value of a field ends, or its beginning if it is not secret."""
    field, begin = match["field"], match.end()
    if text.startswith("\\", match.start() - 1) and match.start() and not _is_secret_name(field):
        field = field[1:]  # of an escaped line break
    if not _is_secret_name(field) or patterns.PLACEHOLDER.match(text, begin):
        return begin
    name, opened = _normalize(field), match["open"] or ""
    whole = patterns.TO_QUOTE.get(opened.removeprefix("b"))
    if name.endswith("authorization"):
        return _find_authorization_end(text, begin, whole or patterns.LINE)
    if name.endswith("cookie"):
        found = patterns.COOKIES.match(text, begin)
        return found.end() if found else begin
    if match["mark"] == ":" and not opened:
        if block := patterns.BLOCK.match(text, begin):
            return block.end()
        if name in patterns.PLAIN_NAMES:  # e.g. "token: it has expired"
            return begin
        found = patterns.WORD.match(text, begin)
        is_prose = not name.endswith(("password", "passphrase")) and found is not None and found[0].isalpha()
        return begin if found is None or is_prose else found.end()
    found = (whole or patterns.WORD).match(text, begin)
    return found.end() if found else begin


def _is_secret_name(name: str) -> bool:
    """Return True if values under this name are secret."""
    return _is_short_secret_name(name) if len(name) <= _MAX_NAME_LENGTH else _match_secret_name(name)


@lru_cache(maxsize=_MAX_NAMES)
def _is_short_secret_name(name: str) -> bool:
    return _match_secret_name(name)


def _match_secret_name(name: str) -> bool:
    return bool(patterns.SECRET_NAME.fullmatch(_normalize(name)))


def _normalize(name: str) -> str:
    suffixed = patterns.ENV_SUFFIX.fullmatch(name)
    words = patterns.WORD_BREAK.sub("_", suffixed[1] if suffixed else name)
    return words.lower().replace("-", "_").replace(".", "_")


def _find_authorization_end(text: str, begin: int, whole: re.Pattern[str]) -> int:
    """Return where the credentials of an Authorization header end. `whole` matches the rest of the header."""
    if patterns.SEVERAL.match(text, begin) and (found := whole.match(text, begin)):
        return found.end()
    credentials = patterns.AUTHORIZATION.match(text, begin)
    if credentials is None or patterns.PLACEHOLDER.match(credentials["token"]):
        return begin
    return credentials.end()


def redact_json(value: Any) -> Any:
    """Return JSON-like data with all credentials masked: in each text, and the values of fields such as `password`.

    >>> redact_json({"servers": ["http://ann:pw@vllm:8000"], "api_key": "abc", "max_tokens": 5})
    {'servers': ['http://***@vllm:8000'], 'api_key': '***', 'max_tokens': 5}
    """
    return _redact_json(value, _secret_values())


def _redact_json(value: Any, secrets: list[str]) -> Any:
    if isinstance(value, str):
        return _redact(value, secrets)
    if isinstance(value, Mapping):
        return {
            _redact(str(name), secrets): _mask_texts(each)
            if _has_secret(_find_name(value, name), each)
            else _redact_json(each, secrets)
            for name, each in value.items()
        }
    if isinstance(value, list | tuple):
        before = ["", *value[:-1]]
        return [
            MASK if isinstance(each, str) and _is_secret_option(option) else _redact_json(each, secrets)
            for option, each in zip(before, value, strict=False)
        ]
    return value


def _find_name(fields: Mapping[Any, Any], field: Any) -> str:
    """Return the name of a field. For the value of a container's environment variable, it is the variable's name."""
    variable = fields.get("name") if field == "value" and isinstance(fields["value"], str) else None
    return str(variable or field)


def _has_secret(name: str, value: Any) -> bool:
    return _is_secret_name(name) and (isinstance(value, str) or _normalize(name) not in patterns.PLAIN_NAMES)


def _is_secret_option(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("--") and _is_secret_name(value)


def _mask_texts(value: Any) -> Any:
    """Return JSON-like data with a mask in place of each text that is not empty."""
    if isinstance(value, str):
        return MASK if value and not patterns.PLACEHOLDER.match(value) else value
    if isinstance(value, Mapping):
        return {redact(name): _mask_texts(each) for name, each in value.items()}
    return [_mask_texts(each) for each in value] if isinstance(value, list | tuple) else value


def find_credentials(value: Any, place: str = "") -> list[str]:
    """Return the places of credentials in JSON-like data, e.g. `rollouts.servers.0`, in their order.

    Credentials are found by their form, and by the name of their field, e.g. `api_key`. Names such as `secret` do not
    count, because the value may be the name of a Kubernetes Secret.
    """
    if isinstance(value, str):
        return [place] if redact(value) != value else []
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    places: list[str] = []
    for name, each in items:
        inner = f"{place}.{name}" if place else str(name)
        field = _find_name(value, name) if isinstance(value, Mapping) else ""
        is_secret = (
            _is_secret_name(field) and _normalize(field) not in patterns.PLAIN_NAMES and _mask_texts(each) != each
        )
        places += [inner] if is_secret else find_credentials(each, inner)
    return places


def register_secret(value: str) -> None:
    """Mask this value from now on, e.g. a password from a file. Values of less than 8 characters are ignored."""
    if len(value) >= _MIN_VALUE:
        _registered.add(value)


def _secret_values() -> list[str]:
    """Return the known secrets, the longest first, so that no part of one remains.

    They are computed again only if the environment or the registered secrets have changed, because every log line needs
    them. To read all variables of `os.environ` would take longer than to compare the dictionary in it.
    """
    global _cached
    environment = getattr(os.environ, "_data", None) or dict(os.environ)
    if _cached is None or _cached[0] != environment or _cached[1] != _registered:
        _cached = dict(environment), set(_registered), _find_secret_values()
    return _cached[2]


def _find_secret_values() -> list[str]:
    found = _registered | {
        value.strip() for name, value in os.environ.items() if patterns.SECRET_VARIABLE.fullmatch(name.upper())
    }
    for value in os.environ.values():  # e.g. a proxy
        found |= (
            {match[0][:-1].partition(":")[2] for match in patterns.PASSWORD.finditer(value)} if "@" in value else set()
        )
    secret = {each for each in found if len(each) >= _MIN_VALUE and each not in _ORDINARY}
    return sorted({form for each in secret for form in _find_spellings(each)}, key=len, reverse=True)


def _find_spellings(value: str) -> set[str]:
    """Return a secret as it is, and as it stands in URLs, in JSON, in HTML and in Kubernetes' Secrets."""
    coded = base64.b64encode(value.encode(errors="surrogateescape")).decode().rstrip("=")
    found = {value, coded, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    found |= {html.escape(value, quote=False), html.escape(value)}
    found.add(html.escape(value).replace("&#x27;", "&#39;").replace("&quot;", "&#34;"))  # as Jinja writes quotes
    return found | {quote(value, safe=kept, errors="surrogateescape") for kept in ("", "/")}


class RedactedRecord(logging.LogRecord):
    """A log record whose message and traceback are redacted, whatever handler writes it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.exc_info and self.exc_info[0] is not None:
            self.exc_text = redact("".join(traceback.format_exception(*self.exc_info)).rstrip("\n"))

    def getMessage(self) -> str:  # noqa: N802 - logging calls it
        """Return the message with its arguments, redacted."""
        return redact(super().getMessage())


class _SafeFormatter(logging.Formatter):
    """Format a record for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record, which may quote mail and servers, without escape sequences."""
        return escape_control_characters(super().format(record))


def escape_control_characters(text: object) -> str:
    """Return text that is safe to show in a terminal, with control characters written out."""
    return "".join(map(_make_visible, str(text)))


def _make_visible(character: str) -> str:
    if character in "\n\t" or character.isprintable():
        return character
    if unicodedata.category(character) in {"Zs", "Cf"}:  # unusual spaces; invisible marks, which can reverse text
        return " " if character.isspace() else ""
    return f"\\x{ord(character):02x}"


def install() -> None:
    """Redact all log records of this process, and the tracebacks of its uncaught exceptions.

    Records that no handler takes are written without escape sequences.

    Hooks that another program has set, e.g. a debugger, stay.
    """
    if logging.getLogRecordFactory() is logging.LogRecord:
        logging.setLogRecordFactory(RedactedRecord)
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_SafeFormatter())
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = print_traceback
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = _print_thread_traceback


def print_traceback(
    kind: type[BaseException], error: BaseException, trace: Any, write: Callable[[str], object] | None = None
) -> None:
    """Print an uncaught exception on standard error as Python does, with credentials masked."""
    text = redact("".join(traceback.format_exception(kind, error, trace)))
    if write is not None:
        write(text)
    elif sys.stderr is not None:
        sys.stderr.write(text)


def _print_thread_traceback(args: Any) -> None:
    if args.exc_type is not SystemExit:
        name = args.thread.name if args.thread else "?"
        print_traceback(args.exc_type, args.exc_value, args.exc_traceback, lambda text: _write_thread(name, text))


def _write_thread(name: str, text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"Exception in thread {name}:\n{text}")
