"""Create, find and delete the cluster objects of a pipeline step.

Invariants: of each name there is the requested object or none. An identical object from an earlier attempt of the step
is reused as it is. Objects are deleted together with the pod they were created for.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential

from gumshoe.cluster.kubernetes_api import Cluster, ClusterError, ClusterUnavailableError
from gumshoe.cluster.trainjob import DIGEST, GROUP, PLURAL, VERSION, Manifest, set_owner
from gumshoe.errors import UnavailableError

T = TypeVar("T")
_FIRST, _LONGEST = 1.0, 30.0  # seconds between attempts
_LOOK = 2.0  # seconds between checks if an object is deleted
_TICK = 0.5  # seconds between calls of `check` while waiting


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts and intervals, in seconds."""

    unreachable: float = 600
    """A cluster that does not answer or fails."""
    deletion: float = 600
    """Deletion of an object, whose pods may save their work first."""
    start: float = 3600
    """Start of the pods after the job is admitted: pulling images, loading the model."""
    stall: float = 3600
    """A training without progress."""
    log_drain: float = 10
    """Reading the rest of the log after the job has ended."""
    poll_interval: float = 10
    """Interval between two checks of the pods."""


def find_own_pod() -> Manifest | None:
    """Return this step's pod as an owner reference, if Kubeflow has set its name."""
    name, uid = os.environ.get("KFP_POD_NAME"), os.environ.get("KFP_POD_UID")
    return {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid} if name and uid else None


def _wait(seconds: float, check: Callable[[], object]) -> None:
    until = time.monotonic() + seconds
    while (rest := until - time.monotonic()) > 0:
        check()
        time.sleep(min(rest, _TICK))


@dataclass(frozen=True, slots=True)
class _ApiMethods:
    """The client methods for objects of one kind."""

    create: Callable[..., Any]
    read: Callable[..., Any]
    patch: Callable[..., Any]
    delete: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class ObjectClient:
    """Manage the objects of one step."""

    cluster: Cluster
    timeouts: Timeouts
    owner: Manifest | None = field(default_factory=find_own_pod)
    check: Callable[[], object] = lambda: None
    """Called while waiting. It may raise to stop waiting."""

    def ensure(self, wanted: Manifest, is_over: Callable[[Manifest], bool] = lambda _: False) -> Manifest:
        """Return the wanted object. It is created unless an identical one exists from an earlier attempt.

        An object that differs, or for which `is_over` is true, is replaced.

        Raises:
            ClusterError: if the cluster rejects the object.
            ClusterUnavailableError: if the cluster does not answer or fails.
            UnavailableError: if an old object of that name is not deleted in time.
        """
        kind, name = wanted["kind"], wanted["metadata"]["name"]
        until = time.monotonic() + self.timeouts.deletion
        while time.monotonic() < until:
            created = self._create(wanted)
            if created is not None:
                return created
            found = self.find(kind, name)
            if found is None:
                continue
            meta = found["metadata"]
            is_same = (meta.get("annotations") or {}).get(DIGEST) == wanted["metadata"]["annotations"][DIGEST]
            if is_same and not meta.get("deletionTimestamp") and not is_over(found):
                return self._adopt(found)
            if not meta.get("deletionTimestamp"):
                self._delete(kind, name, propagation_policy="Foreground", uid=meta["uid"])
            _wait(_LOOK, self.check)
        raise UnavailableError(
            "cluster.object-not-deleted",
            f"the old {kind} {name} still exists {self.timeouts.deletion / 60:g} minutes after it was deleted; look "
            f"for finalizers (kubectl get {kind.lower()} {name} -o yaml), then try again",
        )

    def find(self, kind: str, name: str) -> Manifest | None:
        """Return an object, or None if it does not exist.

        Raises:
            ClusterError: if the cluster rejects the request.
            ClusterUnavailableError: if the cluster does not answer.
        """
        found = self._retry(lambda: self.cluster.find(self._select_methods(kind).read, name=name))
        return None if found is None else self._to_plain(found)

    def remove(self, kind: str, name: str) -> None:
        """Delete an object and its dependents, if it exists.

        Raises:
            ClusterError: if the cluster rejects the request.
            ClusterUnavailableError: if the cluster does not answer.
        """
        self._delete(kind, name, propagation_policy="Background")

    def _retry(self, request: Callable[[], T]) -> T:
        """Repeat a request with growing pauses, or those the cluster asks for, as long as the cluster does not answer.

        Raises:
            ClusterUnavailableError: if that takes too long.
            ClusterError: if the cluster rejects the request.
        """
        until, backoff = time.monotonic() + self.timeouts.unreachable, wait_exponential(_FIRST, _LONGEST)

        def pause(state: RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome is not None else None
            requested = error.pause if isinstance(error, ClusterUnavailableError) else None
            return min(backoff(state) if requested is None else requested, until - time.monotonic())

        retrying = Retrying(
            retry=retry_if_exception_type(ClusterUnavailableError),
            stop=lambda _: time.monotonic() >= until,
            wait=pause,
            sleep=partial(_wait, check=self.check),
            reraise=True,
        )
        return retrying(request)

    def _create(self, wanted: Manifest) -> Manifest | None:
        """Create an object and return it; None if one of that name exists."""
        create = partial(
            self.cluster.call, self._select_methods(wanted["kind"]).create, body=set_owner(wanted, self.owner)
        )
        try:
            return self._to_plain(self._retry(create))
        except ClusterError as error:
            if error.status == 409:
                return None
            raise

    def _adopt(self, found: Manifest) -> Manifest:
        """Make this step's pod the owner of an object from an earlier attempt."""
        owners = [self.owner] if self.owner else []
        if not owners or found["metadata"].get("ownerReferences") == owners:
            return found
        change: Any = [{"op": "add", "path": "/metadata/ownerReferences", "value": owners}]
        if found["kind"] == "TrainJob":  # the client sends every patch of a custom resource as a merge patch
            change = {"metadata": {"ownerReferences": owners}}
        patch = partial(
            self.cluster.find, self._select_methods(found["kind"]).patch, name=found["metadata"]["name"], body=change
        )
        patched = self._retry(patch)
        return found if patched is None else self._to_plain(patched)

    def _delete(self, kind: str, name: str, *, propagation_policy: str, uid: str | None = None) -> None:
        from kubernetes import client

        options = client.V1DeleteOptions(
            propagation_policy=propagation_policy, preconditions=client.V1Preconditions(uid=uid) if uid else None
        )
        try:
            delete = partial(self.cluster.find, self._select_methods(kind).delete, name=name, body=options)
            self._retry(delete)
        except ClusterError as error:
            if error.status != 409:  # a newer object has the same name
                raise

    def _to_plain(self, answer: Any) -> Manifest:
        return dict(self.cluster.to_plain(answer))

    def _select_methods(self, kind: str) -> _ApiMethods:
        cluster, space = self.cluster, self.cluster.namespace
        if kind == "TrainJob":
            where = {"group": GROUP, "version": VERSION, "namespace": space, "plural": PLURAL}
            every = cluster.custom
            return _ApiMethods(
                partial(every.create_namespaced_custom_object, **where),
                partial(every.get_namespaced_custom_object, **where),
                partial(every.patch_namespaced_custom_object, **where),
                partial(every.delete_namespaced_custom_object, **where),
            )
        if kind == "Deployment":
            return _ApiMethods(
                partial(cluster.apps.create_namespaced_deployment, namespace=space),
                partial(cluster.apps.read_namespaced_deployment, namespace=space),
                partial(cluster.apps.patch_namespaced_deployment, namespace=space),
                partial(cluster.apps.delete_namespaced_deployment, namespace=space),
            )
        if kind == "Secret":
            return _ApiMethods(
                partial(cluster.core.create_namespaced_secret, namespace=space),
                partial(cluster.core.read_namespaced_secret, namespace=space),
                partial(cluster.core.patch_namespaced_secret, namespace=space),
                partial(cluster.core.delete_namespaced_secret, namespace=space),
            )
        return _ApiMethods(
            partial(cluster.core.create_namespaced_service, namespace=space),
            partial(cluster.core.read_namespaced_service, namespace=space),
            partial(cluster.core.patch_namespaced_service, namespace=space),
            partial(cluster.core.delete_namespaced_service, namespace=space),
        )
