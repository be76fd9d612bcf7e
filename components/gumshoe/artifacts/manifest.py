"""The manifest of an artifact (`manifest.json`), and checks of a directory against it."""

import hashlib
import re
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from gumshoe.artifacts.storage import is_partial
from gumshoe.errors import GumshoeError, UsageError
from gumshoe.json_text import load_json

MANIFEST = "manifest.json"
LATEST = "latest.json"
DATA_PREFIX = "sha256-"
REPLACES = "replaces"
"""Setting of a redacted successor: references of the artifacts that it replaces, the last one first."""
STORE_FILES = {
    f"KIND/VERSION/{DATA_PREFIX}*/": "The files of the artifact, in a folder named after the digest of their content.",
    f"KIND/VERSION/{MANIFEST}": "Sizes and SHA-256 of the files, lineage, hash of the code, image and settings. The "
    "artifact is visible once it exists.",
    f"KIND/{LATEST}": "The newest version.",
    "runs/RUN/inputs/": "The version of `against: latest` and the feedback that a run takes, also if it is submitted "
    "again.",
    "deployments/DEPLOYMENT/VERSION": "An adapter that a deployment has loaded. `gumshoe artifacts prune` keeps it.",
    "retention.json": "Days after which `gumshoe artifacts prune` removes each kind.",
}
"""Description of each file of a store."""
_BLOCK = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class InvalidNameError(UsageError):
    """A kind, version or reference does not have the allowed form."""


class InvalidManifestError(GumshoeError):
    """A manifest cannot be read or contradicts itself."""


class ForeignManifestError(InvalidManifestError):
    """A manifest was written by another program."""


def _safe_path(path: str) -> str:
    parts = PurePosixPath(path).parts
    unsafe = not parts or ".." in parts or path.startswith("/") or "\\" in path or "\0" in path
    taken = parts[:1] == (MANIFEST,) or any(map(is_partial, parts))
    unicode = not any("\ud800" <= character <= "\udfff" for character in path)  # bytes that are not UTF-8
    if unsafe or taken or not unicode or str(PurePosixPath(path)) != path:
        raise ValueError(f"{path!r} is not a plain relative path inside the artifact")
    return path


def _safe_segment(name: str) -> str:
    if not _NAME.fullmatch(name) or name.startswith(DATA_PREFIX) or name in {MANIFEST, LATEST, "latest"}:
        raise ValueError(
            f"{name!r} is not a valid name; use at most 128 letters, digits, '.', '_' and '-', starting with a letter "
            f"or digit; 'latest', '{LATEST}', '{MANIFEST}' and names that start with '{DATA_PREFIX}' are reserved"
        )
    return name


def _safe_kind(kind: str) -> str:
    for segment in kind.split("/"):
        _safe_segment(segment)
    return kind


def check_kind(kind: str) -> str:
    """Return the kind if it is valid.

    Raises:
        InvalidNameError: if it does not have the allowed form.
    """
    try:
        return _safe_kind(kind)
    except ValueError as error:
        raise InvalidNameError("artifacts.invalid-name", str(error)) from None


def split_reference(reference: str) -> tuple[str, str]:
    """Split `kind/version`. The kind may contain slashes; the version may be `latest`.

    Raises:
        InvalidNameError: if it does not have that form.
    """
    kind, slash, version = reference.strip("/").rpartition("/")
    if not slash:
        raise InvalidNameError(
            "artifacts.invalid-reference", f"{reference!r} names no kind; use KIND/VERSION, e.g. adapters/latest"
        )
    try:
        return _safe_kind(kind), version if version == "latest" else _safe_segment(version)
    except ValueError as error:
        raise InvalidNameError("artifacts.invalid-name", str(error)) from None


def is_reference(text: str) -> bool:
    """Return True if a text is `kind/version` and both have the allowed form."""
    try:
        split_reference(text)
    except InvalidNameError:
        return False
    return True


def join_reference(kind: str, version: str) -> str:
    """Return `kind/version` if both are valid.

    Raises:
        InvalidNameError: if one of them does not have the allowed form.
    """
    try:
        return f"{_safe_kind(kind)}/{_safe_segment(version)}"
    except ValueError as error:
        raise InvalidNameError("artifacts.invalid-name", str(error)) from None


def _safe_reference(reference: str) -> str:
    kind, version = split_reference(reference)
    return join_reference(kind, version)


class FileEntry(BaseModel):
    """One file: its path inside the artifact, its size in bytes and its SHA-256 in hexadecimal."""

    model_config = ConfigDict(frozen=True)

    path: Annotated[str, AfterValidator(_safe_path)]
    size: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Manifest(BaseModel):
    """Description of an artifact: its name, its files, and what it was made from."""

    model_config = ConfigDict(frozen=True)

    format: Literal["gumshoe.artifact/1"] = "gumshoe.artifact/1"
    kind: Annotated[str, AfterValidator(_safe_kind)]
    version: Annotated[str, AfterValidator(_safe_segment)]
    created: AwareDatetime
    content: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """SHA-256 over the paths, sizes and digests of all files. Equal content has an equal digest."""
    files: tuple[FileEntry, ...]
    made_from: tuple[Annotated[str, AfterValidator(_safe_reference)], ...] = ()
    """References (`kind/version`) to the artifacts that it was made from."""
    code: str | None = None
    """Hash of the code that made it (`code_hash`)."""
    image: str | None = None
    settings: dict[str, Any] = {}
    publication: str = Field(default_factory=lambda: uuid.uuid4().hex)
    """Unique id of each publication, so that a publisher recognizes its own."""

    @property
    def reference(self) -> str:
        return f"{self.kind}/{self.version}"

    @property
    def size(self) -> int:
        """Total size of all files in bytes."""
        return sum(entry.size for entry in self.files)

    @property
    def data(self) -> str:
        """Folder of the files, beside the manifest in a store."""
        return DATA_PREFIX + self.content[:32]

    @property
    def replaces(self) -> tuple[str, ...]:
        """References of the artifacts that this one replaces since data was erased, the last one first."""
        found = self.settings.get(REPLACES, ())
        return tuple(found) if isinstance(found, list) else (found,) if isinstance(found, str) else ()

    def rebase(self, reference: str, where: str) -> "Manifest":
        """Return the manifest with names relative to an outer store.

        A store may be located inside another one, such as the store of a run inside the store of a project.

        Raises:
            InvalidManifestError: if it is the manifest of another artifact.
        """
        place = reference.removesuffix(self.reference)
        if not place.endswith("/"):
            raise InvalidManifestError(
                "artifacts.misplaced-manifest",
                f"{where} is the manifest of {self.reference}, not of {reference}; publish the artifact again",
            )
        names = {"kind": place + self.kind, "made_from": tuple(place + each for each in self.made_from)}
        return self.model_copy(update=names)

    def to_json(self) -> bytes:
        return self.model_dump_json(indent=2).encode() + b"\n"

    @classmethod
    def from_json(cls, text: bytes, where: str) -> "Manifest":
        """Read a manifest, and check that its content digest matches its files.

        Raises:
            InvalidManifestError: if it is not a manifest, or contradicts itself.
        """
        try:
            is_own = str(load_json(text).get("format", "")).startswith("gumshoe.")
        except (ValueError, AttributeError) as error:
            fault = error if isinstance(error, ValueError) else "not a JSON object"
            raise InvalidManifestError(
                "artifacts.invalid-manifest", f"{where} is not a valid manifest: {fault}"
            ) from None
        if not is_own:
            raise ForeignManifestError(
                "artifacts.foreign-manifest",
                f"{where} is not an artifact's manifest: another program wrote it",
            )
        try:
            manifest = cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"])) or "document"
            raise InvalidManifestError(
                "artifacts.invalid-manifest", f"{where} is not a valid manifest: {field}: {first['msg']}"
            ) from None
        except InvalidNameError as error:
            raise InvalidManifestError(
                "artifacts.invalid-manifest", f"{where} is not a valid manifest: made_from: {error}"
            ) from None
        if manifest.content != content_digest(manifest.files):
            raise InvalidManifestError(
                "artifacts.inconsistent-manifest",
                f"{where} is inconsistent: its content digest is not that of its files; publish the artifact again",
            )
        return manifest


def content_digest(files: Iterable[FileEntry]) -> str:
    """Return the SHA-256 over path, size and digest of each file, sorted by path."""
    digest = hashlib.sha256()
    for entry in sorted(files, key=lambda entry: entry.path):
        digest.update(f"{entry.path}\0{entry.size}\0{entry.sha256}\n".encode())
    return digest.hexdigest()


def file_digest(path: Path, advance: Callable[[int], object] = lambda _: None) -> str:
    """Return the SHA-256 of a file. `advance` is called with the number of bytes of each block."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            advance(len(block))
    return digest.hexdigest()


def find_artifact_files(directory: Path) -> dict[str, Path]:
    """Return the files of a directory by their path inside it. Links to files are followed.

    A `manifest.json` at the top, left by an earlier `fetch`, is not included.

    Raises:
        UsageError: if it contains no files, or something that cannot be published.
    """
    if not directory.is_dir():
        raise UsageError("artifacts.not-a-directory", f"{directory} is not a directory; name the directory to publish")
    found: dict[str, Path] = {}
    for path in sorted(directory.rglob("*")):
        inside = path.relative_to(directory).as_posix()
        if path.is_symlink() and not path.is_file():
            raise UsageError(
                "artifacts.unsupported-link",
                f"{path} is a link to a directory or to nothing; replace it with what it points to",
            )
        if path.is_dir():
            continue
        if not path.is_file():
            raise UsageError("artifacts.special-file", f"{path} is neither a file nor a directory; remove it")
        if inside == MANIFEST:
            Manifest.from_json(path.read_bytes(), f"{path} (a name reserved for the artifact's manifest)")
            continue
        try:
            found[_safe_path(inside)] = path
        except ValueError as error:
            raise UsageError("artifacts.invalid-file-name", f"{path}: {error}; rename it") from None
    if not found:
        raise UsageError("artifacts.empty-directory", f"{directory} contains no files; name the directory to publish")
    return found


def describe_files(files: dict[str, Path], advance: Callable[[int], object] = lambda _: None) -> tuple[FileEntry, ...]:
    """Return path, size and SHA-256 of each file, sorted by path."""

    def entry(item: tuple[str, Path]) -> FileEntry:
        inside, path = item
        return FileEntry(path=inside, size=path.stat().st_size, sha256=file_digest(path, advance))

    with ThreadPoolExecutor() as pool:  # hashlib releases the interpreter's lock
        return tuple(pool.map(entry, sorted(files.items())))


def find_damaged_files(
    directory: Path, manifest: Manifest, advance: Callable[[int], object] = lambda _: None
) -> dict[str, str]:
    """Return the path of each file that differs from the manifest, with the reason.

    Files that the manifest does not list are ignored.
    """

    def check(entry: FileEntry) -> str | None:
        path = directory / entry.path
        if not path.is_file():
            return "missing"
        if path.stat().st_size != entry.size:
            return f"{path.stat().st_size} bytes instead of {entry.size}"
        return None if file_digest(path, advance) == entry.sha256 else "its SHA-256 differs"

    with ThreadPoolExecutor() as pool:
        faults = dict(zip((entry.path for entry in manifest.files), pool.map(check, manifest.files), strict=True))
    return {path: reason for path, reason in faults.items() if reason}


@cache
def code_hash() -> str:
    """Return the SHA-256 over all files of the `gumshoe` package, code and texts, read once per process."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(path for path in package.rglob("*.*") if path.suffix != ".pyc" and path.is_file()):
        source = path.read_bytes()
        digest.update(f"{path.relative_to(package).as_posix()}\0{len(source)}\0".encode() + source)
    return digest.hexdigest()


def now() -> datetime:
    """Return the current time (UTC)."""
    return datetime.now(UTC)
