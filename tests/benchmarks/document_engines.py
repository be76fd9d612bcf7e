"""Compare engines for vectors and for words that a document index could use, on the same vectors and texts.

    pip install lancedb chromadb bm25s rank-bm25 sqlite-vec usearch
    python -m tests.benchmarks.document_engines 5000
    python -m tests.benchmarks.document_engines 500000    # half an hour

Engines that are not installed are left out. Vectors are those of SciFact by MiniLM, repeated with a little noise. The
recall of an engine is the share of the true ten nearest neighbors that it finds, which is hard with a hundred noisy
copies of each text. Texts are repeated without changes; what is measured of them is the share of queries whose first
result is a relevant document. An engine gets 100 queries, or as many as fit into two minutes, 20 at least. Rows named
`ours` use this project's own code.
"""

import argparse
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from importlib.util import find_spec
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import apsw
import numpy as np
from numpy.typing import NDArray

from gumshoe.documents.lexical import Analyzer, Bm25, Postings, PostingsBuilder
from gumshoe.embeddings.embedder import OFFLINE_MODEL, SentenceEmbedder, Vectors
from gumshoe.embeddings.vectors import DenseRetriever, sign_bits, top_k
from tests.benchmarks.documents import DATA, NOISE, CachingEmbedder, own_memory, show
from tests.benchmarks.scifact import SciFact
from tests.documents.collection import read_documents

Search = Callable[[int], Any]
"""Search with a query, given by its number, and return the numbers of the results."""
Row = list[str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chunks", type=int)
    parser.add_argument("--only", nargs="*", help="prefixes of engine names")
    options = parser.parse_args()
    if not DATA.is_dir():
        sys.exit(f"the data does not exist: {DATA}")
    scifact = SciFact.read(DATA / "scifact")
    documents = list(read_documents(scifact.source))
    texts = [f"{each.title}\n{each.text}" for each in documents]
    numbers = {each.document_id: number for number, each in enumerate(documents)}
    relevant = [{numbers[each] for each in scifact.right[query]} for query in scifact.queries]
    queries = list(scifact.queries.values())
    model = CachingEmbedder(SentenceEmbedder(OFFLINE_MODEL))
    vectors, asked = model.embed(texts, "passage"), model.embed(queries, "query")
    bench = Bench(options.chunks, texts, queries, relevant, vectors, asked)
    for title, quality, engines in (
        ("vectors", "recall of 10", VECTORS),
        ("words", "first is relevant", WORDS),
    ):
        header = ["engine", "median", "99th percentile", quality, "build", "disk", "private memory"]
        rows = []
        for name, (needs, engine) in engines.items():
            if all(map(find_spec, needs)) and (not options.only or name.startswith(tuple(options.only))):
                for row in engine(bench):
                    print(*row, sep=" | ", file=sys.stderr, flush=True)
                    rows.append(row)
        show(f"{options.chunks:,} chunks, by {title}", header, rows)


class Bench:
    """Vectors and texts, and the measurement of an engine with them."""

    def __init__(
        self,
        chunks: int,
        texts: list[str],
        queries: list[str],
        relevant: list[set[int]],
        vectors: Vectors,
        asked: Vectors,
    ) -> None:
        self.different, self.relevant = len(texts), relevant
        self.texts, self.queries, self.asked = list(islice(cycle(texts), chunks)), queries, asked
        chance = np.random.default_rng(0)
        self.vectors = np.resize(vectors, (chunks, vectors.shape[1])).astype(np.float32)
        self.vectors[len(vectors) :] += chance.normal(0, NOISE, self.vectors[len(vectors) :].shape).astype(np.float32)
        self.vectors /= np.linalg.norm(self.vectors, axis=1, keepdims=True)
        self.nearest = [set(top_k(self.vectors @ query, 10).tolist()) for query in asked[:50]]

    @contextmanager
    def place(self) -> Iterator[Path]:
        """Yield an empty directory for an engine, and delete it afterwards."""
        directory = Path(tempfile.mkdtemp(prefix="gumshoe-engine-"))
        try:
            yield directory
        finally:
            shutil.rmtree(directory)

    def row(self, name: str, search: Search, built: float, size: int, before: float, *, of_vectors: bool = True) -> Row:
        """Measure searches after one for warmup, and return a row of the table."""
        search(0)
        times: list[float] = []
        while len(times) < 20 or (len(times) < 100 and sum(times) < 120):
            started = time.perf_counter()
            search(len(times))
            times.append(time.perf_counter() - started)
        slow = statistics.quantiles(times, n=100, method="inclusive")[98]
        quality = self.recall(search) if of_vectors else self.first_relevant(search, len(times))
        memory = f"{own_memory() - before:,.0f} MiB"
        figures = [f"{1000 * each:.2f} ms" for each in (statistics.median(times), slow)]
        return [name, *figures, f"{quality:.3f}", f"{built:,.1f} s", f"{size >> 20:,} MiB", memory]

    def recall(self, search: Search) -> float:
        """Return the share of the true ten nearest neighbors found."""
        found = [len(set(map(int, search(query))) & nearest) for query, nearest in enumerate(self.nearest)]
        return sum(found) / (10 * len(found))

    def first_relevant(self, search: Search, queries: int) -> float:
        """Return the share of queries whose first result is a copy of a relevant document."""
        found = [
            int(next(iter(search(query)), -1)) % self.different in self.relevant[query] for query in range(queries)
        ]
        return sum(found) / len(found)


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def save_and_map(directory: Path, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
    """Save arrays, and return them mapped from their files."""
    for name, array in arrays.items():
        np.save(directory / f"{name}.npy", array, allow_pickle=False)
    return {name: np.load(directory / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in arrays}


# Vectors


def numpy_exact(bench: Bench) -> list[Row]:
    before = own_memory()
    search: Search = lambda query: top_k(bench.vectors @ bench.asked[query], 10)  # noqa: E731
    return [bench.row("numpy, float32, exact", search, 0, bench.vectors.nbytes, before)]


def ours_vectors(bench: Bench) -> list[Row]:
    with bench.place() as directory:
        started = time.perf_counter()
        center = bench.vectors.mean(axis=0)
        arrays = {
            "vectors": bench.vectors.astype(np.float16),
            "signs": sign_bits(bench.vectors - center),
            "center": center,
        }
        mapped = save_and_map(directory, arrays)
        del arrays
        built, before = time.perf_counter() - started, own_memory()
        side = DenseRetriever(mapped["vectors"], mapped["signs"], mapped["center"])
        search: Search = lambda query: side.find_nearest(bench.asked[query], 10, None)  # noqa: E731
        return [bench.row("ours: bits, then float16", search, built, size_of(directory), before)]


def usearch_graph(bench: Bench) -> list[Row]:
    from usearch.index import Index

    with bench.place() as directory:
        started = time.perf_counter()
        index = Index(ndim=bench.vectors.shape[1], metric="ip", dtype="f16")
        index.add(np.arange(len(bench.vectors)), bench.vectors)
        index.save(str(directory / "index"))
        del index
        built, before = time.perf_counter() - started, own_memory()
        view = Index.restore(str(directory / "index"), view=True)
        search: Search = lambda query: view.search(bench.asked[query], 10).keys  # noqa: E731
        return [bench.row("usearch, HNSW, float16", search, built, size_of(directory), before)]


def usearch_exact(bench: Bench) -> list[Row]:
    from usearch.index import MetricKind
    from usearch.index import search as find

    vectors, asked, before = bench.vectors.astype(np.float16), bench.asked.astype(np.float16), own_memory()
    search: Search = lambda query: find(vectors, asked[query], 10, MetricKind.IP, exact=True).keys  # noqa: E731
    return [bench.row("usearch, float16, exact", search, 0, vectors.nbytes, before)]


def sqlite_vec(bench: Bench) -> list[Row]:
    import sqlite_vec as extension

    with bench.place() as directory:
        started, before = time.perf_counter(), own_memory()
        database = apsw.Connection(str(directory / "index.sqlite"))
        database.enable_load_extension(True)
        database.load_extension(extension.loadable_path())
        width = bench.vectors.shape[1]
        database.execute(f"CREATE VIRTUAL TABLE vectors USING vec0(vector float[{width}] distance_metric=cosine)")
        with database:
            rows = ((number, vector.tobytes()) for number, vector in enumerate(bench.vectors))
            database.executemany("INSERT INTO vectors(rowid, vector) VALUES (?, ?)", rows)
        built = time.perf_counter() - started

        def search(query: int) -> list[int]:
            sql = "SELECT rowid FROM vectors WHERE vector MATCH ? AND k = 10"
            return [number for (number,) in database.execute(sql, (bench.asked[query].tobytes(),))]

        return [bench.row("SQLite with sqlite-vec, exact", search, built, size_of(directory), before)]


def lance_vectors(bench: Bench) -> list[Row]:
    import lancedb
    import pyarrow  # type: ignore[import-untyped]

    with bench.place() as directory:
        started, before = time.perf_counter(), own_memory()
        width = bench.vectors.shape[1]
        vectors = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(bench.vectors.ravel()), width)
        data = pyarrow.table({"id": np.arange(len(bench.vectors)), "vector": vectors})
        table = lancedb.connect(directory).create_table("chunks", data)
        built = time.perf_counter() - started

        def search(query: int, refine: int = 0) -> list[int]:
            asked = table.search(bench.asked[query]).distance_type("dot").limit(10).select(["id", "_distance"])
            asked = asked.nprobes(40).refine_factor(refine) if refine else asked
            return [each["id"] for each in asked.to_list()]

        rows = [bench.row("LanceDB, exact", search, built, size_of(directory), before)]
        if len(bench.vectors) > 20_000:
            table.create_index("vector", config=lancedb.index.IvfPq(distance_type="dot"))
            built = time.perf_counter() - started
            refined: Search = lambda query: search(query, refine=20)  # noqa: E731
            rows.append(bench.row("LanceDB, IVF-PQ, 40 probes, refined", refined, built, size_of(directory), before))
        return rows


def chroma(bench: Bench) -> list[Row]:
    import chromadb

    with bench.place() as directory:
        started, before = time.perf_counter(), own_memory()
        client = chromadb.PersistentClient(str(directory), settings=chromadb.Settings(anonymized_telemetry=False))
        collection = client.create_collection("chunks", metadata={"hnsw:space": "cosine"})
        for start in range(0, len(bench.vectors), 5000):
            part = slice(start, start + 5000)
            ids = [str(number) for number in range(*part.indices(len(bench.vectors)))]
            collection.add(ids=ids, embeddings=bench.vectors[part])
        built = time.perf_counter() - started

        def search(query: int) -> list[str]:
            found: list[list[str]] = collection.query(query_embeddings=[bench.asked[query]], n_results=10, include=[])[
                "ids"
            ]
            return found[0]

        return [bench.row("Chroma, HNSW", search, built, size_of(directory), before)]


# Words


def ours_words(bench: Bench) -> list[Row]:
    with bench.place() as directory:
        started = time.perf_counter()
        analyzer, numbers = Analyzer("en"), dict[str, int]()
        builder = PostingsBuilder()
        for text in bench.texts:
            builder.add([numbers.setdefault(word, len(numbers)) for word in analyzer.split_words(text)])
        postings = builder.finish(len(numbers))
        mapped = save_and_map(directory, {each.name: getattr(postings, each.name) for each in fields(postings)})
        del postings, builder
        built, before = time.perf_counter() - started, own_memory()
        bm25 = Bm25(Postings(**mapped), [range(len(bench.texts))])

        def search(query: int) -> Any:
            words = [[numbers[word]] for word in analyzer.split_words(bench.queries[query]) if word in numbers]
            return top_k(bm25.score(words), 100)

        return [bench.row("ours: BM25 in arrays", search, built, size_of(directory), before, of_vectors=False)]


def fts5(bench: Bench) -> list[Row]:
    with bench.place() as directory:
        started, before = time.perf_counter(), own_memory()
        database = apsw.Connection(str(directory / "index.sqlite"))
        database.execute("CREATE VIRTUAL TABLE chunks USING fts5(text, content='', tokenize='porter unicode61')")
        with database:
            database.executemany("INSERT INTO chunks(rowid, text) VALUES (?, ?)", enumerate(bench.texts))
            database.execute("INSERT INTO chunks(chunks) VALUES ('optimize')")
        built = time.perf_counter() - started

        def search(query: int) -> list[int]:
            match = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", bench.queries[query]))
            sql = "SELECT rowid FROM chunks WHERE chunks MATCH ? ORDER BY rank LIMIT 100"
            return [number for (number,) in database.execute(sql, (match,))]

        return [bench.row("SQLite FTS5", search, built, size_of(directory), before, of_vectors=False)]


def bm25s(bench: Bench) -> list[Row]:
    import bm25s as library

    with bench.place() as directory:
        started = time.perf_counter()
        analyzer = Analyzer("en")
        index = library.BM25(k1=1.2, b=0.75)
        index.index([analyzer.split_words(text) for text in bench.texts], show_progress=False)
        index.save(str(directory))
        del index
        built, before = time.perf_counter() - started, own_memory()
        loaded = library.BM25.load(str(directory), mmap=True)
        search: Search = lambda query: loaded.retrieve(  # noqa: E731
            [analyzer.split_words(bench.queries[query])], k=100, show_progress=False
        ).documents[0]
        return [bench.row("bm25s", search, built, size_of(directory), before, of_vectors=False)]


def rank_bm25(bench: Bench) -> list[Row]:
    from rank_bm25 import BM25Okapi

    started, before = time.perf_counter(), own_memory()
    index = BM25Okapi([text.lower().split() for text in bench.texts])
    built = time.perf_counter() - started
    search: Search = lambda query: top_k(index.get_scores(bench.queries[query].lower().split()), 100)  # noqa: E731
    return [bench.row("rank_bm25", search, built, 0, before, of_vectors=False)]


def lance_words(bench: Bench) -> list[Row]:
    import lancedb
    import pyarrow

    with bench.place() as directory:
        started, before = time.perf_counter(), own_memory()
        data = pyarrow.table({"id": np.arange(len(bench.texts)), "text": bench.texts})
        table = lancedb.connect(directory).create_table("chunks", data)
        table.create_index("text", config=lancedb.index.FTS(stem=True, remove_stop_words=True))
        built = time.perf_counter() - started

        def search(query: int) -> list[int]:
            asked = table.search(bench.queries[query], query_type="fts").limit(100).select(["id", "_score"])
            return [each["id"] for each in asked.to_list()]

        return [bench.row("LanceDB, full text", search, built, size_of(directory), before, of_vectors=False)]


Engine = tuple[tuple[str, ...], Callable[[Bench], list[Row]]]
VECTORS: dict[str, Engine] = {
    "numpy": ((), numpy_exact),
    "ours": ((), ours_vectors),
    "usearch graph": (("usearch",), usearch_graph),
    "usearch exact": (("usearch",), usearch_exact),
    "sqlite-vec": (("sqlite_vec",), sqlite_vec),
    "lancedb": (("lancedb",), lance_vectors),
    "chroma": (("chromadb",), chroma),
}
WORDS: dict[str, Engine] = {
    "ours": ((), ours_words),
    "fts5": ((), fts5),
    "bm25s": (("bm25s",), bm25s),
    "rank_bm25": (("rank_bm25",), rank_bm25),
    "lancedb": (("lancedb",), lance_words),
}

if __name__ == "__main__":
    main()
