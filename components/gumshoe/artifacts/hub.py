"""Datasets and models of the Hugging Face hub, or in local directories. Datasets are streamed.

Both may name a revision: `OWNER/NAME:REVISION`, a commit, tag or branch. Whatever is named, it is resolved to a commit
once, so that all files are of the same one. Code in a repository is never run (`trust_remote_code`).
"""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gumshoe.artifacts.base_models import CONVERTED_FORMS, resolve_base_model
from gumshoe.errors import GumshoeError, UnavailableError, UsageError
from gumshoe.network import raise_if_untrusted

_HUB_NAME = re.compile(r"(?P<name>[\w.-]+(/[\w.-]+)?)(:(?P<revision>[\w./-]+))?", re.A)
_read_commits: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class ModelLocation:
    """Location of a model's files, as arguments of the functions named `from_pretrained`."""

    name: str
    """A directory, or a name on the hub."""
    local_files_only: bool
    """True if the hub must not be asked: for a directory, or for a cached copy while the hub is unavailable."""
    revision: str | None = None
    """Commit on the hub; None for a directory."""

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments for `from_pretrained` beside the name."""
        return {"local_files_only": self.local_files_only, **({"revision": self.revision} if self.revision else {})}


def split_hub_name(name: str) -> tuple[str, str | None] | None:
    """Return the repository and the revision of a name on the hub; None if it can only be a directory.

    >>> split_hub_name("Qwen/Qwen3-8B:main"), split_hub_name("tiny"), split_hub_name("/models/qwen")
    (('Qwen/Qwen3-8B', 'main'), ('tiny', None), None)
    """
    parsed = _HUB_NAME.fullmatch(name)
    return parsed and (parsed["name"], parsed["revision"])


def find_model(place: Path | str, file: str) -> ModelLocation:
    """Check within seconds that a model exists, in a directory or on the hub, and convert it if necessary.

    `resolve_base_model` converts named models and GGUF files on first use. The hub's own library would retry for
    minutes if the hub does not answer or does not know the model. The hub is never asked for a `Path`, nor for a name
    that can only be a directory. `file` is a file that every such model has: if it is in the local cache, the cached
    copy is used when the hub is unavailable (HF_HUB_OFFLINE is set, or there is no network).

    Raises:
        UsageError: if the model does not exist, or cannot be converted.
        UnavailableError: if a named model cannot be downloaded.
    """
    name = str(place) if isinstance(place, Path) else resolve_base_model(place)
    directory = Path(name).expanduser()
    if directory.is_dir():
        return ModelLocation(str(directory), local_files_only=True)
    parsed = split_hub_name(name)
    if isinstance(place, Path) or name[:1] in {".", "~"} or parsed is None:
        raise UsageError(
            "sources.no-such-model-directory",
            f"the directory {name} does not exist; name a model's directory, its name on the hub, or {CONVERTED_FORMS}",
        )

    from huggingface_hub.errors import HTTPError, OfflineModeIsEnabled  # type: ignore[attr-defined]

    model, revision = parsed
    try:
        found = _request_info(model, "model", revision)
    except (OSError, ValueError, HTTPError) as error:  # ValueError: not a valid name
        if cached := find_cached_directory(name, file):
            return ModelLocation(model, local_files_only=True, revision=cached.name)
        raise_if_untrusted(error, "the hub")
        offline = isinstance(error, OfflineModeIsEnabled)
        reason = "HF_HUB_OFFLINE is set" if offline else str(error).strip().partition("\n")[0]
        raise UsageError(
            "sources.model-not-found",
            f"model {name} is neither a directory nor in the local cache, and the hub does not provide it: {reason}; "
            "name a directory, or check the name, the network, and HF_TOKEN if it is private",
        ) from None
    return ModelLocation(model, local_files_only=False, revision=found.sha)


def find_cached_directory(name: str, file: str) -> Path | None:
    """Return the directory of a model in the hub's cache that has a file; None without one. No network is used.

    The directory has the name of the commit.
    """
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    parsed = split_hub_name(name)
    try:
        found = parsed and try_to_load_from_cache(parsed[0], file, revision=parsed[1])
    except HFValidationError:  # not a name on the hub
        return None
    return Path(found).parent if isinstance(found, str) else None


def open_dataset(uri: str, split: str = "train") -> Iterable[Any]:
    """Return the records of `hf:DATASET[:REVISION]@SPLIT`, or of the given split of `hf:DATASET[:REVISION]`.

    They are read lazily, so iterate inside `explain_dataset_errors`.

    Raises:
        GumshoeError: if the dataset or split does not exist, or the hub does not provide it.
    """
    name, revision, named_split = _split_uri(uri)
    import datasets  # takes seconds to import

    with explain_dataset_errors(uri):
        commit = _find_commit(name, revision)
        if commit:
            _read_commits[uri] = commit
        records: Iterable[Any] = _retry(
            datasets.load_dataset, name, split=named_split or split, streaming=True, revision=commit
        )
        return records


def get_read_commits(uris: Iterable[str]) -> dict[str, str]:
    """Return the commit that this process has read of each dataset on the hub among some URIs, by URI."""
    return {uri: _read_commits[uri] for uri in uris if uri in _read_commits}


def get_dataset_commit(uri: str) -> str:
    """Return the current commit of `hf:DATASET`, or that of the revision in the URI.

    Raises:
        GumshoeError: if the dataset does not exist, or the hub does not answer.
    """
    name, revision, _ = _split_uri(uri)
    with explain_dataset_errors(uri):
        return str(_retry(_request_info, name, kind="dataset", revision=revision).sha)


def find_local_dataset(uri: str) -> str | None:
    """Return the directory that `hf:DATASET` names, or None if it is not a directory.

    Raises:
        UsageError: if the URI names no dataset.
    """
    name, _, _ = _split_uri(uri)
    return name if Path(name).is_dir() else None


def list_splits(uri: str) -> list[str]:
    """Return the splits of `hf:DATASET`, or the one that `hf:DATASET@SPLIT` names.

    Raises:
        GumshoeError: if the dataset does not exist, or the hub does not answer.
    """
    name, revision, named_split = _split_uri(uri)
    if named_split:
        return [named_split]
    import datasets

    with explain_dataset_errors(uri):
        commit = _find_commit(name, revision)
        return list(_retry(datasets.get_dataset_split_names, name, revision=commit))


def _retry(request: Callable[..., Any], name: str, **options: Any) -> Any:
    """Call a function of the hub's library, and retry if the hub does not answer. The library lists files only once."""
    import httpx
    from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

    lost = retry_if_exception_type(httpx.TransportError)
    policy = Retrying(stop=stop_after_attempt(3), wait=wait_random_exponential(max=4), retry=lost, reraise=True)
    return policy(request, name, **options)


def _split_uri(uri: str) -> tuple[str, str | None, str]:
    """Return the name or directory of a dataset, its revision or None, and the split or an empty string."""
    place = uri.removeprefix("hf:")
    name, _, split = place.rpartition("@") if "@" in place else (place, "", "")
    if "/" in split:  # the path of a directory may contain an @
        name, split = place, ""
    if not name.strip():
        raise UsageError("sources.no-dataset-name", f"{uri!r} names no dataset; use hf:OWNER/NAME or hf:DIRECTORY")
    parsed = None if Path(name).is_dir() else split_hub_name(name)
    return (*(parsed or (name, None)), split)


def _find_commit(name: str, revision: str | None) -> str | None:
    """Return the commit of a dataset on the hub; None for a directory.

    Raises at once if the name is wrong or the hub does not answer, instead of after minutes of retries.
    """
    return None if Path(name).is_dir() else str(_request_info(name, "dataset", revision).sha)


def _request_info(name: str, kind: Literal["dataset", "model"], revision: str | None = None) -> Any:
    """Return the hub's information about a dataset or a model, at a revision or the newest one."""
    from huggingface_hub import HfApi, constants, get_session

    hooks = get_session().event_hooks["request"]
    if _limit_timeout not in hooks:
        hooks.append(_limit_timeout)
    api = HfApi()
    request: Callable[..., Any] = api.dataset_info if kind == "dataset" else api.model_info
    return request(name, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)


def _limit_timeout(request: Any) -> None:
    """Set a timeout for requests to the hub if its library sets none. Listing files would otherwise wait forever."""
    from huggingface_hub import constants

    limits = request.extensions["timeout"].items()
    request.extensions["timeout"] = {name: limit or constants.HF_HUB_DOWNLOAD_TIMEOUT for name, limit in limits}


@contextmanager
def explain_dataset_errors(uri: str) -> Iterator[None]:
    """Turn errors of loading or reading a dataset into a GumshoeError."""
    import httpx
    from huggingface_hub.errors import HTTPError, OfflineModeIsEnabled  # type: ignore[attr-defined] # of its client

    try:
        yield
    except (OSError, ValueError, RuntimeError, HTTPError) as error:
        raise_if_untrusted(error, "the hub")
        reason = f"{uri}: cannot load the dataset: {type(error).__name__}: {error}"
        answer = getattr(error, "response", None)
        if isinstance(error, httpx.TransportError) or (answer is not None and answer.status_code >= 500):
            raise UnavailableError(
                "sources.hub-unavailable", f"{reason}; check the network, or try again later"
            ) from error
        if isinstance(error, OfflineModeIsEnabled):
            raise GumshoeError("sources.hub-offline", f"{reason}; unset HF_HUB_OFFLINE, or name a directory") from error
        if answer is not None:
            raise GumshoeError(
                "sources.dataset-not-found", f"{reason}; check its name, and HF_TOKEN if it is private"
            ) from error
        raise GumshoeError("sources.dataset-unreadable", f"{reason}; check its split and its files") from error
