"""Measure the quality and speed of document search, compared with the published design of this agent.

    python -m tests.benchmarks.documents                 # an hour, most of it for embeddings, which are cached
    python -m tests.benchmarks.documents --sizes 5000    # quality, and one size

Quality is measured on SciFact. For speed, SciFact is extended with pages of MedQuAD, repeated with a little noise in
their vectors. The published design is Chroma and rank_bm25, fused by rank with weights 0.8 and 0.2, as in LangChain's
EnsembleRetriever. It gets the same chunks and vectors, and the time to embed a query is not counted for either. It is
measured up to 50,000 chunks, and if it is installed: pip install chromadb rank-bm25
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from gumshoe.artifacts.response_cache import Cache, default_cache_path
from gumshoe.artifacts.sqlite import open_read_only
from gumshoe.documents.build import DocumentBuildOptions, build_document_index
from gumshoe.documents.document import Document
from gumshoe.documents.index import DocumentIndex
from gumshoe.documents.schema import DATABASE, chunk_texts, open_index_files
from gumshoe.embeddings.chunking import MAX_TOKENS, make_token_counter, split_text
from gumshoe.embeddings.embedder import OFFLINE_MODEL, CachedEmbedder, SentenceEmbedder, Use, Vectors
from gumshoe.embeddings.vectors import VECTORS
from tests.benchmarks.scifact import Quality, SciFact
from tests.documents.collection import read_documents

DATA = Path(__file__).parents[3] / "shared" / "data"
CHUNKS = "FROM chunks JOIN documents USING (document) ORDER BY chunk"
WEIGHTS = [step / 10 for step in range(11)]
NOISE = 0.02  # standard deviation for each number of a vector, whose mean size is 0.05
TURN = 20  # queries
PEER_UP_TO = 50_000  # chunks; with more, rank_bm25 takes a second per query


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sizes", type=int, nargs="*", default=[5_000, 50_000, 500_000], help="approximate numbers of chunks"
    )
    parser.add_argument("--pages", type=int, default=100, help="number of MedQuAD pages that are added")
    options = parser.parse_args()
    if not DATA.is_dir():
        sys.exit(f"the data does not exist: {DATA}")
    model = CachingEmbedder(SentenceEmbedder(OFFLINE_MODEL))
    scifact = SciFact.read(DATA / "scifact")
    with tempfile.TemporaryDirectory(prefix="gumshoe-benchmark-") as directory:
        place = Path(directory)
        measure_quality(place / "scifact", scifact, model)
        show_embedding(scifact, model)
        for size in options.sizes:
            measure_speed(place / str(size), scifact, model, size, options.pages)


class CachingEmbedder:
    """An embedding model with vectors cached on disk and in memory."""

    def __init__(self, model: SentenceEmbedder) -> None:
        self.model = model
        self.name, self.max_tokens = model.name, model.max_tokens
        self._cached = CachedEmbedder(model, Cache(default_cache_path("benchmark-embeddings")))
        self._vectors: dict[str, Vectors] = {}
        self._tokens: dict[str, int] = {}

    def count_tokens(self, texts: Sequence[str], use: Use) -> list[int]:
        new = [text for text in texts if text not in self._tokens]
        self._tokens |= zip(new, self.model.count_tokens(new, use), strict=True)
        return [self._tokens[text] for text in texts]

    def embed(self, texts: Sequence[str], use: Use) -> Vectors:
        new = list(dict.fromkeys(text for text in texts if text not in self._vectors))
        if new:
            self._vectors |= zip(new, self._cached.embed(new, use), strict=True)
        return np.stack([self._vectors[text] for text in texts])

    def close(self) -> None:
        self._cached.close()


class NoisyEmbedder:
    """An embedding model that adds noise to the vector of a repeated passage."""

    def __init__(self, model: CachingEmbedder) -> None:
        self.name, self.max_tokens = model.name, model.max_tokens
        self._model = model
        self._seen: set[str] = set()
        self._chance = np.random.default_rng(0)

    def embed(self, texts: Sequence[str], use: Use) -> Vectors:
        found = self._model.embed(texts, use)
        again = [place for place, text in enumerate(texts) if text in self._seen]
        self._seen.update(texts)
        found[again] += self._chance.normal(0, NOISE, (len(again), found.shape[1])).astype(np.float32)
        noisy: Vectors = found / np.linalg.norm(found, axis=1, keepdims=True)
        return noisy

    def count_tokens(self, texts: Sequence[str], use: Use) -> list[int]:
        return self._model.count_tokens(texts, use)

    def close(self) -> None:
        self._model.close()


def show(title: str, header: list[str], rows: list[list[str]]) -> None:
    table = Table(*header, title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    Console(width=130).print(table)


# Quality


def measure_quality(directory: Path, scifact: SciFact, model: CachingEmbedder) -> None:
    """Measure both retrievers and their fusion on all queries, and a weight tuned on one half on the other half."""
    build_document_index([scifact.source], directory, DocumentBuildOptions(OFFLINE_MODEL), embedder=model)
    index = DocumentIndex(directory, model)
    parts: list[tuple[str, dict[str, Any]]] = [
        ("words (BM25)", {"dense_weight": 0.0}),
        ("meaning (MiniLM)", {"dense_weight": 1.0}),
        ("both, by score, 0.8 and 0.2", {}),
        ("both, by rank, 0.8 and 0.2", {"fusion": "rank"}),
    ]
    rows = [[title, *_shown(scifact.measure(index, **options))] for title, options in parts]
    show(f"SciFact, {len(scifact.queries)} queries", ["search", "nDCG@10", "recall@100"], rows)
    odd, even = scifact.half(odd=True), scifact.half(odd=False)
    rows = []
    for fusion in ("score", "rank"):
        swept = {weight: odd.measure(index, dense_weight=weight, fusion=fusion).ndcg for weight in WEIGHTS}
        weight = max(WEIGHTS, key=lambda each, swept=swept: swept[each])  # type: ignore[misc]
        rows.append(
            [
                fusion,
                f"{weight}",
                f"{swept[weight]:.4f}",
                *_shown(even.measure(index, dense_weight=weight, fusion=fusion)),
            ]
        )
        print(f"by {fusion}, nDCG@10 on odd ids by weight:", {each: round(swept[each], 4) for each in WEIGHTS})
    rows += [[title, "", "", *_shown(even.measure(index, **options))] for title, options in parts]
    header = ["fusion", "weight of meaning", "nDCG@10, odd ids", "nDCG@10, even ids", "recall@100, even ids"]
    show("The best weight on queries with odd ids, and all searches above, on queries with even ids", header, rows)


def _shown(quality: Quality) -> list[str]:
    return [f"{quality.ndcg:.4f}", f"{quality.recall:.4f}"]


def show_embedding(scifact: SciFact, model: CachingEmbedder) -> None:
    """Print the time to embed a query, which is not counted below."""
    queries = list(scifact.queries.values())
    alone = [timed(lambda query=query: model.model.embed([query], "query")) for query in queries[:100]]  # type: ignore[misc]
    together = timed(lambda: model.model.embed(queries[:64], "query"))
    shown = [1000 * statistics.median(alone), 1000 * together / 64]
    print("embedding a query: {:.1f} ms alone, {:.1f} ms in a batch of 64".format(*shown))


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


# Speed


def measure_speed(directory: Path, scifact: SciFact, model: CachingEmbedder, size: int, pages: int) -> None:
    """Measure build time, disk, memory and query time for about this number of chunks, and those of the peer."""
    directory.mkdir()
    source = directory / "documents.jsonl"
    with source.open("w", encoding="utf-8") as file:
        for document in grow(scifact, model, size, pages):
            record = {"id": document.document_id, "title": document.title, "text": document.text}
            file.write(json.dumps(record) + "\n")
    options = DocumentBuildOptions(OFFLINE_MODEL, drop_duplicates=False)
    report = build_document_index([f"jsonl:{source}"], directory / "ours", options, embedder=NoisyEmbedder(model))
    index = DocumentIndex(directory / "ours", model)
    model.embed(list(scifact.queries.values()), "query")
    memory = searching_memory(index, directory / "ours", scifact, model)
    costs = [f"{report.seconds:,.0f} s", f"{_bytes(directory / 'ours') >> 20:,} MiB", f"{memory:,.0f} MiB"]

    def ours(text: str) -> list[str]:
        return [hit.document_id for hit in index.search(text)]

    peer = make_peer(directory) if report.counts.chunks <= PEER_UP_TO * 1.1 else None
    if peer is None:
        (mine,) = measure_searches(scifact, ours)
        rows = [_row("ours", scifact, mine, costs)]
    else:
        queries = list(scifact.queries.values())
        vectors = dict(zip(queries, model.embed(queries, "query"), strict=True))
        mine, theirs = measure_searches(scifact, ours, lambda text: peer.search(text, vectors[text]))
        ratios = [
            f"{slow / quick:.1f} times" for slow, quick in zip(_two(theirs.seconds), _two(mine.seconds), strict=True)
        ]
        rows = [
            _row("ours", scifact, mine, costs),
            _row("Chroma and rank_bm25", scifact, theirs, peer.costs),
            ["ours is faster", *ratios, "", "", "", ""],
        ]
    header = ["", "median", "99th percentile", "nDCG@10", "build without embedding", "disk", "private memory"]
    show(f"{report.counts.chunks:,} chunks, {len(scifact.queries)} queries, ten results", header, rows)


def _row(title: str, scifact: SciFact, searched: "SearchResults", costs: list[str]) -> list[str]:
    times = [f"{1000 * each:.2f} ms" for each in _two(searched.seconds)]
    return [title, *times, f"{scifact.quality(searched.found).ndcg:.4f}", *costs]


def _two(values: list[float]) -> tuple[float, float]:
    """Return the median and the 99th percentile."""
    return statistics.median(values), statistics.quantiles(values, n=100, method="inclusive")[98]


def _bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def grow(scifact: SciFact, model: CachingEmbedder, size: int, pages: int) -> Iterator[Document]:
    """Yield documents of SciFact, and then repeated pages of MedQuAD, until there are about `size` chunks."""

    def chunks(document: Document) -> int:
        return len(split_text(document.text, document.list_context(), MAX_TOKENS, make_token_counter(model)).chunks)

    right = {each for listed in scifact.right.values() for each in listed}
    documents = sorted(read_documents(scifact.source), key=lambda each: each.document_id not in right)
    count = 0
    for document in documents:
        if count >= size:
            return
        count += chunks(document)
        yield document
    listed = read_documents(f"jsonl:{DATA / 'medquad' / 'medquad.jsonl.gz'}")[:pages]
    sizes = [chunks(page) for page in listed]
    for copy in itertools.count():
        for page, added in zip(listed, sizes, strict=True):
            if count >= size:
                return
            count += added
            yield Document(f"{page.document_id}-{copy}", page.title, page.text)


class Peer:
    """Chroma and rank_bm25 with the chunks and vectors of one of our indexes."""

    def __init__(self, directory: Path, ours: Path) -> None:
        import chromadb
        from rank_bm25 import BM25Okapi

        started, before = time.perf_counter(), own_memory()
        files = open_index_files(ours)
        database = open_read_only(files.folder / DATABASE)
        self.owners = [each for (each,) in database.execute(f"SELECT document_id {CHUNKS}")]
        texts, vectors = list(chunk_texts(database, 0)), files.array(VECTORS)
        client = chromadb.PersistentClient(str(directory), settings=chromadb.Settings(anonymized_telemetry=False))
        self.collection = client.create_collection("chunks", metadata={"hnsw:space": "cosine"})
        for start in range(0, len(texts), 5000):
            part = slice(start, start + 5000)
            numbers = [str(number) for number in range(*part.indices(len(texts)))]
            self.collection.add(ids=numbers, documents=texts[part], embeddings=vectors[part].astype(np.float32))
        self.words = BM25Okapi([text.lower().split() for text in texts])
        seconds, memory = time.perf_counter() - started, own_memory() - before
        self.costs = [f"{seconds:,.0f} s", f"{_bytes(directory) >> 20:,} MiB", f"{memory:,.0f} MiB"]

    def search(self, query: str, vector: Vectors, limit: int = 10) -> list[str]:
        near = self.collection.query(query_embeddings=[vector], n_results=100, include=[])["ids"][0]
        scores = self.words.get_scores(query.lower().split())
        fused: dict[int, float] = {}
        for weight, listed in ((0.8, map(int, near)), (0.2, np.argsort(-scores)[:100].tolist())):
            for rank, chunk in enumerate(listed, 1):
                fused[chunk] = fused.get(chunk, 0) + weight / (60 + rank)
        best = sorted(fused, key=lambda chunk: -fused[chunk])
        return list(dict.fromkeys(self.owners[chunk] for chunk in best))[:limit]


def make_peer(directory: Path) -> Peer | None:
    if find_spec("chromadb") and find_spec("rank_bm25"):
        return Peer(directory / "peer", directory / "ours")
    print("the published design is not installed: pip install chromadb rank-bm25", file=sys.stderr)
    return None


@dataclass
class SearchResults:
    """The results of each query, and the seconds of each."""

    found: dict[str, list[str]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)


def measure_searches(scifact: SciFact, *searches: Callable[[str], list[str]]) -> list[SearchResults]:
    """Run all queries with each search, alternating after a few queries, so that load affects all searches equally."""
    measured = [SearchResults() for _ in searches]
    queries = iter(scifact.queries.items())
    while some := list(itertools.islice(queries, TURN)):
        for search, each in zip(searches, measured, strict=True):
            for name, text in some:
                started = time.perf_counter()
                each.found[name] = search(text)
                each.seconds.append(time.perf_counter() - started)
    return measured


def own_memory() -> float:
    """Return the private memory of this process, without the page cache, in MiB."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]) / 1024


_MEMORY = """
import json, sys
import numpy as np
from gumshoe.documents.index import DocumentIndex
from tests.benchmarks.documents import own_memory

class KnownVectors:
    name = "known"
    def __init__(self, known):
        self.known = known
    def embed(self, texts, use):
        return np.array([self.known[text] for text in texts], np.float32)
    def close(self):
        pass

queries, known = json.load(sys.stdin)
before = own_memory()
index = DocumentIndex(sys.argv[1], KnownVectors(known))
for query in queries:
    index.search(query)
print(own_memory() - before)
"""


def searching_memory(index: DocumentIndex, directory: Path, scifact: SciFact, model: CachingEmbedder) -> float:
    """Return the private memory of a new process after all queries, without the embedding model, in MiB."""
    with closing(open_read_only(index.path)) as database:
        first = next(chunk_texts(database, 0))  # the index compares its vector with the model's
    queries = list(scifact.queries.values())
    texts = [*queries, first]
    known = {text: vector.tolist() for text, vector in zip(texts, model.embed(texts, "query"), strict=True)}
    ran = subprocess.run(
        [sys.executable, "-c", _MEMORY, str(directory)],
        input=json.dumps([queries, known]),
        capture_output=True,
        text=True,
        check=True,
    )
    return float(ran.stdout)


if __name__ == "__main__":
    main()
