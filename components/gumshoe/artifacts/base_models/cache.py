"""Resolve names of base models, and keep converted models in the user's cache directory.

Every name of a model passes through here, so conversion, which imports much, is imported when it is needed.
"""

import shutil
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from gumshoe.artifacts.base_models.named_models import NAMED_MODELS, NamedModel
from gumshoe.artifacts.manifest import file_digest
from gumshoe.artifacts.response_cache import cache_directory
from gumshoe.artifacts.storage import Deadline, explain_os_errors, flush_to_disk, lock_directory
from gumshoe.errors import UsageError

CONVERTER = 1
"""Version of the converter, the chat templates and the verification. A new version converts models again."""
_PREFIX = "gguf:"
CONVERTED_FORMS = f"{', '.join(NAMED_MODELS)} or {_PREFIX}FILE"
"""The names that `resolve_base_model` converts, for messages."""
_WAIT = 3600.0  # seconds to wait while another process converts the same model
_KEY_DIGITS = 16  # of a file's SHA-256, in the name of a directory


def resolve_base_model(name: str) -> str:
    """Return the directory of a named model, e.g. `smollm2-135m`, or of `gguf:FILE`; any other name unchanged.

    A model is fetched and converted on first use, which takes seconds to minutes. Other processes wait for it.

    Raises:
        UsageError: if the file cannot be converted, or a package is missing.
        UnavailableError: if the model cannot be downloaded.
        StorageError: if the cache directory cannot be written.
    """
    if name in NAMED_MODELS:
        return str(_find_or_convert(*_plan_named(NAMED_MODELS[name])))
    if name.startswith(_PREFIX):
        return str(_find_or_convert(*_plan_file(name)))
    return name


_Conversion = tuple[Path, Callable[[Path], None]]
"""A directory of the cache, and a function that writes it into an empty directory."""


def _plan_named(model: NamedModel) -> _Conversion:
    def convert(target: Path) -> None:
        from gumshoe.artifacts.base_models.model_directory import write_named_model

        write_named_model(model, target)

    return _cached_directory(model.name, model.digest), convert


def _plan_file(name: str) -> _Conversion:
    file = Path(name.removeprefix(_PREFIX)).expanduser()
    digest = _compute_digest(file)

    def convert(target: Path) -> None:
        from gumshoe.artifacts.base_models.model_directory import write_gguf_model

        write_gguf_model(name, file, digest, target)

    return _cached_directory(f"gguf-{file.stem}", digest), convert


def _cached_directory(name: str, digest: str) -> Path:
    return cache_directory() / "base-models" / f"{name}-{digest[:_KEY_DIGITS]}-v{CONVERTER}"


def _compute_digest(file: Path) -> str:
    """Return the SHA-256 of a file. A process computes it once, unless the file changes."""
    try:
        facts = file.stat()
        return _compute_digest_once(file.absolute(), facts.st_size, facts.st_mtime_ns)
    except OSError as error:
        raise UsageError("gguf.not-readable", f"cannot read {file}: {error.strerror}; check the path") from None


@lru_cache(maxsize=16)
def _compute_digest_once(file: Path, size: int, modified: int) -> str:  # noqa: ARG001 - part of the cache's key
    return file_digest(file)


def _find_or_convert(directory: Path, convert: Callable[[Path], None]) -> Path:
    """Return a directory of the cache, which `convert` writes if it does not exist.

    The work is done in a locked directory beside it, which is renamed when it is complete.
    """
    if directory.is_dir():
        return directory
    partial = directory.with_name(f"{directory.name}.partial")
    with explain_os_errors(directory), lock_directory(partial, Deadline(_WAIT)):
        if directory.is_dir():  # another process was faster
            partial.rmdir()
            return directory
        for left in partial.iterdir():  # by a process that was killed
            left.unlink()
        try:
            convert(partial)
            flush_to_disk(partial.iterdir())
            partial.rename(directory)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    return directory
