"""Check that the namespace's quotas and Kueue's queue can admit a run."""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from gumshoe.cluster.pod_resources import CPUS_PER_GPU, GIBIBYTES_PER_GPU
from gumshoe.cluster.preflight.client import (
    CLUSTER_QUEUES,
    FLAVORS,
    LOCAL_QUEUES,
    NAMESPACES,
    NODES,
    PRIORITIES,
    QUOTAS,
    RUNTIMES,
    ClusterReader,
    Object,
)
from gumshoe.cluster.preflight.permissions import suggest_manifests
from gumshoe.cluster.preflight.result import Finding, ok, pluralize, problem, skipped, warning

QUEUE = RUNTIME = "gumshoe"
_SIDECAR = "sidecar.istio.io/inject"
_USERS = "openshift.io/sa.scc.uid-range"  # annotation of a namespace: FIRST/NUMBER or FIRST-LAST
_PRIORITIES = ("gumshoe-training", "gumshoe-evaluation")


def parse_count(quantity: Any) -> int:
    """Parse a Kubernetes quantity and round it down; 0 for None."""
    from kubernetes.utils import parse_quantity

    return int(parse_quantity(quantity)) if quantity is not None else 0


@dataclass(frozen=True, slots=True)
class _Demand:
    """The total amount of a resource that the run's pods request."""

    what: str
    resource: str
    """Name in pods and queues."""
    names: tuple[str, ...]
    """Names in quotas."""
    amount: int
    """In units of `unit`."""
    unit: str = ""

    def convert(self, quantity: Any) -> Decimal:
        """Convert a Kubernetes quantity to `unit`; 0 for None."""
        from kubernetes.utils import parse_quantity

        return parse_quantity(quantity) / parse_quantity(f"1{self.unit}") if quantity is not None else Decimal(0)


def _list_demands(reader: ClusterReader) -> Iterator[_Demand]:
    """Yield what the pods of a training request by default."""
    shares, gpu = max(1, reader.gpus) * reader.nodes, reader.gpu_resource
    yield _Demand("GPUs", gpu, (f"requests.{gpu}",), reader.gpus * reader.nodes)
    yield _Demand("pods", "pods", ("pods",), reader.nodes)
    yield _Demand("CPUs", "cpu", ("requests.cpu", "cpu"), CPUS_PER_GPU * shares)
    yield _Demand("GiB of memory", "memory", ("requests.memory", "memory"), GIBIBYTES_PER_GPU * shares, "Gi")


def check_quotas(reader: ClusterReader) -> Iterator[Finding]:
    """Check that the namespace's quotas leave enough GPUs, pods, CPUs and memory."""
    is_any = False
    for each in reader.list_all(QUOTAS):
        hard = (each.get("status") or {}).get("hard") or (each.get("spec") or {}).get("hard") or {}
        for wanted in _list_demands(reader):
            for name in wanted.names:
                if name in hard:
                    is_any = True
                    yield _check_quota(reader, each, name, hard[name], wanted)
    if not is_any:
        yield ok(f"no quota limits the GPUs, pods, CPUs or memory of namespace {reader.namespace}")


def _check_quota(reader: ClusterReader, quota: Object, name: str, hard: Any, wanted: _Demand) -> Finding:
    title, what, needed = quota["metadata"]["name"], wanted.what, wanted.amount
    most = wanted.convert(hard)
    left = most - wanted.convert(((quota.get("status") or {}).get("used") or {}).get(name))
    if most < needed:
        patch = f'{{"spec":{{"hard":{{"{name}":"{needed}{wanted.unit}"}}}}}}'
        return problem(
            f"quota {title} allows {_format_amount(most)} {what} in total, but the run needs {needed}",
            "request less, or raise the quota",
            reader.kubectl(f"patch resourcequota {title} --type merge -p '{patch}'"),
        )
    if left < needed:
        return warning(
            f"quota {title} leaves {_format_amount(left)} of {_format_amount(most)} {what}, and the run needs {needed}",
            "new pods are rejected until others end; see which pods exist",
            reader.kubectl("get pods -o wide"),
        )
    return ok(f"quota {title} leaves {_format_amount(left)} of {_format_amount(most)} {what}")


def _format_amount(amount: Decimal) -> str:
    return f"{float(amount):.10g}" if amount == amount.to_integral_value() else f"{float(amount):.1f}"


def check_queue(reader: ClusterReader) -> Iterator[Finding]:
    """Check that Kueue's queue is active and can admit the run."""
    if not reader.has_api(LOCAL_QUEUES):
        yield skipped("Kueue is not installed: the pods of a run start one by one as resources become free")
        return
    local = reader.get(LOCAL_QUEUES, QUEUE)
    if local is None:
        yield warning(
            f"LocalQueue {QUEUE} does not exist: Kueue either ignores runs or never admits them",
            *suggest_manifests(reader, "install Gumshoe's manifests with their Kueue component"),
        )
        return
    name = (local.get("spec") or {}).get("clusterQueue", "")
    found = reader.get(CLUSTER_QUEUES, name, namespaced=False)
    if found is None:
        yield problem(
            f"LocalQueue {QUEUE} belongs to ClusterQueue {name}, which does not exist", *suggest_manifests(reader)
        )
        return
    yield from _check_active(reader, f"LocalQueue {QUEUE}", local, reader.kubectl(f"describe localqueue {QUEUE}"))
    see = reader.kubectl(f"describe clusterqueue {name}", namespaced=False)
    yield from _check_active(reader, f"ClusterQueue {name}", found, see)
    for wanted in _list_demands(reader):
        if wanted.resource != "pods" and wanted.amount:
            yield _check_admission(reader, name, found, see, wanted)
    yield from _check_flavor_nodes(reader, found)
    for priority in _PRIORITIES:
        if reader.get(PRIORITIES, priority, namespaced=False) is None:
            yield warning(
                f"WorkloadPriorityClass {priority} does not exist: all runs have the same priority",
                *suggest_manifests(reader),
            )


def find_cluster_queue(reader: ClusterReader) -> Object | None:
    """Return the ClusterQueue of Gumshoe's LocalQueue, if both exist."""
    if not reader.has_api(LOCAL_QUEUES):
        return None
    local = reader.get(LOCAL_QUEUES, QUEUE)
    name = ((local or {}).get("spec") or {}).get("clusterQueue")
    return reader.get(CLUSTER_QUEUES, name, namespaced=False) if name else None


def _check_active(reader: ClusterReader, what: str, queue: Object, see: str) -> Iterator[Finding]:
    stop_policy = (queue.get("spec") or {}).get("stopPolicy", "None")
    if stop_policy != "None":
        kind = what.split()[0].lower()
        within = {"localqueue": True}.get(kind, False)
        patch = reader.kubectl(
            f"""patch {kind} {what.split()[1]} --type merge -p '{{"spec":{{"stopPolicy":"None"}}}}'""",
            namespaced=within,
        )
        yield problem(f"{what} is stopped ({stop_policy}) and admits nothing", "resume it", patch)
        return
    conditions = (queue.get("status") or {}).get("conditions") or []
    active = next((each for each in conditions if each["type"] == "Active"), None)
    if active is None:
        yield warning(f"{what} has no status yet: Kueue has not processed it", "check that Kueue runs", see)
    elif active["status"] != "True":
        reason = f"{active.get('reason', '')}: {active.get('message', '')}".strip(": ")
        yield problem(f"{what} is not active ({reason})", "fix the reason", see)
    else:
        yield ok(f"{what} is active")


@dataclass(slots=True)
class _FlavorQuota:
    """The quota of one flavor of a queue for a resource."""

    flavor: str
    most: Decimal | None
    """Maximum including borrowed quota; None if borrowing is unlimited."""
    own: Decimal
    used: Decimal


def _list_flavor_quotas(queue: Object, wanted: _Demand) -> list[_FlavorQuota]:
    spec, status = queue.get("spec") or {}, queue.get("status") or {}
    used = {
        each["name"]: wanted.convert(one.get("total"))
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
                own = wanted.convert(one.get("nominalQuota"))
                limit = one.get("borrowingLimit")
                borrowed = None if limit is None and spec.get("cohortName") else wanted.convert(limit)
                most = None if borrowed is None else own + borrowed
                found.append(_FlavorQuota(flavor["name"], most, own, used.get(flavor["name"], Decimal(0))))
    return found


def _check_admission(reader: ClusterReader, name: str, queue: Object, see: str, wanted: _Demand) -> Finding:
    shares, needed = _list_flavor_quotas(queue, wanted), wanted.amount
    if not shares:
        return problem(
            f"ClusterQueue {name} has no quota for {wanted.resource}, so it never admits the run",
            "add it to coveredResources, with a nominalQuota for each flavor",
            reader.kubectl(f"edit clusterqueue {name}", namespaced=False),
        )
    if all(each.most is not None and each.most < needed for each in shares):
        quotas = ", ".join(f"{_format_amount(each.most)} of {each.flavor}" for each in shares if each.most is not None)
        more = "" if wanted.resource == reader.gpu_resource else f" {wanted.what}"
        return problem(
            f"ClusterQueue {name} never admits {reader.demand}: one flavor must provide {needed}{more}, but the quotas "
            f"are {quotas}",
            "request less, or raise nominalQuota",
            reader.kubectl(f"edit clusterqueue {name}", namespaced=False),
        )
    left = max(each.own - each.used for each in shares)
    if left < needed:
        return warning(
            f"ClusterQueue {name} has {_format_amount(max(Decimal(0), left))} {wanted.what} left, and the run needs "
            f"{needed}",
            "the run waits until others end, or borrows quota; see what is in the queue",
            see,
        )
    if wanted.resource == reader.gpu_resource:
        return ok(f"ClusterQueue {name} has {pluralize(int(left), 'GPU')} left")
    return ok(f"ClusterQueue {name} has {_format_amount(left)} {wanted.what} left")


def list_flavors(reader: ClusterReader, queue: Object | None) -> Iterator[Object]:
    """Yield the existing ResourceFlavors of a ClusterQueue."""
    groups = ((queue or {}).get("spec") or {}).get("resourceGroups") or []
    names = dict.fromkeys(flavor["name"] for group in groups for flavor in group.get("flavors") or [])
    for name in names:
        found = reader.get(FLAVORS, name, namespaced=False)
        if found is not None:
            yield found


def _check_flavor_nodes(reader: ClusterReader, queue: Object) -> Iterator[Finding]:
    """Check that every flavor exists and has nodes."""
    flavors = list(list_flavors(reader, queue))
    have = {each["metadata"]["name"] for each in flavors}
    groups = (queue.get("spec") or {}).get("resourceGroups") or []
    for name in sorted({each["name"] for group in groups for each in group.get("flavors") or []} - have):
        yield problem(f"ResourceFlavor {name}, which the queue names, does not exist", *suggest_manifests(reader))
    labels = [(each["metadata"].get("labels") or {}) for each in reader.list_all(NODES, namespaced=False)]
    for each in flavors:
        wanted = (each.get("spec") or {}).get("nodeLabels") or {}
        count = sum(wanted.items() <= known.items() for known in labels)
        pairs, name = ",".join(f"{key}={value}" for key, value in wanted.items()), each["metadata"]["name"]
        if count:
            yield ok(f"ResourceFlavor {name} has {pluralize(count, 'node')}{f' ({pairs})' if pairs else ''}")
        else:
            yield warning(
                f"ResourceFlavor {name} has no nodes: no node has the labels {pairs}",
                "label the nodes, or change nodeLabels; ignore this if an autoscaler adds such nodes",
                reader.kubectl(f"label node NODE {pairs.replace(',', ' ')}", namespaced=False),
            )


def check_runtime(reader: ClusterReader) -> Iterator[Finding]:
    """Check that the runtime of TrainJobs exists."""
    if not reader.has_api(RUNTIMES):
        yield skipped("Kubeflow Trainer is not installed")
        return
    found = reader.get(RUNTIMES, RUNTIME, namespaced=False)
    if found is None:
        yield problem(
            f"ClusterTrainingRuntime {RUNTIME}, which training on several nodes needs, does not exist",
            *suggest_manifests(reader),
        )
        return
    yield ok(f"ClusterTrainingRuntime {RUNTIME} exists")
    namespace = reader.get(NAMESPACES, reader.namespace, namespaced=False) or {"metadata": {}}
    if reader.is_openshift:
        yield _check_user(reader, found, namespace)
    labels = namespace["metadata"].get("labels") or {}
    is_injected = labels.get("istio-injection") == "enabled" or "istio.io/rev" in labels
    if is_injected and "false" not in _list_values(found.get("spec") or {}, _SIDECAR):
        yield problem(
            f"Istio adds a sidecar to the trainers' pods, which blocks their ports and never ends: {_SIDECAR} is unset",
            *suggest_manifests(reader, "apply Gumshoe's manifests again, whose runtime has the label"),
        )


def _check_user(reader: ClusterReader, runtime: Object, namespace: Object) -> Finding:
    """Check that OpenShift accepts the user of trainers: the one it assigns, or one of the namespace's range."""
    users = sorted(map(int, _list_values(runtime.get("spec") or {}, "runAsUser")))
    given = (namespace["metadata"].get("annotations") or {}).get(_USERS) or ""
    first, separator, other = given.partition("-" if "-" in given else "/")
    last = int(other) + 1 if separator == "-" else int(first or 0) + int(other or 0)
    allowed = range(int(first or 0), last)
    wrong = [each for each in users if each not in allowed]
    if not wrong:
        return ok(f"ClusterTrainingRuntime {RUNTIME} leaves the user of its pods to OpenShift")
    return problem(
        f"OpenShift rejects the trainers' pods: their user is {wrong[0]}, and the users of namespace "
        f"{reader.namespace} are {given or 'unknown'}",
        *suggest_manifests(reader, "apply Gumshoe's manifests with manifests/components/openshift in your overlay"),
    )


def _list_values(document: Any, field: str) -> Iterator[Any]:
    """Yield the values of all fields of this name."""
    if isinstance(document, list):
        for each in document:
            yield from _list_values(each, field)
    elif isinstance(document, dict):
        for name, value in document.items():
            if name == field:
                yield value
            else:
                yield from _list_values(value, field)
