"""Record in a store what a run of a pipeline has found there, so that it finds the same if it is submitted again."""

from gumshoe.artifacts.store import Store


def record_input(store: Store, run: str, name: str, value: str) -> str:
    """Record an input of a run, unless it is recorded already. Return the recorded value.

    Without a run, nothing is recorded.

    Raises:
        StorageError, UnavailableError: if the store cannot be written.
    """
    key = f"runs/{run}/inputs/{name}"
    if not run or store.storage.create(key, value.encode()):
        return value
    data, _ = store.storage.read(key)
    return data.decode()
