"""What lies at URIs now, as a digest: it changes with what lies there, and nothing of that is read."""

import hashlib
import re
from pathlib import Path

from gumshoe.artifacts.hub import dataset_commit
from gumshoe.artifacts.storage import NotFoundError, open_storage, split_uri

_KIND = re.compile(r"(?:maildir|mbox|eml|jsonl):(?!//)")


def state_of(uri: str) -> str:
    """Of `hf:DATASET`, its commit; of files (`file://`, `s3://` or a path, after the kind of source or without), their
    names, sizes and times.

    Raises:
        UsageError, NotFoundError: nothing lies there.
        StorageError, DatasetError, UnavailableError: it could not be looked at.
    """
    if uri.startswith("hf:"):
        return dataset_commit(uri)
    place = _KIND.sub("", uri, count=1)
    scheme, bucket, path = split_uri(place)
    if scheme == "s3":
        entries = open_storage(f"s3://{bucket}").entries(path)
        found = [each for each in entries if each.key == path or each.key.startswith(f"{path}/" if path else "")]
    else:
        one = Path(path).is_file()
        entries = open_storage(str(Path(path).parent) if one else path).entries(Path(path).name if one else "")
        found = [each for each in entries if not one or each.key == Path(path).name]
    if not found:
        raise NotFoundError(f"nothing lies at {place}; check the path")
    digest = hashlib.sha256()
    for each in sorted(found, key=lambda entry: entry.key):
        digest.update(f"{each.key}\0{each.size}\0{each.modified.isoformat()}\0".encode())
    return digest.hexdigest()
