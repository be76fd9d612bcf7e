"""Postings per inbox: for each term, the messages of one inbox that contain it.

A message's words are indexed once for each inbox that holds it, so a search touches only what belongs to its inbox. The
arrays of a segment are in one file, little-endian, mapped into memory. An inbox owns one range of each array:

- `pair_*` [pairs]: its messages, oldest first. A message's place in that range is its *ordinal*.
- `terms` [terms]: 64-bit terms (see `gumshoe.mail.words`), ascending.
- `ordinals`, `weights`, `counts` [postings]: for each term, the messages that contain it, ascending.
- `positions` [occurrences]: for each posting, `counts` positions of the term, ascending.
"""

import shutil
from array import array
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

ARRAYS = {
    "pair_starts": "<i8", "term_starts": "<i8", "inbox_words": "<i8",  # [inboxes + 1], [inboxes + 1], [inboxes]
    "pair_messages": "<i4", "pair_times": "<i8", "pair_words": "<i4", "pair_subjects": "<u2",  # [pairs]
    "terms": "<u8", "posting_starts": "<u4", "position_starts": "<u4",  # [terms], [terms + 1], [terms + 1]
    "ordinals": "<u2", "weights": "u1", "counts": "u1",  # [postings]
    "positions": "<u2",
}  # fmt: skip
"""Type of each array."""
ARRAY_ORDER = sorted(ARRAYS, key=lambda name: -np.dtype(ARRAYS[name]).itemsize)
"""Order of the arrays in their file."""
NO_DATE = -(1 << 47)
"""Stands for the date of a message without one, in seconds since 1970."""
TIE_BITS = 16
"""Lower bits of `pair_times`, which sort messages of the same second. See `sort_key`."""
_NO_TIME = (1 << 63) - 1
_FIRST_DATED = (NO_DATE + 1) << TIE_BITS  # less than the key of any message with a date
NO_POSITION = 0xFFFF
"""Position of a term that is not a word of the text, such as an id or an address."""
MAX_POSITION = NO_POSITION - 1_000
"""Words from this position on are found, but not as parts of phrases. Names of people come after it."""
POSITION_BITS = 16
_CHUNK = 500_000  # occurrences sorted at once, each 8 bytes, unless one inbox has more
_BLOCK = 60_000  # occurrences looked at together, which takes about 100 bytes each
_MAX_COUNT = 255
_COPIED = 1 << 20  # bytes copied at once
SUBJECT_WEIGHT = 2  # a word in the subject counts as much as two in the body

Numbers = NDArray[np.int64]


def sort_key(sent: int | None, shown_id: str) -> int:
    """Return the number by which an inbox sorts a message, given its date and the id under which it is listed.

    Messages of the same second are sorted by a digest of the id, so that neither other inboxes nor the way in which the
    index was built decide.
    """
    digest = blake2b(shown_id.encode("utf-8", "surrogatepass"), digest_size=TIE_BITS // 8).digest()
    return ((NO_DATE if sent is None else sent) << TIE_BITS) | int.from_bytes(digest, "little")


class PostingsWriter:
    """Collect the words of texts and the inboxes that hold them, and write the arrays of a segment."""

    def __init__(self) -> None:
        self.occurrences = 0
        """Words collected, counted once for each inbox."""
        self.addresses: dict[str, int] = {}
        """Number of each inbox. `write` renumbers them."""
        self._terms = np.zeros(0, np.uint64)  # ascending
        self._numbers_of_terms = np.zeros(0, np.uint32)
        self._numbers, self._positions = array("I"), array("H")  # of all texts; unlike arrays of numpy, they grow
        self._lengths = array("q")  # of each text, in occurrences
        self._messages, self._times, self._inboxes, self._words, self._subjects = (array("q") for _ in range(5))
        self._part_pairs, self._part_texts = array("q"), array("q")

    def number_terms(self, terms: NDArray[np.uint64]) -> NDArray[np.uint32]:
        """Return the numbers [terms] by which this segment knows different terms. Numbers take half the memory."""
        places = np.searchsorted(self._terms, terms)
        is_new = np.ones(len(terms), np.bool_)
        if len(self._terms):
            np.not_equal(self._terms[np.minimum(places, len(self._terms) - 1)], terms, out=is_new)
        new = np.sort(terms[is_new])
        added = np.searchsorted(self._terms, new)
        numbers = np.arange(len(self._terms), len(self._terms) + len(new), dtype=np.uint32)
        self._terms = np.insert(self._terms, added, new)
        self._numbers_of_terms = np.insert(self._numbers_of_terms, added, numbers)
        found: NDArray[np.uint32] = self._numbers_of_terms[np.searchsorted(self._terms, terms)]
        return found

    def add_text(self, numbers: NDArray[np.uint32], positions: NDArray[np.uint16]) -> int:
        """Add a text, given by the numbers and the positions [occurrences] of its terms. Return its number."""
        self._numbers.frombytes(numbers.tobytes())
        self._positions.frombytes(positions.tobytes())
        self._lengths.append(len(numbers))
        return len(self._lengths) - 1

    def add_pair(self, inbox: str, message: int, words: int, subject: int) -> int:
        """Put a message into an inbox and return the number of the pair. It has no text and no time yet.

        `words` is the number of its words, and `subject` that of the words of its subject.
        """
        self._inboxes.append(self.addresses.setdefault(inbox, len(self.addresses)))
        self._messages.append(message)
        self._times.append(_NO_TIME)
        self._words.append(words)
        self._subjects.append(subject)
        return len(self._inboxes) - 1

    def add_time(self, pair: int, time: int) -> None:
        """Add the `sort_key` of a copy. That of the earliest copy counts, or of the earliest one with a date."""
        known = self._times[pair]
        if known == _NO_TIME or (time < _FIRST_DATED, time) < (known < _FIRST_DATED, known):
            self._times[pair] = time

    def add_part(self, pair: int, text: int) -> None:
        """Give a text to a message of an inbox, beside the texts that it has already."""
        self._part_pairs.append(pair)
        self._part_texts.append(text)
        self.occurrences += self._lengths[text]

    def write(self, path: Path) -> dict[str, int]:
        """Write all arrays into a file, and return the size of each in bytes."""
        ranks = np.empty(len(self._terms), np.uint32)
        ranks[self._numbers_of_terms] = np.arange(len(ranks), dtype=np.uint32)
        pairs = self._sort_pairs()
        part_pairs = pairs.new_numbers[_to_array(self._part_pairs)]
        by_pair = np.argsort(part_pairs, kind="stable")
        lengths = _to_array(self._lengths)
        numbers, positions = np.frombuffer(self._numbers, np.uint32), np.frombuffer(self._positions, np.uint16)
        for start in range(0, len(numbers), _BLOCK):  # in place
            numbers[start : start + _BLOCK] = ranks[numbers[start : start + _BLOCK]]
        occurrences = _Occurrences(
            ranks=numbers,
            positions=positions,
            starts=np.cumsum(lengths) - lengths,
            lengths=lengths,
            part_starts=np.searchsorted(part_pairs[by_pair], np.arange(len(pairs.messages) + 1)),
            part_texts=_to_array(self._part_texts)[by_pair],
        )
        with ExitStack() as stack:
            files: dict[str, IO[bytes]] = {
                name: stack.enter_context(TemporaryFile(dir=path.parent)) for name in ARRAY_ORDER
            }
            arrays = _Arrays(files)
            _add_pairs(arrays, pairs)
            _add_postings(arrays, pairs, occurrences, self._terms)
            return arrays.write(path)

    def _sort_pairs(self) -> "_Pairs":
        """Sort the messages of each inbox by date, those of one date in reverse order. The largest inbox is first."""
        inbox, message, times, words, subjects = map(
            _to_array, (self._inboxes, self._messages, self._times, self._words, self._subjects)
        )
        sizes = np.bincount(inbox, minlength=len(self.addresses))
        by_size = np.argsort(-sizes, kind="stable")
        place = np.empty(len(sizes), np.int64)
        place[by_size] = np.arange(len(sizes))
        self.addresses = {address: int(place[number]) for address, number in self.addresses.items()}
        order = np.lexsort((-message, times, place[inbox]))
        new_numbers = np.empty(len(order), np.int64)
        new_numbers[order] = np.arange(len(order))
        starts = np.concatenate([[0], np.cumsum(sizes[by_size])]).astype(np.int64)
        return _Pairs(starts, message[order], times[order], words[order], subjects[order], new_numbers)


def _to_array(values: "array[int]") -> Numbers:
    return np.array(values, np.int64)


@dataclass(frozen=True, slots=True)
class _Pairs:
    """All pairs of inbox and message, sorted by inbox."""

    starts: Numbers
    messages: Numbers
    times: Numbers
    words: Numbers
    subjects: Numbers
    new_numbers: Numbers
    """New number of each pair, by the number that `add_pair` returned."""


@dataclass(frozen=True, slots=True)
class _Occurrences:
    """Terms and positions of all texts, and the texts of each pair."""

    ranks: NDArray[np.uint32]
    positions: NDArray[np.uint16]
    starts: Numbers
    lengths: Numbers
    part_starts: Numbers
    """[pairs + 1]"""
    part_texts: Numbers


def _add_pairs(arrays: "_Arrays", pairs: _Pairs) -> None:
    arrays.append("pair_starts", pairs.starts)
    arrays.append("pair_messages", pairs.messages)
    arrays.append("pair_times", pairs.times)
    arrays.append("pair_words", pairs.words)
    arrays.append("pair_subjects", np.minimum(pairs.subjects, NO_POSITION))
    sums = np.concatenate([[0], np.cumsum(pairs.words)])
    arrays.append("inbox_words", sums[pairs.starts[1:]] - sums[pairs.starts[:-1]])


def _add_postings(arrays: "_Arrays", pairs: _Pairs, occurrences: _Occurrences, terms: NDArray[np.uint64]) -> None:
    sizes = np.add.reduceat(
        np.append(occurrences.lengths[occurrences.part_texts], 0), occurrences.part_starts[:-1], dtype=np.int64
    )
    totals = np.concatenate([[0], np.cumsum(sizes)])
    rank_bits = max(len(terms).bit_length(), 1)
    postings = places = found_terms = 0
    term_starts = [np.zeros(1, np.int64)]
    for first, last in _split_inboxes(pairs.starts, totals, 64 - POSITION_BITS - rank_bits):
        keys, ordinal_bits = _sort_keys(pairs, occurrences, first, last, rank_bits)
        owners: list[NDArray[np.int64]] = []  # inbox of each term
        previous = -1
        for block in _split_blocks(keys):
            found = _split_keys(block, ordinal_bits, rank_bits)
            pair = pairs.starts[first + found.inboxes.astype(np.int64)] + found.ordinals
            counts, weights, positions = _weigh(block, found.starts, pairs.subjects[pair])
            is_new = differs(found.terms)
            is_new[0] = int(found.terms[0]) != previous
            new_terms = np.flatnonzero(is_new)
            position_starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
            arrays.append("ordinals", found.ordinals)
            arrays.append("weights", weights)
            arrays.append("counts", counts)
            arrays.append("positions", positions)
            arrays.append("terms", terms[(found.terms[new_terms] & np.uint64((1 << rank_bits) - 1)).astype(np.int64)])
            arrays.append("posting_starts", postings + new_terms)
            arrays.append("position_starts", places + position_starts[new_terms])
            owners.append(found.inboxes[new_terms].astype(np.int64))
            previous = int(found.terms[-1])
            postings += len(found.ordinals)
            places += int(position_starts[-1])
        all_owners = np.concatenate(owners) if owners else np.zeros(0, np.int64)
        term_starts.append(found_terms + np.searchsorted(all_owners, np.arange(1, last - first + 1)))
        found_terms += len(all_owners)
    arrays.append("term_starts", np.concatenate(term_starts))
    arrays.append("posting_starts", np.array([postings]))
    arrays.append("position_starts", np.array([places]))


def _split_blocks(keys: NDArray[np.uint64]) -> Iterator[NDArray[np.uint64]]:
    """Yield the different ones of sorted keys, in blocks that do not split a posting.

    What is computed from a block takes much memory.
    """
    start = 0
    while start < len(keys):
        end = min(start + _BLOCK, len(keys))
        after = ((int(keys[end - 1]) >> POSITION_BITS) + 1) << POSITION_BITS
        end = int(np.searchsorted(keys, np.uint64(after))) if after < 1 << 64 else len(keys)
        block = keys[start:end]
        yield block[differs(block)]
        start = end


def _split_inboxes(starts: Numbers, totals: Numbers, bits: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of inboxes that are sorted together: inbox, ordinal and term must fit into one key."""
    first, inboxes = 0, len(starts) - 1
    while first < inboxes:
        ordinal_bits = max(int(starts[first + 1] - starts[first]).bit_length(), 1)  # the first inbox is the largest
        most = first + (1 << max(bits - ordinal_bits, 0))
        limit = int(np.searchsorted(totals[starts], totals[starts[first]] + _CHUNK))
        last = max(first + 1, min(most, limit, inboxes))
        yield first, last
        first = last


def _sort_keys(
    pairs: _Pairs, occurrences: _Occurrences, first: int, last: int, rank_bits: int
) -> tuple[NDArray[np.uint64], int]:
    """Return the sorted keys (inbox, term, ordinal, position) of some inboxes, and the number of bits of an ordinal.

    A key may occur several times.
    """
    begin, end = int(pairs.starts[first]), int(pairs.starts[last])
    ordinal_bits = max(int(pairs.starts[first + 1] - begin).bit_length(), 1)
    sizes = np.diff(pairs.starts[first : last + 1])
    inbox = np.repeat(np.arange(last - first, dtype=np.uint64), sizes)
    ordinal = (np.arange(begin, end) - np.repeat(pairs.starts[first:last], sizes)).astype(np.uint64)
    bases = (inbox << np.uint64(rank_bits + ordinal_bits + POSITION_BITS)) | (ordinal << np.uint64(POSITION_BITS))
    parts = occurrences.part_starts[begin : end + 1]
    texts = occurrences.part_texts[parts[0] : parts[-1]]
    part_bases = np.repeat(bases, np.diff(parts))
    ends = np.cumsum(occurrences.lengths[texts])
    keys = np.empty(int(ends[-1]) if len(ends) else 0, np.uint64)
    filled = low = 0
    while low < len(texts):
        high = max(low + 1, int(np.searchsorted(ends, filled + _BLOCK)))
        lengths = occurrences.lengths[texts[low:high]]
        places = to_ranges(occurrences.starts[texts[low:high]], lengths)
        block = keys[filled : int(ends[high - 1])]
        block[:] = occurrences.ranks[places]
        block <<= np.uint64(ordinal_bits + POSITION_BITS)
        block |= np.repeat(part_bases[low:high], lengths)
        block |= occurrences.positions[places]
        filled, low = int(ends[high - 1]), high
    keys.sort()
    return keys, ordinal_bits


def to_ranges(starts: Numbers, lengths: Numbers) -> Numbers:
    """Return the concatenation of the ranges that begin at `starts`."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    ranges: Numbers = np.arange(total) + np.repeat(starts - (ends - lengths), lengths)
    return ranges


def differs(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return True for each value that differs from the one before it."""
    changed = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=changed[1:])
    return changed


@dataclass(frozen=True, slots=True)
class _SplitKeys:
    starts: Numbers
    """[postings + 1]: first key of each posting."""
    ordinals: NDArray[np.int64]
    terms: NDArray[np.uint64]
    """[postings]: inbox and rank of the term."""
    inboxes: NDArray[np.uint64]


def _split_keys(keys: NDArray[np.uint64], ordinal_bits: int, rank_bits: int) -> _SplitKeys:
    postings = keys >> np.uint64(POSITION_BITS)
    firsts = np.flatnonzero(differs(postings))
    postings = postings[firsts]
    terms = postings >> np.uint64(ordinal_bits)
    ordinals = (postings & np.uint64((1 << ordinal_bits) - 1)).astype(np.int64)
    return _SplitKeys(np.append(firsts, len(keys)), ordinals, terms, terms >> np.uint64(rank_bits))


def _weigh(
    keys: NDArray[np.uint64], starts: Numbers, subjects: Numbers
) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint16]]:
    """Return counts [postings], weights [postings] and positions [sum of counts]."""
    positions = (keys & np.uint64(NO_POSITION)).astype(np.uint16)
    sizes = np.diff(starts)
    is_word = positions != NO_POSITION
    in_subject = (positions < np.repeat(subjects, sizes)) & is_word
    extra = (SUBJECT_WEIGHT - 1) * np.add.reduceat(in_subject, starts[:-1], dtype=np.int64) if len(sizes) else 0
    weights = np.minimum(sizes + extra, 255).astype(np.uint8)
    if len(sizes) and sizes.max() > _MAX_COUNT:
        within = np.arange(len(keys)) - np.repeat(starts[:-1], sizes)
        is_word &= within < _MAX_COUNT
    counts = np.add.reduceat(is_word, starts[:-1], dtype=np.int64) if len(sizes) else sizes
    return counts.astype(np.uint8), weights, positions[is_word]


@dataclass(frozen=True, slots=True)
class _Arrays:
    """The arrays of a segment, collected part by part in unnamed files beside the file that `write` makes of them."""

    files: dict[str, IO[bytes]]
    """File of each array, in their order."""

    def append(self, name: str, values: NDArray[Any]) -> None:
        self.files[name].write(np.ascontiguousarray(values, ARRAYS[name]).data)

    def write(self, path: Path) -> dict[str, int]:
        """Write all arrays, the widest numbers first, so that each is aligned. Return the size of each in bytes."""
        sizes = {name: file.tell() for name, file in self.files.items()}
        with path.open("wb") as whole:
            for file in self.files.values():
                file.seek(0)
                shutil.copyfileobj(file, whole, _COPIED)
        return sizes
