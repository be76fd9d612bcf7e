"""What lies at URIs now, as a digest: it changes with what lies there, and nothing of that is read."""

import hashlib
import re
from collections.abc import Iterable

from gumshoe.artifacts.hub import dataset_commit, local_dataset
from gumshoe.artifacts.storage import list_uri

_KIND = re.compile(r"(?:dir|maildir|mbox|eml|jsonl):(?!//)")


def digest_of_uris(uris: Iterable[str]) -> str:
    """Of `hf:DATASET`, its commit; of files (`file://`, `s3://` or a path, after the kind of source or without), their
    names, sizes and times.

    Raises:
        UsageError, NotFoundError: nothing lies at one of them.
        GumshoeError: one could not be looked at.
    """
    digest = hashlib.sha256()
    for uri in uris:
        directory = local_dataset(uri) if uri.startswith("hf:") else None
        if uri.startswith("hf:") and directory is None:
            digest.update(f"{dataset_commit(uri)}\0".encode())
            continue
        for each in list_uri(directory or _KIND.sub("", uri, count=1)):
            digest.update(f"{each.key}\0{each.size}\0{each.modified.isoformat()}\0".encode())
    return digest.hexdigest()
