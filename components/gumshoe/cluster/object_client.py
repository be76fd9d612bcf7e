"""Objects in a cluster that a step makes for itself: made, found again by a later try of the step, and removed.

What always holds: of one name there is what was last asked for, or nothing; what an earlier try made of the same is
taken up as it is; and an object goes with the pod that it was made for.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from gumshoe.cluster.kubernetes_api import Cluster, ClusterError, ClusterUnavailableError
from gumshoe.cluster.trainjob import DIGEST, GROUP, PLURAL, VERSION, Manifest, owned
from gumshoe.errors import UnavailableError

T = TypeVar("T")
_FIRST, _LONGEST = 1.0, 30.0  # seconds between tries
_LOOK = 2.0  # seconds between looks whether something is gone
_TICK = 0.5  # seconds of waiting until it is checked whether to go on


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long what is waited for, in seconds."""

    silence: float = 600
    """A cluster that does not answer, or is not well."""
    gone: float = 600
    """An object that was deleted, until it is gone: its pods may save first."""
    starting: float = 3600
    """Pods that are to run, once the job is not suspended: images are pulled, and servers load their model."""
    stalled: float = 3600
    """A training that says nothing new."""
    last_words: float = 10
    """The rest of the log of a job that has ended."""
    look: float = 10
    """Between two looks at pods."""


def own_pod() -> Manifest | None:
    """The pod of this step as an owner of other objects, where Kubeflow has said which it is."""
    name, uid = os.environ.get("KFP_POD_NAME"), os.environ.get("KFP_POD_UID")
    return {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid} if name and uid else None


def _wait(seconds: float, check: Callable[[], object]) -> None:
    until = time.monotonic() + seconds
    while (rest := until - time.monotonic()) > 0:
        check()
        time.sleep(min(rest, _TICK))


@dataclass(frozen=True, slots=True)
class _Ways:
    """What the published client has for objects of a kind."""

    create: Callable[..., Any]
    read: Callable[..., Any]
    patch: Callable[..., Any]
    delete: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class ObjectClient:
    """The objects of one step."""

    cluster: Cluster
    patience: Timeouts
    owner: Manifest | None = field(default_factory=own_pod)
    check: Callable[[], object] = lambda: None
    """Asked while something is waited for; it may raise what ends that."""

    def make(self, wanted: Manifest, is_over: Callable[[Manifest], bool] = lambda _: False) -> Manifest:
        """Have an object be there as it is wanted, and return it: what an earlier try made of the same, or a new one.

        One that was made otherwise, or `is_over`, is replaced.

        Raises:
            ClusterError: the cluster refuses it.
            ClusterUnavailableError: the cluster does not answer, or is not well.
            UnavailableError: another object of the name does not go away.
        """
        kind, name = wanted["kind"], wanted["metadata"]["name"]
        until = time.monotonic() + self.patience.gone
        while time.monotonic() < until:
            made = self._create(wanted)
            if made is not None:
                return made
            found = self.find(kind, name)
            if found is None:
                continue
            meta = found["metadata"]
            is_same = (meta.get("annotations") or {}).get(DIGEST) == wanted["metadata"]["annotations"][DIGEST]
            if is_same and not meta.get("deletionTimestamp") and not is_over(found):
                return self._take_over(found)
            if not meta.get("deletionTimestamp"):
                self._delete(kind, name, propagation_policy="Foreground", uid=meta["uid"])
            _wait(_LOOK, self.check)
        raise UnavailableError(
            "cluster.object-not-deleted",
            f"the old {kind} {name} still exists {self.patience.gone / 60:g} minutes after it was deleted; look for "
            f"finalizers (kubectl get {kind.lower()} {name} -o yaml), then try again",
        )

    def find(self, kind: str, name: str) -> Manifest | None:
        """An object as it is now, where there is one.

        Raises:
            ClusterError, ClusterUnavailableError: the cluster cannot be asked.
        """
        found = self._patiently(lambda: self.cluster.find(self._ways(kind).read, name=name))
        return None if found is None else self._plain(found)

    def remove(self, kind: str, name: str) -> None:
        """Delete an object, and all that Kubernetes made of it; where there is none, nothing.

        Raises:
            ClusterError, ClusterUnavailableError: the cluster cannot be asked.
        """
        self._delete(kind, name, propagation_policy="Background")

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Ask again, at longer and longer intervals or as the cluster says, as long as it does not answer or is not
        well.

        Raises:
            ClusterUnavailableError: it has not for too long.
            ClusterError: it refuses.
        """
        until, pause = time.monotonic() + self.patience.silence, _FIRST
        while True:
            try:
                return ask()
            except ClusterUnavailableError as error:
                rest = until - time.monotonic()
                if rest <= 0:
                    raise
                _wait(min(pause if error.pause is None else error.pause, rest), self.check)
                pause = min(2 * pause, _LONGEST)

    def _create(self, wanted: Manifest) -> Manifest | None:
        """The object; None where there is one of its name."""
        create = partial(self.cluster.ask, self._ways(wanted["kind"]).create, body=owned(wanted, self.owner))
        try:
            return self._plain(self._patiently(create))
        except ClusterError as error:
            if error.status == 409:
                return None
            raise

    def _take_over(self, found: Manifest) -> Manifest:
        """Have what an earlier try made go with this one's pod."""
        owners = [self.owner] if self.owner else []
        if not owners or found["metadata"].get("ownerReferences") == owners:
            return found
        change: Any = [{"op": "add", "path": "/metadata/ownerReferences", "value": owners}]
        if found["kind"] == "TrainJob":  # the client sends any change of a custom resource as a merge patch
            change = {"metadata": {"ownerReferences": owners}}
        patch = partial(self.cluster.find, self._ways(found["kind"]).patch, name=found["metadata"]["name"], body=change)
        patched = self._patiently(patch)
        return found if patched is None else self._plain(patched)

    def _delete(self, kind: str, name: str, *, propagation_policy: str, uid: str | None = None) -> None:
        from kubernetes import client

        options = client.V1DeleteOptions(
            propagation_policy=propagation_policy, preconditions=client.V1Preconditions(uid=uid) if uid else None
        )
        try:
            delete = partial(self.cluster.find, self._ways(kind).delete, name=name, body=options)
            self._patiently(delete)
        except ClusterError as error:
            if error.status != 409:  # another of that name has taken its place
                raise

    def _plain(self, answer: Any) -> Manifest:
        return dict(self.cluster.plain(answer))

    def _ways(self, kind: str) -> _Ways:
        cluster, space = self.cluster, self.cluster.namespace
        if kind == "TrainJob":
            where = {"group": GROUP, "version": VERSION, "namespace": space, "plural": PLURAL}
            every = cluster.custom
            return _Ways(
                partial(every.create_namespaced_custom_object, **where),
                partial(every.get_namespaced_custom_object, **where),
                partial(every.patch_namespaced_custom_object, **where),
                partial(every.delete_namespaced_custom_object, **where),
            )
        if kind == "Deployment":
            return _Ways(
                partial(cluster.apps.create_namespaced_deployment, namespace=space),
                partial(cluster.apps.read_namespaced_deployment, namespace=space),
                partial(cluster.apps.patch_namespaced_deployment, namespace=space),
                partial(cluster.apps.delete_namespaced_deployment, namespace=space),
            )
        return _Ways(
            partial(cluster.core.create_namespaced_service, namespace=space),
            partial(cluster.core.read_namespaced_service, namespace=space),
            partial(cluster.core.patch_namespaced_service, namespace=space),
            partial(cluster.core.delete_namespaced_service, namespace=space),
        )
