"""Detect the kind of an index."""

from pathlib import Path

from gumshoe.corpus import CORPORA, Corpus, find_corpus
from gumshoe.errors import UsageError


def detect_corpus(directory: Path) -> Corpus:
    """Return the kind of corpus whose index is in a directory.

    Raises:
        UsageError: if the directory has no index.
    """
    corpora = [corpus for name in CORPORA if (corpus := find_corpus(name))]
    for corpus in corpora:
        if corpus.is_index(directory):
            return corpus
    commands = " or ".join(f"`{corpus.index_command}`" for corpus in corpora)
    raise UsageError("scenarios.no-index", f"no index in {directory}; build one with {commands}")
