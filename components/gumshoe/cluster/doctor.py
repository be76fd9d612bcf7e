"""`gumshoe doctor`: look whether a cluster, a store and Kubeflow Pipelines are fit for a first run.

Checks know nothing of each other. They run at once, each within a deadline, and what one cannot look at, or does not
get an answer to, ends no other.
"""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from gumshoe.artifacts.storage import split_uri
from gumshoe.cluster.kubernetes_api import Cluster, kubeconfig
from gumshoe.cluster.preflight import components, external, gpu_checks, permissions, queues
from gumshoe.cluster.preflight.client import ClusterReader, NotAllowedError, Object
from gumshoe.cluster.preflight.result import Finding, State, from_error, skipped
from gumshoe.errors import GumshoeError, UnavailableError, UsageError

API = "api"
_OF_CLUSTER: dict[str, Callable[[ClusterReader], Iterator[Finding]]] = {
    API: components.api,
    "crds": components.crds,
    "controllers": components.controllers,
    "namespace": permissions.namespace,
    "accounts": permissions.accounts,
    "secrets": permissions.secrets,
    "storage": permissions.storage,
    "gpus": gpu_checks.gpus,
    "quota": queues.quota,
    "queue": queues.queue,
    "runtime": queues.runtime,
}
STORE, KFP = "store", "kfp"
CHECKS = (*_OF_CLUSTER, STORE, KFP)
"""The names of all checks, in the order that they are told in."""
_SHARE = 1 / 3  # of a check's time that one request may take: so that it can say which was not answered, and tidy up


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be looked at."""

    namespace: str | None = None
    context: str | None = None
    store: str | None = None
    kfp: str | None = None
    gpus: int = 1
    nodes: int = 1
    tolerations: tuple[Object, ...] = ()
    only: tuple[str, ...] = ()
    """Names of checks; all of them where there are none."""
    seconds: float = 30
    """That a check may take."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What one check found."""

    name: str
    findings: tuple[Finding, ...]

    @property
    def state(self) -> State:
        """That of the worst finding."""
        order = [*State]
        return max((each.state for each in self.findings), key=order.index, default=State.OK)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What all checks found."""

    namespace: str | None
    """None where no cluster was asked."""
    checks: tuple[Checked, ...]

    @property
    def exit_status(self) -> int:
        """0 all well, warnings allowed; 75 the cluster does not answer, or all that is wrong is that something does
        not; 1 something is to be mended.
        """
        states = {each.name: each.state for each in self.checks}
        if states.get(API) is State.UNANSWERED:
            return UnavailableError.exit_status
        if State.PROBLEM in states.values():
            return GumshoeError.exit_status
        return UnavailableError.exit_status if State.UNANSWERED in states.values() else 0

    def count(self, state: State) -> int:
        """Findings of that state."""
        return sum(each.state is state for checked in self.checks for each in checked.findings)


def examine(wanted: Wanted) -> Diagnosis:
    """Look at everything that is wanted.

    Without a kubeconfig, and outside a pod, a store and a Kubeflow Pipelines that are named are looked at alone.

    Raises:
        UsageError: there is no such check, no such context or no such kind of store, or there is nothing to look at.
    """
    if unknown := sorted({*wanted.only} - {*CHECKS}):
        raise UsageError("doctor.unknown-check", f"unknown check {', '.join(unknown)}; use one of {', '.join(CHECKS)}")
    if wanted.store:
        split_uri(wanted.store)
    names = [each for each in CHECKS if not wanted.only or each in wanted.only]
    if API not in names and any(each in _OF_CLUSTER for each in names):
        names = [API, *names]  # the others say nothing without it
    asked = _asked(wanted) if API in names else None
    if asked is None:
        names = [each for each in names if each == API or each not in _OF_CLUSTER]
    in_pod = asked is not None and kubeconfig() is None
    running = {}
    if STORE in names:
        running[STORE] = _Running(lambda: _store(wanted))
    if KFP in names:
        running[KFP] = _Running(lambda: external.kfp(wanted.kfp, wanted.seconds * _SHARE, in_pod=in_pod, asked=asked))
    running |= _of_cluster(asked, [each for each in names if each in _OF_CLUSTER], wanted.seconds)
    until = time.monotonic() + wanted.seconds
    found = {name: each.findings(until, wanted.seconds) for name, each in running.items()}
    return Diagnosis(asked.namespace if asked else None, tuple(Checked(name, found[name]) for name in names))


def _asked(wanted: Wanted) -> ClusterReader | None:
    """The cluster to look at; None where there is none, and something else is to be looked at."""
    try:
        kubeconfig()
    except UsageError as error:
        if wanted.namespace or wanted.context or wanted.only:
            raise
        if not (wanted.store or wanted.kfp):
            raise UsageError(
                "doctor.nothing-to-check",
                f"{error}; or name --store or --kfp, which are checked without a cluster",
            ) from None
        return None
    cluster = Cluster.of(wanted.namespace, wanted.context)
    return ClusterReader(cluster, wanted.seconds * _SHARE, wanted.gpus, wanted.nodes, wanted.tolerations)


def _of_cluster(asked: ClusterReader | None, names: list[str], seconds: float) -> "dict[str, _Running]":
    """The checks of the cluster, which begin once it is known that it answers."""
    if asked is None:
        return {
            name: _Running(lambda: iter([skipped("there is no kubeconfig, so no cluster is looked at")]))
            for name in names
        }
    if not names:
        return {}
    first = _Running(lambda: components.api(asked))
    first.findings(time.monotonic() + seconds, seconds)
    if first.is_well:
        return {name: _Running(partial(_OF_CLUSTER[name], asked)) for name in names if name != API} | {API: first}
    silent = skipped("not looked at, as the cluster's API is not well")
    return {name: _Running(lambda: iter([silent])) for name in names if name != API} | {API: first}


def _store(wanted: Wanted) -> Iterator[Finding]:
    if not wanted.store:
        return iter([skipped("no store was named (--store or $GUMSHOE_STORE)")])
    return external.store(wanted.store, wanted.seconds / 2 * _SHARE)  # each of its requests is made twice


@dataclass(slots=True)
class _Running:
    """A check in a thread of its own, which nobody waits for once its time is over."""

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
            mend = "take a context that may, or let the preflight Job look"
            self._found.append(from_error(State.WARNING, error, mend))
        except UnavailableError as error:
            self._found.append(from_error(State.UNANSWERED, error))
        except GumshoeError as error:
            self._found.append(from_error(State.PROBLEM, error))
        except (KeyError, TypeError, ValueError, AttributeError) as error:  # what others send in place of documents
            self._found.append(
                Finding(State.PROBLEM, f"what answers is not what was asked ({type(error).__name__}: {error})")
            )

    @property
    def is_well(self) -> bool:
        """Whether it is done, and found nothing wrong."""
        return not self._thread.is_alive() and all(each.state in (State.OK, State.WARNING) for each in self._found)

    def findings(self, until: float, seconds: float) -> tuple[Finding, ...]:
        """What it found by that time, on the clock of `time.monotonic`."""
        self._thread.join(max(0.0, until - time.monotonic()))
        found = tuple(self._found)
        if self._thread.is_alive():
            late = Finding(State.UNANSWERED, f"not done after {seconds:g} seconds", "allow it more with --timeout")
            return (*found, late)
        return found
