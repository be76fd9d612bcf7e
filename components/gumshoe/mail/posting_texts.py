"""Turn postings back into the texts that they were made of: the terms and positions of each message of an inbox."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gumshoe.mail.postings import NO_POSITION

_BLOCK = 500_000  # postings looked at together, which takes about 60 bytes each
_ENVELOPE = 30  # terms of people and ids of a message

Arrays = dict[str, NDArray[Any]]
Numbers = NDArray[np.int64]


class PairText(NamedTuple):
    """The text of one message in one inbox."""

    pair: int
    """Number of the pair of inbox and message in its segment."""
    numbers: NDArray[np.uint32]
    """[occurrences]: number of each term."""
    positions: NDArray[np.uint16]
    """[occurrences]"""


def read_texts(
    arrays: Arrays, kept: NDArray[np.bool_], number_terms: Callable[[NDArray[np.uint64]], NDArray[np.uint32]]
) -> Iterator[PairText]:
    """Yield the text of each pair that is kept, in order.

    Args:
        arrays: those of `PostingsReader`.
        kept: [pairs]
        number_terms: returns the number of each of some different terms.
    """
    starts, term_starts = arrays["pair_starts"], arrays["term_starts"]
    totals = arrays["posting_starts"][term_starts].astype(np.int64)
    first, inboxes = 0, len(starts) - 1
    while first < inboxes:
        last = max(first + 1, int(np.searchsorted(totals, totals[first] + _BLOCK, "right")) - 1)
        begin, end = int(starts[first]), int(starts[last])
        pieces = min(-(-int(totals[last] - totals[first]) // _BLOCK), end - begin)
        bounds = np.linspace(begin, end, max(pieces, 1) + 1).astype(np.int64).tolist()
        for low, high in pairwise(bounds):
            if kept[low:high].any():
                yield from _read_block(arrays, range(first, last), range(low, high), kept, number_terms)
        first = last


def _read_block(
    arrays: Arrays,
    inboxes: range,
    pairs: range,
    kept: NDArray[np.bool_],
    number_terms: Callable[[NDArray[np.uint64]], NDArray[np.uint32]],
) -> Iterator[PairText]:
    """Yield the texts of some pairs, all of which are in some inboxes."""
    term_starts = arrays["term_starts"][inboxes.start : inboxes.stop + 1]
    terms = slice(*term_starts[[0, -1]].tolist())
    starts = arrays["posting_starts"][terms.start : terms.stop + 1].astype(np.int64)
    postings = slice(*starts[[0, -1]].tolist())
    term = np.repeat(np.arange(len(starts) - 1, dtype=np.int32), np.diff(starts))
    first_pairs = np.repeat(arrays["pair_starts"][inboxes.start : inboxes.stop], np.diff(term_starts))
    pair = first_pairs.astype(np.int32)[term] + arrays["ordinals"][postings]
    chosen = np.flatnonzero((pair >= pairs.start) & (pair < pairs.stop) & kept[pair])
    chosen = chosen[np.argsort(pair[chosen], kind="stable")]
    counts = arrays["counts"][postings].astype(np.int64)
    places = int(arrays["position_starts"][terms.start]) + np.cumsum(counts) - counts
    counts, places, term, pair = counts[chosen], places[chosen], term[chosen], pair[chosen]
    lengths = np.maximum(counts, 1)
    numbers = np.repeat(_number(arrays["terms"][terms], term, number_terms), lengths)
    positions = np.full(len(numbers), NO_POSITION, np.uint16)
    offsets = np.arange(len(numbers)) - np.repeat(np.cumsum(lengths) - lengths - places, lengths)
    is_word = np.repeat(counts > 0, lengths)
    positions[is_word] = arrays["positions"][offsets[is_word]]
    sizes = np.bincount(pair - pairs.start, lengths, len(pairs)).astype(np.int64)
    ends = np.cumsum(sizes)
    for place in np.flatnonzero(kept[pairs.start : pairs.stop]).tolist():
        part = slice(int(ends[place] - sizes[place]), int(ends[place]))
        yield PairText(pairs.start + place, numbers[part], positions[part])


def _number(
    terms: NDArray[np.uint64],
    places: NDArray[np.int32],
    number_terms: Callable[[NDArray[np.uint64]], NDArray[np.uint32]],
) -> NDArray[np.uint32]:
    """Return the number of the term at each place. Terms at no place get none."""
    is_used = np.zeros(len(terms), np.bool_)
    is_used[places] = True
    different, inverse = np.unique(terms[is_used], return_inverse=True)
    numbers = np.zeros(len(terms), np.uint32)
    numbers[is_used] = number_terms(different)[inverse]
    return numbers[places]


def measure_size(words: NDArray[np.int32]) -> int:
    """Return about how many occurrences messages with some numbers of words have, with people and ids."""
    return int(words.sum()) + _ENVELOPE * len(words)
