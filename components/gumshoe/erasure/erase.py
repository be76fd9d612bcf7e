"""Plan an erasure from directories and a store, carry it out, and verify it."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from gumshoe.artifacts.response_cache import cache_directory
from gumshoe.artifacts.storage import explain_os_errors, lock_directory
from gumshoe.artifacts.store import Store
from gumshoe.erasure.places import PlaceChange, PlacePlan, apply_change, collect_questions, find_mentions, plan_place
from gumshoe.erasure.question_links import Links
from gumshoe.erasure.receipt import ErasedPlace, Receipt
from gumshoe.erasure.store_places import ArtifactChange, StoreErasure, StorePlan
from gumshoe.erasure.target import EraseTarget
from gumshoe.errors import UnavailableError, UsageError

# They are deleted as a whole: nothing in them is looked for.
_CACHES = ("judge.sqlite", "embeddings.sqlite", "pages")
_SCRATCH = "erasure"


@dataclass(slots=True)
class ErasurePlan:
    """The changes that an erasure would make, and the places that it cannot change."""

    places: PlacePlan = field(default_factory=PlacePlan)
    store: StorePlan = field(default_factory=StorePlan)
    caches: list[Path] = field(default_factory=list)

    def list_erased(self, target: EraseTarget) -> list[ErasedPlace]:
        """Return the places that content would be erased from."""
        found = [
            ErasedPlace(place=target.hide(str(each.path)), kind=each.kind, count=each.count)
            for each in self.places.changes
        ]
        found += [ErasedPlace(place=each.reference, kind="artifact", count=each.count) for each in self.store.changes]
        found += [
            ErasedPlace(place=target.hide(each.place), kind="output", count=len(each.keys))
            for each in self.store.copies
        ]
        return found + [ErasedPlace(place=str(each), kind="cache", count=1) for each in self.caches]

    def list_adapters(self, target: EraseTarget) -> dict[str, str]:
        """Return the reason why each adapter may have learned erased content, by path or reference."""
        return {target.hide(str(path)): reason for path, reason in self.places.adapters.items()} | self.store.adapters

    def list_remaining(self, target: EraseTarget) -> list[str]:
        """Return the places that name the target and cannot be changed, and those that cannot be read."""
        places = [target.hide(str(each)) for each in self.places.remaining] + self.store.remaining
        return list(dict.fromkeys(places + self.list_outdated(target)))

    def list_outdated(self, target: EraseTarget) -> list[str]:
        """Return those of `list_remaining` with an index of another version of Gumshoe."""
        return [target.hide(str(each)) for each in self.places.outdated] + self.store.outdated


class Erasure:
    """Erase a target from some directories, from a store and from the caches of this machine."""

    def __init__(
        self,
        target: EraseTarget,
        places: Sequence[Path],
        store: Store | None,
        *,
        keep_caches: bool = False,
        scratch: Path | None = None,
    ) -> None:
        """Check the places. `scratch` is a directory for copies of artifacts.

        Raises:
            UsageError: if there is no place, or one does not exist.
            StorageError: if the user may not see if a place exists.
        """
        if not places and store is None:
            raise UsageError("erasure.no-places", "nowhere to erase from; name directories or files, or --store")
        for each in places:
            with explain_os_errors(each):
                if not each.exists():
                    raise UsageError("erasure.no-such-place", f"{each} does not exist; check the path")
        self._target, self._places, self._links = target, _drop_nested(places), Links(target)
        self._caches = [] if keep_caches else [cache_directory() / name for name in _CACHES]
        self._store = StoreErasure(store, target, self._links, scratch or Path()) if store else None

    def plan(self, receipt: Receipt | None = None) -> ErasurePlan:
        """Plan the erasure, without changing anything.

        An interrupted erasure is continued with its `receipt`, which keeps the questions that it looked for.

        Raises:
            GumshoeError: if a place cannot be read.
        """
        if receipt is not None and receipt.pending is not None:
            self._links.restore(receipt.pending)
        existing = [each for each in self._places if each.exists()]  # a copy of an artifact is deleted as a whole
        for each in existing:
            collect_questions(each, self._links)
        if self._store is not None:
            self._store.collect()
        plan = ErasurePlan(caches=[each for each in self._caches if each.exists()])
        for each in existing:
            plan.places.extend(plan_place(each, self._target, self._links))
        if self._store is not None:
            plan.store = self._store.plan()
        return plan

    def run(self, plan: ErasurePlan, receipt: Receipt, save: Callable[[], object]) -> None:
        """Carry out a plan, and add each erased place to a receipt. `save` is called after each step.

        The receipt also keeps hashes of the questions to look for, so that an interrupted erasure can be run again.

        Raises:
            GumshoeError: if something cannot be written. Everything before it is erased.
        """
        receipt.adapters |= plan.list_adapters(self._target)
        receipt.pending = self._links.save()
        save()
        for step in self._list_steps(plan):
            receipt.add(step())
            save()
        if self._store is not None:
            self._store.remove_copies(plan.store)
            for each in plan.store.copies:
                receipt.add(ErasedPlace(place=self._target.hide(each.place), kind="output", count=len(each.keys)))
        for path in plan.caches:
            apply_change(PlaceChange(path, "cache", 1), self._target)
            receipt.add(ErasedPlace(place=str(path), kind="cache", count=1))
        save()

    def _list_steps(self, plan: ErasurePlan) -> Iterator[Callable[[], ErasedPlace]]:
        """Yield a function for each change, which makes it and describes it."""
        # Pages first: only the records beside them tell whose they are.
        for change in sorted(plan.places.changes, key=lambda each: each.kind != "page"):
            yield partial(self._change_place, change)
        for artifact in plan.store.changes:
            yield partial(self._change_artifact, artifact)

    def _change_place(self, change: PlaceChange) -> ErasedPlace:
        lost = apply_change(change, self._target)
        place = self._target.hide(str(change.path))
        return ErasedPlace(place=place, kind=change.kind, count=change.count, lost=lost)

    def _change_artifact(self, change: ArtifactChange) -> ErasedPlace:
        successor, lost = self._store.apply(change) if self._store is not None else (None, 0)
        return ErasedPlace(place=change.reference, kind="artifact", count=change.count, successor=successor, lost=lost)

    def verify(self) -> list[str]:
        """Look for the target again, and return the places that still contain it, or cannot be read.

        For a message, or a person everywhere, the bytes of all files are searched for the name.

        Raises:
            GumshoeError: if a place cannot be read.
        """
        plan = self.plan()
        left = {each.place for each in plan.list_erased(self._target)} | set(plan.list_remaining(self._target))
        if self._target.is_strict:
            for each in self._places:
                if each.exists():
                    left |= {self._target.hide(str(path)) for path in find_mentions(each, self._target)}
            left |= set(self._store.find_mentions()) if self._store is not None else set()
        return sorted(left)


def _drop_nested(places: Sequence[Path]) -> list[Path]:
    """Return places without those that are below another one, so that nothing is erased twice."""
    resolved = {each.resolve(): each for each in places}
    return [each for path, each in resolved.items() if resolved.keys().isdisjoint(path.parents)]


@contextmanager
def open_scratch() -> Iterator[Path]:
    """Yield an empty directory for copies of artifacts. Copies of a killed erasure are deleted.

    Raises:
        UnavailableError: if another erasure is in progress.
        StorageError: if the directory cannot be written.
    """
    directory = cache_directory() / _SCRATCH
    scratch = directory / "copies"
    with ExitStack() as stack:
        with explain_os_errors(directory):
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            if stack.enter_context(lock_directory(directory, wait=None)) is None:
                raise UnavailableError("erasure.busy", "another erasure is in progress; wait until it has ended")
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir(mode=0o700)
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
