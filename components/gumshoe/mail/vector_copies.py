"""Copy the vectors of messages into another segment."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gumshoe.artifacts.storage import flush_to_disk
from gumshoe.embeddings.vectors import CENTER, SIGNS, VECTORS
from gumshoe.mail.message_vectors import MessageChunk
from gumshoe.mail.schema import CHUNKS
from gumshoe.mail.segment import IndexSegment

_ROWS = 1 << 14

Numbers = NDArray[np.int64]


def copy_vectors(segments: Sequence[IndexSegment], messages: Numbers, numbers: Numbers, directory: Path) -> None:
    """Write the vectors of some messages of segments into the directory of another, if the segments have vectors.

    Args:
        messages: [messages]: ascending numbers of the messages.
        numbers: [messages]: their numbers in the new segment.
    """
    having = [each.directory for each in segments if (each.directory / CHUNKS).exists()]
    if not having:
        return
    chunks, signs, center = [np.zeros((len(MessageChunk._fields), 0), "<i4")], list[NDArray[Any]](), b""
    with (directory / VECTORS).open("wb") as file:
        for source in having:
            found = np.fromfile(source / CHUNKS, "<i4").reshape(len(MessageChunk._fields), -1)
            kept = np.flatnonzero(np.isin(found[0], messages))
            if not len(kept):
                continue
            center = (source / CENTER).read_bytes()
            vectors = np.memmap(source / VECTORS, "<f2", "r").reshape(found.shape[1], -1)
            for start in range(0, len(kept), _ROWS):
                file.write(vectors[kept[start : start + _ROWS]].tobytes())
            signs.append(np.memmap(source / SIGNS, "<u8", "r").reshape(-1, found.shape[1])[:, kept])
            chosen = found[:, kept]
            chosen[0] = numbers[np.searchsorted(messages, chosen[0])]
            chunks.append(chosen)
    (directory / CHUNKS).write_bytes(np.concatenate(chunks, axis=1).tobytes())
    if signs:
        (directory / SIGNS).write_bytes(np.concatenate(signs, axis=1).tobytes())
        (directory / CENTER).write_bytes(center)
    else:
        (directory / VECTORS).unlink()
    paths = [directory / name for name in (CHUNKS, VECTORS, SIGNS, CENTER)]
    flush_to_disk(each for each in paths if each.exists())
