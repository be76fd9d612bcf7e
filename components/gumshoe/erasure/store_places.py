"""Erase a target from a store: publish redacted successors of artifacts, and delete the old ones."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import ValidationError

from gumshoe.artifacts.manifest import DATA_PREFIX, MANIFEST, REPLACES, Manifest
from gumshoe.artifacts.private_data import MARK, PrivateCopy, find_private_copies, remove_private_copies
from gumshoe.artifacts.pruning import remove_artifact
from gumshoe.artifacts.store import Store
from gumshoe.documents.schema import DATABASE as DOCUMENT_DATABASE
from gumshoe.documents.schema import FACTS as DOCUMENT_INDEX
from gumshoe.erasure.learned import explain_learning
from gumshoe.erasure.places import (
    ADAPTER_FILE,
    PlacePlan,
    apply_change,
    collect_questions,
    contains_name,
    find_mentions,
    plan_place,
)
from gumshoe.erasure.question_links import Links
from gumshoe.erasure.record_files import redact_value
from gumshoe.erasure.target import EraseTarget
from gumshoe.mail.schema import FILE_NAME as MAIL_INDEX
from gumshoe.scenarios.lineage import LINEAGE_FILE, Lineage

_READ_SUFFIXES = {".jsonl", ".ndjson", ".csv", ".html", ".htm", ".log", ".gz"}
_READ_NAMES = {MARK, MAIL_INDEX, DOCUMENT_INDEX, DOCUMENT_DATABASE}


@dataclass(frozen=True, slots=True)
class ArtifactChange:
    """An artifact with content to erase."""

    reference: str
    count: int
    """Number of records, messages, documents and files that are erased."""


@dataclass(slots=True)
class StorePlan:
    """The artifacts and outputs to change in a store, and those that cannot be changed."""

    changes: list[ArtifactChange] = field(default_factory=list)
    copies: list[PrivateCopy] = field(default_factory=list)
    """Marked directories that are not artifacts, such as outputs of steps. They are deleted."""
    adapters: dict[str, str] = field(default_factory=dict)
    """Reason why each adapter may have learned erased content, by reference."""
    remaining: list[str] = field(default_factory=list)
    """Artifacts with files or settings that name the target and cannot be changed."""
    outdated: list[str] = field(default_factory=list)
    """Artifacts with indexes of another version of Gumshoe, which cannot be read: they may contain the target."""


class StoreErasure:
    """Find and erase a target in a store. `scratch` is a directory for copies of artifacts, on this machine."""

    def __init__(self, store: Store, target: EraseTarget, links: Links, scratch: Path) -> None:
        self._store, self._target, self._links, self._scratch = store, target, links, scratch

    def collect(self) -> None:
        """Add the questions in the store that concern the target to the links."""
        for manifest in self._store.list():
            if _may_quote(manifest):
                with self._fetch(manifest) as directory:
                    collect_questions(directory, self._links)

    def plan(self) -> StorePlan:
        """Plan the changes in the store, without changing anything."""
        plan = StorePlan()
        manifests = self._store.list()
        for manifest in manifests:
            if _is_adapter(manifest):
                if (reason := self._explain_learning(manifest)) is not None:
                    plan.adapters[manifest.reference] = reason
                if self._target.concerns(manifest.settings):
                    plan.remaining.append(manifest.reference)
                continue
            found = self._plan_artifact(manifest)
            settings = redact_value(manifest.settings, self._target.concerns, self._target)[1]
            count = sum(each.count for each in found.changes) + settings
            if count:
                plan.changes.append(ArtifactChange(manifest.reference, count))
            plan.remaining += [manifest.reference] if found.remaining else []
            plan.outdated += [manifest.reference] if found.outdated else []
        self._add_descendants(plan, manifests)
        plan.copies = self._find_outputs()
        return plan

    def _find_outputs(self) -> list[PrivateCopy]:
        """Return the marked directories, other than artifacts, that quote the inbox or name the target."""
        target, storage = self._target, self._store.storage
        of_inbox = find_private_copies(storage, target.is_same_inbox) if target.kind == "inbox" else []
        found = {each.place: each for each in of_inbox}
        if target.is_strict or target.kind == "document":
            for each in find_private_copies(storage, None):
                if each.place not in found and any(self._names_target(key) for key in each.keys):
                    found[each.place] = each
        return [each for each in found.values() if not any(f"/{DATA_PREFIX}" in key for key in each.keys)]

    def _names_target(self, key: str) -> bool:
        with self._store.storage.open(key) as file:
            return contains_name(file, self._target)

    def _plan_artifact(self, manifest: Manifest) -> PlacePlan:
        if not _may_quote(manifest):
            return PlacePlan()
        with self._fetch(manifest) as directory:
            return plan_place(directory, self._target, self._links)

    def _add_descendants(self, plan: StorePlan, manifests: list[Manifest]) -> None:
        """Add the adapters that were made from artifacts with content to erase."""
        changed = {each.reference for each in plan.changes}
        parents = {each.reference: each.made_from for each in manifests}

        def find_source(reference: str, seen: frozenset[str] = frozenset()) -> str | None:
            for each in parents.get(reference, ()):
                if each in changed:
                    return each
                if each not in seen and (found := find_source(each, seen | {each})):
                    return found
            return None

        for manifest in manifests:
            if _is_adapter(manifest) and (source := find_source(manifest.reference)):
                plan.adapters.setdefault(manifest.reference, f"made from {source}")

    def _explain_learning(self, manifest: Manifest) -> str | None:
        names = [each.path for each in manifest.files if PurePosixPath(each.path).name == LINEAGE_FILE]
        texts = [self._store.storage.read(f"{manifest.reference}/{manifest.data}/{name}")[0] for name in names]
        try:
            lineages = [Lineage.model_validate_json(text) for text in texts]
        except ValidationError:
            return "its record of what it was trained on is damaged"
        found = (explain_learning(each, self._target, self._links) for each in lineages)
        return next(filter(None, found), None)

    def apply(self, change: ArtifactChange) -> tuple[str | None, int]:
        """Publish a redacted successor, delete the artifact, and return the reference of the successor.

        It is None if nothing is left of the artifact. A successor that an interrupted erasure has published is used.
        The number is that of `apply_change`.
        """
        lost = 0
        old = self._store.manifest(change.reference)
        is_latest = self._store.latest(old.kind) == old.version
        successor = next((each for each in self._store.list(old.kind) if old.reference in each.replaces), None)
        if successor is None:
            with self._fetch(old) as directory:
                successor, lost = self._publish(old, directory, is_latest=is_latest)
        remove_artifact(self._store, old)
        if is_latest:
            self._store.repoint_latest(old.kind)
        return successor.reference if successor else None, lost

    def _publish(self, old: Manifest, directory: Path, *, is_latest: bool) -> tuple[Manifest | None, int]:
        found = plan_place(directory, self._target, self._links)
        lost = sum([apply_change(each, self._target) for each in found.changes])
        if not any(path.is_file() and path.name != MARK for path in directory.rglob("*")):
            return None, lost
        settings: dict[str, Any] = redact_value(old.settings, self._target.concerns, self._target)[0]
        replaced = [old.reference, *old.model_copy(update={"settings": settings}).replaces]
        published = self._store.publish(
            directory,
            old.kind,
            self._find_free_version(old),
            made_from=old.made_from,
            settings={**settings, REPLACES: replaced},
            image=old.image,
            latest=is_latest,
        )
        return published.manifest, lost

    def _find_free_version(self, old: Manifest) -> str:
        """Return a version that was never used. A number says nothing about the target."""
        entries = self._store.storage.entries(f"{old.kind}/")
        used = {PurePosixPath(entry.key).parts[old.kind.count("/") + 1] for entry in entries}
        names = (f"{old.version[:100]}-erased-{number}" for number in range(1, len(used) + 2))
        return next(name for name in names if name not in used)

    def remove_copies(self, plan: StorePlan) -> None:
        """Delete the marked directories that are not artifacts."""
        remove_private_copies(self._store.storage, plan.copies)

    def find_mentions(self) -> list[str]:
        """Return the artifacts whose files still contain the target's name, other than adapters."""
        found: list[str] = []
        for manifest in self._store.list():
            if _may_quote(manifest) and not _is_adapter(manifest):
                with self._fetch(manifest) as directory:
                    if any(find_mentions(directory, self._target)):
                        found.append(manifest.reference)
        return found

    @contextmanager
    def _fetch(self, manifest: Manifest) -> Iterator[Path]:
        """Yield a copy of the files of an artifact, which is deleted afterwards."""
        with TemporaryDirectory(dir=self._scratch) as temporary:
            directory = self._store.fetch(manifest.reference, Path(temporary, "files")).directory
            (directory / MANIFEST).unlink()
            yield directory


def _is_adapter(manifest: Manifest) -> bool:
    return any(PurePosixPath(each.path).name == ADAPTER_FILE for each in manifest.files)


def _may_quote(manifest: Manifest) -> bool:
    """Return True if an artifact may contain questions, episodes, mail or documents. Models need not be fetched."""
    paths = [PurePosixPath(each.path) for each in manifest.files]
    return any(each.suffix.lower() in _READ_SUFFIXES or each.name in _READ_NAMES for each in paths)
