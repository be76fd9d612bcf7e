"""Whether what a run asks for is within the namespace's quotas, and what Kueue's queue ever admits."""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from gumshoe.cluster.preflight.client import (
    CLUSTER_QUEUES,
    FLAVORS,
    LOCAL_QUEUES,
    NODES,
    PRIORITIES,
    QUOTAS,
    RUNTIMES,
    ClusterReader,
    Object,
)
from gumshoe.cluster.preflight.permissions import by_manifests
from gumshoe.cluster.preflight.result import Finding, counted, ok, problem, skipped, warning
from gumshoe.cluster.trainjob import CPUS, GIBIBYTES

GPU = "nvidia.com/gpu"
QUEUE = RUNTIME = "gumshoe"
_PRIORITIES = ("gumshoe-training", "gumshoe-evaluation")


def number(quantity: Any) -> int:
    """A quantity of Kubernetes', rounded down; 0 where there is none."""
    from kubernetes.utils import parse_quantity

    return int(parse_quantity(quantity)) if quantity is not None else 0


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Something of which the run's pods take an amount together."""

    what: str
    resource: str
    """As a pod and a queue name it."""
    names: tuple[str, ...]
    """As a quota does."""
    amount: int
    """In units of `unit`."""
    unit: str = ""

    def of(self, quantity: Any) -> Decimal:
        """A quantity of Kubernetes' in the same units; 0 where there is none."""
        from kubernetes.utils import parse_quantity

        return parse_quantity(quantity) / parse_quantity(f"1{self.unit}") if quantity is not None else Decimal(0)


def _wanted(asked: ClusterReader) -> Iterator[_Wanted]:
    """What a training's pods ask for, unless `job` says otherwise."""
    shares = max(1, asked.gpus) * asked.nodes
    yield _Wanted("GPUs", GPU, (f"requests.{GPU}",), asked.gpus * asked.nodes)
    yield _Wanted("pods", "pods", ("pods",), asked.nodes)
    yield _Wanted("CPUs", "cpu", ("requests.cpu", "cpu"), CPUS * shares)
    yield _Wanted("GiB of memory", "memory", ("requests.memory", "memory"), GIBIBYTES * shares, "Gi")


def quota(asked: ClusterReader) -> Iterator[Finding]:
    """What the namespace's quotas leave of GPUs, pods, CPUs and memory."""
    is_any = False
    for each in asked.every(QUOTAS):
        hard = (each.get("status") or {}).get("hard") or (each.get("spec") or {}).get("hard") or {}
        for wanted in _wanted(asked):
            for name in wanted.names:
                if name in hard:
                    is_any = True
                    yield _left(asked, each, name, hard[name], wanted)
    if not is_any:
        yield ok(f"no quota limits the GPUs, pods, CPUs or memory of namespace {asked.namespace}")


def _left(asked: ClusterReader, made: Object, name: str, hard: Any, wanted: _Wanted) -> Finding:
    title, what, needed = made["metadata"]["name"], wanted.what, wanted.amount
    most = wanted.of(hard)
    left = most - wanted.of(((made.get("status") or {}).get("used") or {}).get(name))
    if most < needed:
        patch = f'{{"spec":{{"hard":{{"{name}":"{needed}{wanted.unit}"}}}}}}'
        return problem(
            f"quota {title} allows {_plain(most)} {what} in all, and the run needs {needed}",
            "ask for fewer, or allow more",
            asked.kubectl(f"patch resourcequota {title} --type merge -p '{patch}'"),
        )
    if left < needed:
        return warning(
            f"quota {title} leaves {_plain(left)} of {_plain(most)} {what} now, and the run needs {needed}",
            "its pods are refused until others end; see who has them",
            asked.kubectl("get pods -o wide"),
        )
    return ok(f"quota {title} leaves {_plain(left)} of {_plain(most)} {what}")


def _plain(amount: Decimal) -> str:
    return f"{float(amount):.10g}" if amount == amount.to_integral_value() else f"{float(amount):.1f}"


def queue(asked: ClusterReader) -> Iterator[Finding]:
    """That Kueue's queue takes workloads, and ever admits the run."""
    if not asked.has(LOCAL_QUEUES):
        yield skipped("Kueue is not there: pods begin as there is room, not all of a run at once")
        return
    local = asked.get(LOCAL_QUEUES, QUEUE)
    if local is None:
        yield warning(
            f"there is no LocalQueue {QUEUE}: Kueue does not hold back a run, or never lets one begin",
            *by_manifests(asked, "install Gumshoe's manifests with their Kueue component"),
        )
        return
    name = (local.get("spec") or {}).get("clusterQueue", "")
    made = asked.get(CLUSTER_QUEUES, name, namespaced=False)
    if made is None:
        yield problem(f"LocalQueue {QUEUE} is for a ClusterQueue {name}, which is not there", *by_manifests(asked))
        return
    yield from _active(asked, f"LocalQueue {QUEUE}", local, asked.kubectl(f"describe localqueue {QUEUE}"))
    see = asked.kubectl(f"describe clusterqueue {name}", namespaced=False)
    yield from _active(asked, f"ClusterQueue {name}", made, see)
    for wanted in _wanted(asked):
        if wanted.resource != "pods" and wanted.amount:
            yield _admits(asked, name, made, see, wanted)
    yield from _pools(asked, made)
    for priority in _PRIORITIES:
        if asked.get(PRIORITIES, priority, namespaced=False) is None:
            yield warning(
                f"there is no WorkloadPriorityClass {priority}: all runs are alike",
                *by_manifests(asked),
            )


def cluster_queue(asked: ClusterReader) -> Object | None:
    if not asked.has(LOCAL_QUEUES):
        return None
    local = asked.get(LOCAL_QUEUES, QUEUE)
    name = ((local or {}).get("spec") or {}).get("clusterQueue")
    return asked.get(CLUSTER_QUEUES, name, namespaced=False) if name else None


def _active(asked: ClusterReader, what: str, made: Object, see: str) -> Iterator[Finding]:
    held = (made.get("spec") or {}).get("stopPolicy", "None")
    if held != "None":
        kind = what.split()[0].lower()
        within = {"localqueue": True}.get(kind, False)
        patch = asked.kubectl(
            f"""patch {kind} {what.split()[1]} --type merge -p '{{"spec":{{"stopPolicy":"None"}}}}'""",
            namespaced=within,
        )
        yield problem(f"{what} is stopped ({held}), and admits nothing", "let it go on", patch)
        return
    conditions = (made.get("status") or {}).get("conditions") or []
    active = next((each for each in conditions if each["type"] == "Active"), None)
    if active is None:
        yield warning(f"{what} has no state yet: Kueue has not looked at it", "see whether Kueue runs", see)
    elif active["status"] != "True":
        said = f"{active.get('reason', '')}: {active.get('message', '')}".strip(": ")
        yield problem(f"{what} is not active ({said})", "mend what it says", see)
    else:
        yield ok(f"{what} is active")


@dataclass(slots=True)
class _Share:
    """What one flavor of a queue has of a resource."""

    flavor: str
    most: Decimal | None
    """With what it may borrow; None where that has no bound."""
    own: Decimal
    used: Decimal


def _shares(made: Object, wanted: _Wanted) -> list[_Share]:
    spec, status = made.get("spec") or {}, made.get("status") or {}
    used = {
        each["name"]: wanted.of(one.get("total"))
        for each in status.get("flavorsReservation") or []
        for one in each.get("resources") or []
        if one["name"] == wanted.resource
    }
    found = []
    for group in spec.get("resourceGroups") or []:
        for flavor in group.get("flavors") or []:
            for one in flavor.get("resources") or []:
                if one["name"] != wanted.resource:
                    continue
                own = wanted.of(one.get("nominalQuota"))
                limit = one.get("borrowingLimit")
                borrowed = None if limit is None and spec.get("cohortName") else wanted.of(limit)
                most = None if borrowed is None else own + borrowed
                found.append(_Share(flavor["name"], most, own, used.get(flavor["name"], Decimal(0))))
    return found


def _admits(asked: ClusterReader, name: str, made: Object, see: str, wanted: _Wanted) -> Finding:
    shares, needed = _shares(made, wanted), wanted.amount
    if not shares:
        return problem(
            f"ClusterQueue {name} has no quota for {wanted.resource}, so it never admits the run",
            "add it to coveredResources, with a nominalQuota for each flavor",
            asked.kubectl(f"edit clusterqueue {name}", namespaced=False),
        )
    if all(each.most is not None and each.most < needed for each in shares):
        told = ", ".join(f"{_plain(each.most)} of {each.flavor}" for each in shares if each.most is not None)
        more = "" if wanted.resource == GPU else f" {wanted.what}"
        return problem(
            f"ClusterQueue {name} never admits {asked.wanted}: one flavor is to give {needed}{more}, and it has {told}",
            "ask for fewer, or raise nominalQuota",
            asked.kubectl(f"edit clusterqueue {name}", namespaced=False),
        )
    left = max(each.own - each.used for each in shares)
    if left < needed:
        return warning(
            f"ClusterQueue {name} has {_plain(max(Decimal(0), left))} {wanted.what} left of its own, and the run needs "
            f"{needed}",
            "the run waits in the queue until others end, or borrows; see who is before it",
            see,
        )
    if wanted.resource == GPU:
        return ok(f"ClusterQueue {name} has {counted(int(left), 'GPU')} left")
    return ok(f"ClusterQueue {name} has {_plain(left)} {wanted.what} left")


def flavors_of(asked: ClusterReader, made: Object | None) -> Iterator[Object]:
    groups = ((made or {}).get("spec") or {}).get("resourceGroups") or []
    names = dict.fromkeys(flavor["name"] for group in groups for flavor in group.get("flavors") or [])
    for name in names:
        found = asked.get(FLAVORS, name, namespaced=False)
        if found is not None:
            yield found


def _pools(asked: ClusterReader, made: Object) -> Iterator[Finding]:
    """That every flavor has nodes."""
    flavors = list(flavors_of(asked, made))
    have = {each["metadata"]["name"] for each in flavors}
    groups = (made.get("spec") or {}).get("resourceGroups") or []
    for name in sorted({each["name"] for group in groups for each in group.get("flavors") or []} - have):
        yield problem(f"there is no ResourceFlavor {name}, which the queue names", *by_manifests(asked))
    labels = [(each["metadata"].get("labels") or {}) for each in asked.every(NODES, namespaced=False)]
    for each in flavors:
        wanted = (each.get("spec") or {}).get("nodeLabels") or {}
        count = sum(wanted.items() <= known.items() for known in labels)
        pairs, name = ",".join(f"{key}={value}" for key, value in wanted.items()), each["metadata"]["name"]
        if count:
            yield ok(f"ResourceFlavor {name} has {counted(count, 'node')}{f' ({pairs})' if pairs else ''}")
        else:
            yield warning(
                f"ResourceFlavor {name} has no nodes: none is labelled {pairs}",
                "label them, or change its nodeLabels; where an autoscaler adds such nodes, all is well",
                asked.kubectl(f"label node NODE {pairs.replace(',', ' ')}", namespaced=False),
            )


def runtime(asked: ClusterReader) -> Iterator[Finding]:
    """That TrainJobs find what they are made of."""
    if not asked.has(RUNTIMES):
        yield skipped("Kubeflow Trainer is not there")
    elif asked.get(RUNTIMES, RUNTIME, namespaced=False) is None:
        yield problem(
            f"there is no ClusterTrainingRuntime {RUNTIME}, which training on several nodes is started with",
            *by_manifests(asked),
        )
    else:
        yield ok(f"ClusterTrainingRuntime {RUNTIME} is there")
