"""SciFact (BEIR): real questions, and the documents that answer them."""

import csv
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gumshoe.documents.index import DocumentIndex


@dataclass(frozen=True)
class Quality:
    """Means over queries, computed as in `trec_eval`."""

    ndcg: float
    """nDCG@10."""
    recall: float
    """Recall@100."""


@dataclass(frozen=True)
class SciFact:
    """The documents as a source, the queries, and the relevant documents of each query."""

    source: str
    queries: dict[str, str]
    right: dict[str, dict[str, int]]

    @classmethod
    def read(cls, directory: Path) -> "SciFact":
        lines = (directory / "queries.jsonl").read_text(encoding="utf-8").splitlines()
        queries = {each["_id"]: " ".join(each["text"].split()) for each in map(json.loads, lines)}
        right: dict[str, dict[str, int]] = {}
        with (directory / "qrels" / "test.tsv").open(encoding="utf-8") as file:
            for row in csv.DictReader(file, delimiter="\t"):
                right.setdefault(row["query-id"], {})[row["corpus-id"]] = int(row["score"])
        return cls(f"jsonl:{directory / 'corpus.jsonl.gz'}", {each: queries[each] for each in right}, right)

    def half(self, odd: bool) -> "SciFact":
        """Return the queries with odd, or with even ids."""
        kept = {each: text for each, text in self.queries.items() if int(each) % 2 == odd}
        return SciFact(self.source, kept, self.right)

    def measure(self, index: DocumentIndex, **options: Any) -> Quality:
        """Search with some options, and return the quality of the results."""
        found = {
            each: [hit.document_id for hit in index.search(text, limit=100, **options)]
            for each, text in self.queries.items()
        }
        return self.quality(found)

    def quality(self, found: dict[str, list[str]]) -> Quality:
        """Return the quality of search results, given as document ids by query, best first."""
        ndcg = [_ndcg(listed[:10], self.right[each]) for each, listed in found.items()]
        recall = [
            len(self.right[each].keys() & set(listed[:100])) / len(self.right[each]) for each, listed in found.items()
        ]
        return Quality(sum(ndcg) / len(ndcg), sum(recall) / len(recall))


def _ndcg(listed: list[str], right: dict[str, int]) -> float:
    gained = sum(right.get(each, 0) / math.log2(place + 2) for place, each in enumerate(listed))
    ideal = sum(each / math.log2(place + 2) for place, each in enumerate(sorted(right.values(), reverse=True)[:10]))
    return gained / ideal
