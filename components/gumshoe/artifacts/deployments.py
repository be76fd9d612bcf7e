"""Record in a store which adapters are deployed, so that they are not pruned.

A record is an empty object `deployments/DEPLOYMENT/VERSION`. It says that the deployment has this adapter loaded.
"""

from collections.abc import Collection

from gumshoe.artifacts.storage import Storage

DEPLOYMENTS = "deployments"


def record_deployment(storage: Storage, deployment: str, versions: Collection[str]) -> None:
    """Record that a deployment has these adapters, and no others.

    Raises:
        StorageError, UnavailableError: if the store cannot be written.
    """
    folder = f"{DEPLOYMENTS}/{deployment}/"
    for version in versions:
        storage.create(f"{folder}{version}", b"")
    known = [entry.key for entry in storage.entries(folder)]
    storage.delete([key for key in known if key.removeprefix(folder) not in versions])


def find_deployed(storage: Storage) -> dict[str, str]:
    """Return the deployment of each deployed adapter, by the adapter's version.

    Raises:
        StorageError, UnavailableError: if the store cannot be listed.
    """
    found = {}
    for entry in storage.entries(f"{DEPLOYMENTS}/"):
        deployment, _, version = entry.key.removeprefix(f"{DEPLOYMENTS}/").partition("/")
        found[version] = deployment
    return found
