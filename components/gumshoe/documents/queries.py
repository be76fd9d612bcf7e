"""The vectors of queries: each once, and those that are asked for at the same time together."""

import threading
from collections import OrderedDict
from concurrent.futures import Future

from gumshoe.embeddings.embedder import Embedder, Vectors
from gumshoe.errors import GumshoeError

_REMEMBERED = 20_000  # queries: 60 MB with 768 dimensions


class QueryVectors:
    """Embeds queries for many threads at once. What waits while the model is at work goes in one batch after it."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._known: OrderedDict[str, Future[Vectors]] = OrderedDict()
        self._waiting: list[str] = []
        self._lock = threading.Lock()  # of the two above
        self._turn = threading.Lock()  # held by who embeds

    @property
    def waiting(self) -> int:
        """How many queries wait for the next batch."""
        return len(self._waiting)

    def vector(self, query: str) -> Vectors:
        """[dimensions]: of length 1.

        Raises:
            EmbeddingError: the query cannot be embedded.
        """
        with self._lock:
            coming = self._known.get(query)
            if coming is None:
                coming = self._known[query] = Future()
                self._waiting.append(query)
            self._known.move_to_end(query)
        if not coming.done():
            with self._turn:
                if not coming.done():
                    self._embed()
        return coming.result()

    def _embed(self) -> None:
        """Embed all that waits; the query of whoever has the turn is among it."""
        with self._lock:
            queries, self._waiting = self._waiting, []
            futures = [self._known[query] for query in queries]
        try:
            found = self._embedder.embed(queries, "query")
            for future, row in zip(futures, found, strict=True):
                future.set_result(row)
        except GumshoeError as error:
            with self._lock:
                for query in queries:  # told to all who wait for it, and then tried again
                    del self._known[query]
            for future in futures:
                future.set_exception(error)
        finally:
            with self._lock:
                self._waiting += [query for query, future in zip(queries, futures, strict=True) if not future.done()]
                while len(self._known) > _REMEMBERED and next(iter(self._known.values())).done():
                    self._known.popitem(last=False)
