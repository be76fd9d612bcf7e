"""Record the adapters of a deployment in their stores, so that `gumshoe artifacts prune` keeps them."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

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


def record_adapters(cluster: Cluster, name: str, loaded: Sequence[Values], revisions: Iterable[Values]) -> None:
    """Record that a deployment has the adapters in the values `loaded`, and no others.

    If a change begins, `loaded` are the values before and after it, because it may be rolled back; they are empty for
    a deployment that was removed. `revisions` are the values of all revisions of its release: a store that only these
    name has nothing that is deployed. Adapters outside a store in S3 are left out. A record that cannot be written is
    only a warning.
    """
    versions = defaultdict[str, set[str]](set)
    for values in (*loaded, *revisions):
        for section in SECTIONS:
            if found := _PUBLISHED.fullmatch(str(get_section(values, section).get("uri") or "")):
                versions[found["store"]] |= {found["version"]} if values in loaded else set()
    for store, known in versions.items():
        try:
            deployment = f"{cluster.namespace}.{name}.{cluster.namespace_uid}"
            record_deployment(open_storage(store, _LIMITS), deployment, known)
        except GumshoeError as error:
            err.print(
                f"[bold yellow]warning:[/] cannot record in {printable(store)} which adapters are deployed: "
                f"{printable(error.message_with_code)}; `gumshoe artifacts prune` uses this record to keep them",
                soft_wrap=True,
            )
