"""Embed queries, each once, and concurrent queries in one batch."""

import threading
from collections import OrderedDict
from concurrent.futures import Future

from gumshoe.embeddings.embedder import Embedder, Vectors
from gumshoe.errors import GumshoeError

_CACHED_QUERIES = 20_000  # 60 MB with 768 dimensions


class QueryEmbedder:
    """Embed queries of many threads. Queries that arrive while the model is busy form the next batch."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._known: OrderedDict[str, Future[Vectors]] = OrderedDict()
        self._waiting: list[str] = []
        self._lock = threading.Lock()  # guards the two above
        self._turn = threading.Lock()  # held by the thread that embeds

    @property
    def waiting(self) -> int:
        """Number of queries that wait for the next batch."""
        return len(self._waiting)

    def embed(self, query: str) -> Vectors:
        """Return the vector of a query, of length 1: [dimensions].

        Raises:
            EmbeddingError: if the query cannot be embedded.
        """
        with self._lock:
            future = self._known.get(query)
            if future is None:
                future = self._known[query] = Future()
                self._waiting.append(query)
            self._known.move_to_end(query)
        if not future.done():
            with self._turn:
                if not future.done():
                    self._embed()
        return future.result()

    def _embed(self) -> None:
        """Embed all waiting queries, including that of the calling thread."""
        with self._lock:
            queries, self._waiting = self._waiting, []
            futures = [self._known[query] for query in queries]
        try:
            found = self._embedder.embed(queries, "query")
            for future, row in zip(futures, found, strict=True):
                future.set_result(row)
        except GumshoeError as error:
            with self._lock:
                for query in queries:  # all waiting threads get the error, and the next call tries again
                    del self._known[query]
            for future in futures:
                future.set_exception(error)
        finally:
            with self._lock:
                self._waiting += [query for query, future in zip(queries, futures, strict=True) if not future.done()]
                while len(self._known) > _CACHED_QUERIES and next(iter(self._known.values())).done():
                    self._known.popitem(last=False)
