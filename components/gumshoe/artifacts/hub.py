"""Datasets of the Hugging Face hub, or local directories of one, streamed; and models, from the hub or from here."""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gumshoe.errors import GumshoeError, UnavailableError, UsageError

_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?", re.A)


@dataclass(frozen=True, slots=True)
class ModelPlace:
    """Where a model's files are, as the functions named `from_pretrained` take it."""

    name: str
    """A directory, or the hub's name."""
    local_files_only: bool
    """Nothing is to be asked of the hub: a directory, or a copy in this machine's cache while the hub is silent."""


def find_model(place: Path | str, file: str) -> ModelPlace:
    """See, within seconds, whether a model is where it is said to be: in a directory, or on the hub.

    The hub's library would ask a hub that is silent, or that knows no such model, for minutes. A `Path`, and a name
    that can only be a directory's, are never asked of it. `file` is one that the model has; it tells whether the
    cache holds a copy, which is used where the hub gives none (HF_HUB_OFFLINE is set, or there is no network).

    Raises:
        UsageError: it is not there.
    """
    directory = Path(place).expanduser()
    if directory.is_dir():
        return ModelPlace(str(directory), local_files_only=True)
    name = str(place)
    if isinstance(place, Path) or name[:1] in {".", "~"} or not _HUB_NAME.fullmatch(name):
        raise UsageError(
            "sources.no-such-model-directory",
            f"the directory {name} does not exist; name a model's directory, or its name on the hub",
        )

    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HTTPError, OfflineModeIsEnabled  # type: ignore[attr-defined]

    try:
        _ask(name, "model")
    except (OSError, ValueError, HTTPError) as error:  # ValueError: it is no name
        if isinstance(try_to_load_from_cache(name, file), str):
            return ModelPlace(name, local_files_only=True)
        offline = isinstance(error, OfflineModeIsEnabled)
        said = "HF_HUB_OFFLINE is set" if offline else str(error).strip().partition("\n")[0]
        raise UsageError(
            "sources.model-not-found",
            f"model {name} is neither a directory nor in the local cache, and the hub does not provide it: {said}; "
            "name a directory, or check the name, the network, and HF_TOKEN if it is private",
        ) from None
    return ModelPlace(name, local_files_only=False)


def open_dataset(uri: str, split: str = "train") -> Iterable[Any]:
    """The records of `hf:DATASET@SPLIT`, or of the given split of `hf:DATASET`.

    They are read as they are asked for: iterate inside `dataset_errors_explained`.

    Raises:
        GumshoeError: there is no such dataset or split, or the hub does not give it.
    """
    name, named = _parts(uri)
    import datasets  # takes seconds to import

    with dataset_errors_explained(uri):
        _check_reachable(name)
        records: Iterable[Any] = _patiently(datasets.load_dataset, name, split=named or split, streaming=True)
        return records


def dataset_commit(uri: str) -> str:
    """The commit that `hf:DATASET` stands at on the hub.

    Raises:
        GumshoeError: there is no such dataset, or the hub does not tell.
    """
    name, _ = _parts(uri)
    with dataset_errors_explained(uri):
        return str(_patiently(_ask, name, kind="dataset").sha)


def local_dataset(uri: str) -> str | None:
    """The directory that `hf:DATASET` names, where it is one.

    Raises:
        UsageError: it names nothing.
    """
    name, _ = _parts(uri)
    return name if Path(name).is_dir() else None


def split_names(uri: str) -> list[str]:
    """The splits of `hf:DATASET`, or the one that `hf:DATASET@SPLIT` names.

    Raises:
        GumshoeError: there is no such dataset, or the hub does not tell.
    """
    name, named = _parts(uri)
    if named:
        return [named]
    import datasets

    with dataset_errors_explained(uri):
        _check_reachable(name)
        return list(_patiently(datasets.get_dataset_split_names, name))


def _patiently(ask: Callable[..., Any], name: str, **options: Any) -> Any:
    """What the hub says, asked again where it does not answer: its library lists files once only."""
    import httpx
    from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

    lost = retry_if_exception_type(httpx.TransportError)
    tries = Retrying(stop=stop_after_attempt(3), wait=wait_random_exponential(max=4), retry=lost, reraise=True)
    return tries(ask, name, **options)


def _parts(uri: str) -> tuple[str, str]:
    place = uri.removeprefix("hf:")
    name, _, split = place.rpartition("@") if "@" in place else (place, "", "")
    if "/" in split:  # a directory may have an @ in its path
        name, split = place, ""
    if not name.strip():
        raise UsageError("sources.no-dataset-name", f"{uri!r} names no dataset; use hf:OWNER/NAME or hf:DIRECTORY")
    return name, split


def _check_reachable(name: str) -> None:
    """Tell of a dataset's name that is wrong, or a hub that is silent, at once and not after minutes of tries."""
    if not Path(name).is_dir():
        _ask(name, "dataset")


def _ask(name: str, kind: Literal["dataset", "model"]) -> Any:
    """What the hub says of a dataset or a model."""
    from huggingface_hub import HfApi, constants, get_session

    hooks = get_session().event_hooks["request"]
    if _limit_wait not in hooks:
        hooks.append(_limit_wait)
    api = HfApi()
    ask: Callable[..., Any] = api.dataset_info if kind == "dataset" else api.model_info
    return ask(name, timeout=constants.HF_HUB_ETAG_TIMEOUT)


def _limit_wait(request: Any) -> None:
    """Limit the wait for the hub's answer where the hub's library does not: listing files would wait for ever."""
    from huggingface_hub import constants

    limits = request.extensions["timeout"].items()
    request.extensions["timeout"] = {name: limit or constants.HF_HUB_DOWNLOAD_TIMEOUT for name, limit in limits}


@contextmanager
def dataset_errors_explained(uri: str) -> Iterator[None]:
    """Turn what loading or reading a dataset raises into a GumshoeError."""
    import httpx
    from huggingface_hub.errors import HTTPError, OfflineModeIsEnabled  # type: ignore[attr-defined] # of its client

    try:
        yield
    except (OSError, ValueError, RuntimeError, HTTPError) as error:
        said = f"{uri}: cannot load the dataset: {type(error).__name__}: {error}"
        answer = getattr(error, "response", None)
        if isinstance(error, httpx.TransportError) or (answer is not None and answer.status_code >= 500):
            raise UnavailableError(
                "sources.hub-unavailable", f"{said}; check the network, or try again later"
            ) from error
        if isinstance(error, OfflineModeIsEnabled):
            raise GumshoeError("sources.hub-offline", f"{said}; unset HF_HUB_OFFLINE, or name a directory") from error
        if answer is not None:
            raise GumshoeError(
                "sources.dataset-not-found", f"{said}; check its name, and HF_TOKEN if it is private"
            ) from error
        raise GumshoeError("sources.dataset-unreadable", f"{said}; check its split and its files") from error
