"""Record the adapters of a deployment in their stores, so that `gumshoe artifacts prune` keeps them."""

import re
from collections import defaultdict

from gumshoe.artifacts.deployments import record_deployment
from gumshoe.artifacts.manifest import DATA_PREFIX
from gumshoe.artifacts.storage import Limits, open_storage
from gumshoe.cluster.kubernetes_api import Cluster
from gumshoe.cluster.published_adapter import KIND
from gumshoe.cluster.serving_state import SECTIONS, Values, get_section
from gumshoe.errors import GumshoeError
from gumshoe.terminal import err, printable

_PUBLISHED = re.compile(rf"(?P<store>s3://.+)/{KIND}/(?P<version>[^/]+)/{DATA_PREFIX}[^/]*/?")
_LIMITS = Limits(read_timeout=20, attempts=2, backoff=1)  # a deployment does not wait for its record


def record_adapters(cluster: Cluster, name: str, *releases: Values) -> None:
    """Record that a deployment has the adapters in these values of its release, and no others.

    If a change begins, name the values before and after it, because it may be rolled back. Adapters outside a store in
    S3 are left out. A record that cannot be written is only a warning.
    """
    _record(cluster, name, releases, is_removed=False)


def forget_adapters(cluster: Cluster, name: str, release: Values) -> None:
    """Record that a deployment was removed. `release` are its last values."""
    _record(cluster, name, (release,), is_removed=True)


def _record(cluster: Cluster, name: str, releases: tuple[Values, ...], *, is_removed: bool) -> None:
    versions = defaultdict[str, set[str]](set)
    for values in releases:
        for section in SECTIONS:
            if found := _PUBLISHED.fullmatch(str(get_section(values, section).get("uri") or "")):
                versions[found["store"]].add(found["version"])
    for store, known in versions.items():
        try:
            deployment = f"{cluster.namespace}.{name}.{cluster.fingerprint}"
            record_deployment(open_storage(store, _LIMITS), deployment, set() if is_removed else known)
        except GumshoeError as error:
            err.print(
                f"[bold yellow]warning:[/] cannot record in {printable(store)} which adapters are deployed: "
                f"{printable(error.message_with_code)}; `gumshoe artifacts prune` uses this record to keep them",
                soft_wrap=True,
            )
