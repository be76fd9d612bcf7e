"""Keys of callers: a file with their hashes, which may change while the server runs."""

import hashlib
import hmac
import logging
import secrets
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gumshoe.documents.collection_names import check_collection_patterns
from gumshoe.errors import UsageError
from gumshoe.model_validation import describe_validation_error
from gumshoe.serving.access import KeysUnavailableError, Principal, UnauthenticatedError, check_patterns
from gumshoe.trusted_files import check_trusted
from gumshoe.yaml_text import InvalidYamlError, load_yaml

KEY_PREFIX = "gum_"
"""Beginning of all keys, so that scanners can detect leaked ones."""
_SETTLED = 2.0  # seconds after which a file that changes gets another time

_log = logging.getLogger(__name__)


class Key(BaseModel):
    """An entry of a key file. It contains the key's hash, not the key."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    inboxes: tuple[str, ...] = ()
    """Empty for a key that only reads documents."""
    collections: tuple[str, ...] = ()
    """Collections of documents, or patterns such as `eng-*`. Not needed if the index has no collections."""


def read_keys(path: Path) -> list[Key]:
    """Read a key file.

    Raises:
        UsageError: if other users can write to the file, or it cannot be read or is invalid; the message says where.
    """
    try:
        check_trusted(path, "the key file")
        return _parse_keys(path.read_bytes(), path)
    except OSError as error:
        raise UsageError(
            "serving.key-file-unreadable",
            f"cannot read the key file {path}: {error.strerror or error}; write one with `gumshoe serve-key`",
        ) from None


def _parse_keys(content: bytes, path: Path) -> list[Key]:
    try:
        listed = load_yaml(content.decode()) or []
        if not isinstance(listed, list):
            raise UsageError(
                "serving.key-file-not-a-list", f"{path} is not a list of keys; write it with `gumshoe serve-key`"
            )
        keys = [Key.model_validate(each) for each in listed]
        for each in keys:
            check_patterns(each.inboxes)
            check_collection_patterns(each.collections)
    except (InvalidYamlError, UnicodeDecodeError) as error:
        raise UsageError("serving.key-file-invalid-yaml", f"{path} is not valid YAML: {error}") from None
    except ValidationError as error:
        raise UsageError(
            "serving.key-file-invalid-key", f"{path} has an invalid key: {describe_validation_error(error)}"
        ) from None
    return keys


def add_key(path: Path, name: str, inboxes: Iterable[str], collections: Iterable[str] = ()) -> str:
    """Create a key, append its name, hash, inboxes and collections to a key file, and return the key.

    The key itself is not stored.

    Raises:
        UsageError: if the file is not a key file, already has that name or cannot be written, or if an inbox or a
            collection does not have the form of one or of a pattern.
    """
    patterns, collected = check_patterns(inboxes), check_collection_patterns(collections)
    known = read_keys(path) if path.exists() else []
    if any(each.name == name for each in known):
        raise UsageError(
            "serving.duplicate-key-name",
            f"{path} already has a key named {name!r}; use another name, or remove that key",
        )
    key = KEY_PREFIX + secrets.token_urlsafe(32)
    line = {"name": name, "sha256": _hash_key(key), "inboxes": list(patterns)}
    line |= {"collections": list(collected)} if collected else {}
    try:
        _append(path, yaml.safe_dump([line], sort_keys=False, allow_unicode=True))
    except OSError as error:
        raise UsageError(
            "serving.key-file-unwritable",
            f"cannot write the key file {path}: {error.strerror}; name a file in a directory that you can write to",
        ) from None
    return key


def _append(path: Path, lines: str) -> None:
    """Append lines to a file that is private if it is new."""
    path.touch(mode=0o600)
    check_trusted(path, "the key file")  # a new file may be in a directory of others, or behind their link
    written = path.read_text(encoding="utf-8")
    with path.open("a", encoding="utf-8") as file:
        file.write(lines if not written or written.endswith("\n") else f"\n{lines}")


class KeyFile:
    """Authenticate callers with the keys in a file. It is read again when it has changed.

    A changed file that is broken, or that other users can write to, is not used: the keys that were read before stay
    valid. If the file is deleted, no key is valid.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._keys: list[Key] | None = read_keys(path)
        """None if the file does not exist any more."""
        self._content: bytes | None = None
        """Content from which the keys were parsed. None if they must be parsed again."""
        self._seen: tuple[int, ...] | None = None
        """Identity of the file that was read last. None if it must be read again, e.g. if it could change within the
        resolution of its times.
        """
        self._problem = ""
        self._lock = threading.Lock()  # metrics are collected in a thread of their own

    def authenticate(self, credentials: str) -> Principal:
        """Return the caller with a key.

        Raises:
            UnauthenticatedError: if the file does not contain the key.
            KeysUnavailableError: if the file does not exist.
        """
        self.is_current()
        keys = self._keys
        if keys is None:
            raise KeysUnavailableError("serving.keys-unavailable", self._problem)
        hashed = _hash_key(credentials)
        found = [each for each in keys if hmac.compare_digest(each.sha256, hashed)]  # all of them, always
        if not found:
            raise UnauthenticatedError("serving.unknown-key", "This key is not known.")
        return Principal(found[0].name, check_patterns(found[0].inboxes), "key", found[0].collections)

    def is_current(self) -> bool:
        """Read the file if it has changed. Return True if its content is in use."""
        with self._lock:
            problem = self._read_changes()
            if problem and problem != self._problem:
                _log.error("the changed key file is not used: %s", problem)
            elif self._problem and not problem:
                _log.warning("the key file %s is in use again", self._path)
            self._problem = problem
        return not problem

    def _read_changes(self) -> str:
        """Read the file if it has changed, and return what is wrong with it, or an empty string."""
        try:
            entry = self._path.stat()
            identity = (entry.st_dev, entry.st_ino, entry.st_size, entry.st_mtime_ns, entry.st_ctime_ns)
            if identity == self._seen:
                return self._problem
            self._seen = None
            content = self._path.read_bytes()
            check_trusted(self._path, "the key file")  # if not, check again: mending its directory leaves it unchanged
            self._seen = identity if time.time() - max(entry.st_mtime, entry.st_ctime) > _SETTLED else None
            if content != self._content:
                self._keys, self._content = _parse_keys(content, self._path), content
        except FileNotFoundError:
            self._keys = self._content = self._seen = None
            return f"{self._path} does not exist any more, so no key is valid; restore it"
        except OSError as error:
            self._seen = None
            return f"cannot read {self._path}: {error.strerror or error}; the keys that were read before stay valid"
        except UsageError as error:
            return f"{error.message_with_code}; the keys that were read before stay valid"
        return ""


def _hash_key(key: str) -> str:
    """Return the SHA-256 hash of a key. A slow hash is not needed, because a key has 256 random bits."""
    return hashlib.sha256(key.encode(errors="replace")).hexdigest()
