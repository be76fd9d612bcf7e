"""Remove artifacts that nothing needs any longer."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType

from gumshoe.artifacts.manifest import DATA_PREFIX, MANIFEST, Manifest, check_kind, now
from gumshoe.artifacts.store import ABANDONED_AFTER, PRUNED, Store

# The files of one publication, and nothing that another program may have put beside them.
_PUBLICATION = re.compile(rf"(?P<reference>(?P<kind>.+)/[^/]+)/(?P<data>{DATA_PREFIX}[0-9a-f]{{32}})/.+", re.S)


@dataclass(frozen=True, slots=True)
class Pruned:
    """What `prune` removed, or would remove, and why it kept the rest."""

    removed: list[Manifest] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    """Reference to the reason for keeping it."""
    leftovers: int = 0
    """Files of publications that were never finished."""


def prune(
    store: Store,
    *,
    keep: int,
    older_than: timedelta,
    kind: str | None = None,
    retention: Mapping[str, timedelta] = MappingProxyType({}),
    dry_run: bool = False,
) -> Pruned:
    """Remove old artifacts, and the leftovers of publications that were never finished.

    Kept are the `keep` newest of each kind, the latest, those younger than `older_than`, and whatever a
    kept artifact was made from. With `kind`, other kinds are left alone. Leftovers go once they are as
    old as that, and a day at least: a publication may be under way. A removed version is not used again.

    `retention` is how long artifacts whose kind ends in that word may stay at all: older ones go, whatever else holds.

    Raises:
        InvalidNameError: the kind is not of the allowed form.
    """
    if kind is not None:
        check_kind(kind)
    manifests = store.list()
    over = {
        each.reference
        for each in manifests
        if (time := retention.get(each.kind.rpartition("/")[2])) is not None and each.created < now() - time
    }
    kept = _kept(store, manifests, keep, now() - older_than, kind)
    kept = {reference: reason for reference, reason in kept.items() if reference not in over}
    removed = [manifest for manifest in manifests if manifest.reference not in kept]
    unfinished = now() - max(older_than, ABANDONED_AFTER)
    leftovers = _leftovers(store, manifests, unfinished, kind)
    if not dry_run:
        for manifest in removed:
            remove(store, manifest)
        for folder in sorted({key[: key.index(f"/{DATA_PREFIX}")] for key in leftovers}):
            published = store.find(folder)  # it may have become visible since it was listed
            store.storage.delete(_leftovers(store, [published] if published else [], unfinished, kind, f"{folder}/"))
        store.storage.abandon_uploads(f"{kind}/" if kind else "", unfinished, _PUBLICATION)
    return Pruned(removed, kept, len(leftovers))


def remove(store: Store, manifest: Manifest) -> None:
    """Remove an artifact: its manifest before its files, since what is half removed must not be seen."""
    note = {"content": manifest.content, "created": manifest.created.isoformat(), "pruned": now().isoformat()}
    store.storage.create(f"{manifest.reference}/{PRUNED}", json.dumps(note).encode())
    store.storage.delete([f"{manifest.reference}/{MANIFEST}"])
    store.storage.delete([entry.key for entry in store.storage.entries(f"{manifest.reference}/{DATA_PREFIX}")])


def _kept(store: Store, manifests: list[Manifest], keep: int, since: datetime, kind: str | None) -> dict[str, str]:
    kept: dict[str, str] = {}
    kinds = {manifest.kind for manifest in manifests}
    for each in kinds:
        of_kind = [manifest.reference for manifest in manifests if manifest.kind == each]
        latest = store.latest(each)
        kept.update(dict.fromkeys(of_kind[max(0, len(of_kind) - keep) :], f"one of the {keep} newest"))
        kept.update(dict.fromkeys(of_kind, "of another kind") if kind not in {None, each} else {})
        kept.update({f"{each}/{latest}": "the latest"} if latest else {})
    kept.update({manifest.reference: "recent" for manifest in manifests if manifest.created > since})
    by_reference = {manifest.reference: manifest for manifest in manifests}
    kept = {reference: reason for reference, reason in kept.items() if reference in by_reference}
    waiting = list(kept)
    while waiting:
        reference = waiting.pop()
        for parent in by_reference[reference].made_from:
            if parent in by_reference and parent not in kept:
                kept[parent] = f"{reference} was made from it"
                waiting.append(parent)
    return kept


def _leftovers(
    store: Store, manifests: list[Manifest], before: datetime, kind: str | None, folder: str | None = None
) -> list[str]:
    """Files of publications that no manifest owns, last written before that time; those below a folder only."""
    owned = {(manifest.reference, manifest.data) for manifest in manifests}
    prefix = folder if folder is not None else f"{kind}/" if kind else ""
    return [
        entry.key
        for entry in store.storage.entries(prefix)
        if (found := _PUBLICATION.fullmatch(entry.key))
        and kind in {None, found["kind"]}
        and (found["reference"], found["data"]) not in owned
        and entry.modified < before
    ]
