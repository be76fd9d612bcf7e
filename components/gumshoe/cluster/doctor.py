"""Check if a cluster, a store and Kubeflow Pipelines are ready for a first run (`gumshoe doctor`).

Checks are independent. They run concurrently, each with a deadline, and a check that fails or gets no answer does not
stop the others.
"""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from gumshoe.artifacts.storage import split_uri
from gumshoe.cluster.kubernetes_api import Cluster, find_kubeconfig
from gumshoe.cluster.pod_resources import GPU_RESOURCE
from gumshoe.cluster.preflight import (
    components,
    dns,
    external,
    gpu_checks,
    network_policies,
    permissions,
    pipeline_store,
    pod_environment_checks,
    queues,
)
from gumshoe.cluster.preflight.client import ClusterReader, NotAllowedError, Object
from gumshoe.cluster.preflight.result import Finding, State, from_error, skipped
from gumshoe.errors import GumshoeError, UnavailableError, UsageError

API = "api"
_CLUSTER_CHECKS: dict[str, Callable[[ClusterReader], Iterator[Finding]]] = {
    API: components.check_api,
    "crds": components.check_crds,
    "controllers": components.check_controllers,
    "pipelines": pipeline_store.check_pipelines,
    "namespace": permissions.check_namespace,
    "dns": dns.check_dns,
    "network": network_policies.check_network_policies,
    "accounts": permissions.check_accounts,
    "secrets": permissions.check_secrets,
    "trust": pod_environment_checks.check_trust,
    "storage": permissions.check_storage,
    "gpus": gpu_checks.check_gpus,
    "quota": queues.check_quotas,
    "queue": queues.check_queue,
    "runtime": queues.check_runtime,
}
STORE, KFP = "store", "kfp"
CHECKS = (*_CLUSTER_CHECKS, STORE, KFP)
"""Names of all checks, in the order of the report."""
_REQUEST_SHARE = 1 / 3  # a request's share of a check's time, so that the check can report it and clean up


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """Say what to check."""

    namespace: str | None = None
    context: str | None = None
    store: str | None = None
    kfp: str | None = None
    gpus: int | None = None
    """GPUs per pod; None for one."""
    nodes: int | None = None
    """GPU pods at once; None for one."""
    tolerations: tuple[Object, ...] = ()
    gpu_resource: str = GPU_RESOURCE
    """Name of the resource that nodes count GPUs by."""
    only: tuple[str, ...] = ()
    """Names of checks to run; empty for all."""
    seconds: float = 30
    """Deadline of a check."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The findings of one check."""

    name: str
    findings: tuple[Finding, ...]

    @property
    def state(self) -> State:
        """The worst state of its findings."""
        order = [*State]
        return max((each.state for each in self.findings), key=order.index, default=State.OK)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The results of all checks."""

    namespace: str | None
    """None if no cluster was checked."""
    checks: tuple[CheckResult, ...]

    @property
    def exit_status(self) -> int:
        """0 if all is well (warnings allowed), 75 if the cluster does not answer, or missing answers are the only
        problem, and 1 if something must be fixed.
        """
        states = {each.name: each.state for each in self.checks}
        if states.get(API) is State.UNANSWERED:
            return UnavailableError.exit_status
        if State.PROBLEM in states.values():
            return GumshoeError.exit_status
        return UnavailableError.exit_status if State.UNANSWERED in states.values() else 0

    @property
    def unchecked(self) -> tuple[str, ...]:
        """Names of the places without an address, which were not checked, e.g. `cluster`."""
        names = {API: "cluster", STORE: STORE, KFP: KFP}
        return tuple(names[each.name] for each in self.checks if each.name in names and each.state is State.SKIPPED)

    def count(self, state: State) -> int:
        """Return the number of findings in a state."""
        return sum(each.state is state for checked in self.checks for each in checked.findings)


def examine(wanted: DoctorOptions) -> Diagnosis:
    """Run all requested checks.

    Without a kubeconfig and outside a pod, only the store and Kubeflow Pipelines are checked, if they are named.

    Raises:
        UsageError: if a check, the context or the store's scheme is unknown, or if there is nothing to check.
    """
    if unknown := sorted({*wanted.only} - {*CHECKS}):
        raise UsageError("doctor.unknown-check", f"unknown check {', '.join(unknown)}; use one of {', '.join(CHECKS)}")
    if wanted.store:
        split_uri(wanted.store)
    names = [each for each in CHECKS if not wanted.only or each in wanted.only]
    if API not in names and any(each in _CLUSTER_CHECKS for each in names):
        names = [API, *names]  # the others depend on it
    reader = _open_reader(wanted) if API in names else None
    if reader is None:
        names = [each for each in names if each == API or each not in _CLUSTER_CHECKS]
    in_pod = reader is not None and reader.in_pod
    running = {}
    if STORE in names:
        running[STORE] = _CheckThread(lambda: _check_store(wanted))
    if KFP in names:
        running[KFP] = _CheckThread(
            lambda: external.check_kfp(wanted.kfp, wanted.seconds * _REQUEST_SHARE, in_pod=in_pod, reader=reader)
        )
    running |= _start_cluster_checks(reader, [each for each in names if each in _CLUSTER_CHECKS], wanted.seconds)
    until = time.monotonic() + wanted.seconds
    found = {name: each.collect(until, wanted.seconds) for name, each in running.items()}
    return Diagnosis(reader.namespace if reader else None, tuple(CheckResult(name, found[name]) for name in names))


def _open_reader(wanted: DoctorOptions) -> ClusterReader | None:
    """Return a reader for the cluster; None if there is no cluster but something else to check."""
    try:
        find_kubeconfig()
    except UsageError as error:
        asks_for_cluster = wanted.gpus is not None or wanted.nodes is not None
        if wanted.namespace or wanted.context or wanted.only or asks_for_cluster:
            raise
        if not (wanted.store or wanted.kfp):
            raise UsageError(
                "doctor.nothing-to-check",
                f"{error}; or name --store or --kfp, which are checked without a cluster",
            ) from None
        return None
    cluster = Cluster.of(wanted.namespace, wanted.context)
    gpus, nodes = (1 if each is None else each for each in (wanted.gpus, wanted.nodes))
    return ClusterReader(
        cluster,
        wanted.seconds * _REQUEST_SHARE,
        gpus,
        nodes,
        wanted.tolerations,
        wanted.gpu_resource,
        in_pod=find_kubeconfig() is None,
    )


def _start_cluster_checks(reader: ClusterReader | None, names: list[str], seconds: float) -> "dict[str, _CheckThread]":
    """Start the checks of the cluster once its API has answered."""
    if reader is None:
        return {
            name: _CheckThread(lambda: iter([skipped("no kubeconfig found; the cluster is not checked")]))
            for name in names
        }
    if not names:
        return {}
    first = _CheckThread(lambda: components.check_api(reader))
    first.collect(time.monotonic() + seconds, seconds)
    if first.is_well:
        return {name: _CheckThread(partial(_CLUSTER_CHECKS[name], reader)) for name in names if name != API} | {
            API: first
        }
    unchecked = skipped("not checked, because the cluster's API failed its check")
    return {name: _CheckThread(lambda: iter([unchecked])) for name in names if name != API} | {API: first}


def _check_store(wanted: DoctorOptions) -> Iterator[Finding]:
    if not wanted.store:
        return iter([skipped("no store given (--store or $GUMSHOE_STORE)")])
    return external.check_store(wanted.store, wanted.seconds / 2 * _REQUEST_SHARE)  # each request is tried twice


@dataclass(slots=True)
class _CheckThread:
    """Run a check in a thread that is abandoned after its deadline."""

    check: Callable[[], Iterator[Finding]]
    _found: list[Finding] = field(default_factory=list)
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for each in self.check():
                self._found.append(each)
        except NotAllowedError as error:
            remedy = "use a context with this permission, or run the preflight Job"
            self._found.append(from_error(State.WARNING, error, remedy))
        except UnavailableError as error:
            self._found.append(from_error(State.UNANSWERED, error))
        except GumshoeError as error:
            self._found.append(from_error(State.PROBLEM, error))
        except (KeyError, TypeError, ValueError, AttributeError) as error:  # malformed answers
            self._found.append(Finding(State.PROBLEM, f"unexpected answer ({type(error).__name__}: {error})"))

    @property
    def is_well(self) -> bool:
        """True if the check is done and found no problem."""
        return not self._thread.is_alive() and all(each.state in (State.OK, State.WARNING) for each in self._found)

    def collect(self, until: float, seconds: float) -> tuple[Finding, ...]:
        """Wait until `until` (on the clock of `time.monotonic`) and return the findings so far."""
        self._thread.join(max(0.0, until - time.monotonic()))
        found = tuple(self._found)
        if self._thread.is_alive():
            late = Finding(State.UNANSWERED, f"not done after {seconds:g} seconds", "increase --timeout")
            return (*found, late)
        return found
