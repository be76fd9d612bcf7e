"""The directory of a build that is not finished: its complete segments, its progress, and vectors of earlier ones."""

import shutil
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import orjson

from gumshoe.artifacts.response_cache import Cache
from gumshoe.embeddings.embedder import Embedder
from gumshoe.mail.segment import IndexSegment
from gumshoe.mail.vector_writer import embed_segments, save_vectors

_PROGRESS = "progress.json"
_SAVED_VECTORS = "vectors.sqlite"


class UnfinishedBuild:
    """The directory in which a build writes its segments."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read_progress(self) -> dict[str, Any]:
        """Return the state that `write_progress` wrote, or an empty one if a segment of it is missing."""
        try:
            state: dict[str, Any] = orjson.loads((self._directory / _PROGRESS).read_bytes())
        except (OSError, ValueError):
            return {}
        return state if all((self._directory / name).is_dir() for name in state["segments"]) else {}

    def write_progress(self, state: dict[str, Any]) -> None:
        """Record a state in one step. It has the names of the complete `segments`, and that of the `embedder`."""
        temporary = self._directory / f"{_PROGRESS}.new"
        temporary.write_bytes(orjson.dumps(state))
        temporary.replace(self._directory / _PROGRESS)

    def embed(self, segments: Sequence[Path], embedder: Embedder) -> None:
        """Write the vectors of segments. Those that `discard` has saved are not computed again.

        Raises:
            EmbeddingError: if the texts cannot be embedded.
        """
        opened, saved = list(map(IndexSegment, segments)), self._directory / _SAVED_VECTORS
        if not saved.exists():
            embed_segments(opened, embedder)
            return
        with closing(Cache(saved)) as cache:
            embed_segments(opened, embedder, cache)

    def discard(self, embedder: Embedder | None) -> None:
        """Delete the segments, and save their vectors for texts that did not change, if they are of this embedder."""
        state = self.read_progress()
        (self._directory / _PROGRESS).unlink(missing_ok=True)  # first, so that damaged segments fail only once
        if embedder and state.get("embedder") == embedder.name:
            with closing(Cache(self._directory / _SAVED_VECTORS)) as cache:
                save_vectors([IndexSegment(self._directory / name) for name in state["segments"]], embedder, cache)
        self.clear()

    def clear(self) -> None:
        """Delete everything except saved vectors."""
        for path in list(self._directory.glob("*")):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif not path.name.startswith(_SAVED_VECTORS):
                path.unlink()
        with suppress(OSError):  # it does not exist, or has saved vectors
            self._directory.rmdir()
