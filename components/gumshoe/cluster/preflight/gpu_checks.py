"""Check that the GPUs of a run exist and are free."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gumshoe.cluster.pod_resources import GPU_RESOURCE
from gumshoe.cluster.preflight.client import NODES, PODS, ClusterReader, NotAllowedError, Object
from gumshoe.cluster.preflight.queues import find_cluster_queue, list_flavors, parse_count
from gumshoe.cluster.preflight.result import Finding, ok, pluralize, problem, skipped, warning

_SHUTTING = ("NoSchedule", "NoExecute")  # taint effects that keep pods away
_NAMED = 3  # nodes named in a message


@dataclass(slots=True)
class _Node:
    """A node with GPUs."""

    name: str
    gpus: int
    product: str
    closed_reason: str
    """Why no pod is scheduled on it; empty if pods are."""
    untolerated: tuple[Object, ...]
    used: int = 0

    @classmethod
    def of(cls, node: Object, resource: str, tolerations: Iterable[Object]) -> "_Node | None":
        status, spec, meta = node.get("status") or {}, node.get("spec") or {}, node["metadata"]
        count = parse_count((status.get("allocatable") or {}).get(resource))
        if not count:
            return None
        labels = meta.get("labels") or {}
        memory = labels.get(f"{resource}.memory")
        product = labels.get(f"{resource}.product") or labels.get(f"{resource}.product-name")  # NVIDIA's label or AMD's
        product = product or f"{resource} of an unknown model"
        conditions = {each["type"]: each["status"] for each in status.get("conditions") or []}
        closed = "cordoned" if spec.get("unschedulable") else ""
        closed = closed or ("" if conditions.get("Ready", "True") == "True" else "not ready")
        taints = tuple(
            each
            for each in spec.get("taints") or []
            if each.get("effect") in _SHUTTING
            and each["key"] != "node.kubernetes.io/unschedulable"
            and not any(_tolerates(toleration, each) for toleration in tolerations)
        )
        size = f", {parse_count(memory) // 1024} GiB each" if memory else ""
        return cls(meta["name"], int(count), f"{product} ({int(count)} per node{size})", closed, taints)

    @property
    def is_open(self) -> bool:
        return not self.closed_reason and not self.untolerated

    @property
    def free(self) -> int:
        return max(0, self.gpus - self.used)


def _tolerates(toleration: Object, taint: Object) -> bool:
    """Return True if a toleration covers a taint.

    https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/
    """
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    key, value = toleration.get("key") or "", toleration.get("value") or ""
    if toleration.get("operator", "Equal") == "Exists":
        return key in ("", taint["key"])
    return bool(key == taint["key"] and value == taint.get("value", ""))


def check_gpus(reader: ClusterReader) -> Iterator[Finding]:
    """Check the nodes with GPUs: how many there are, free, and open to the run's pods."""
    if not reader.gpus:
        yield skipped("the run needs no GPUs (--gpus 0)")
        return
    tolerations = [*reader.tolerations, *_list_kueue_tolerations(reader)]
    every = reader.list_all(NODES, namespaced=False)
    nodes = [found for each in every if (found := _Node.of(each, reader.gpu_resource, tolerations)) is not None]
    if not nodes:
        yield _report_no_gpus(reader)
        return
    for product, count in sorted(Counter(each.product for each in nodes).items()):
        yield ok(f"{pluralize(count, 'node')} with {product}")
    is_known = True
    try:
        _count_used(reader, nodes)
    except NotAllowedError as error:
        is_known = False
        yield warning(
            f"number of free GPUs: {error}",
            "check it yourself",
            reader.kubectl("describe nodes | grep -A8 'Allocated resources'", namespaced=False),
        )
    yield from _check_closed(reader, nodes)
    yield from _check_taints(reader, nodes)
    yield _check_capacity(reader, nodes, is_known)


def _report_no_gpus(reader: ClusterReader) -> Finding:
    is_nvidia = reader.gpu_resource == GPU_RESOURCE
    plugin = "NVIDIA's GPU operator" if is_nvidia else "the device plugin of their vendor, or correct --gpu-resource"
    install = (
        "helm repo add nvidia https://helm.ngc.nvidia.com/nvidia",
        *reader.add_context(
            "helm upgrade --install gpu-operator nvidia/gpu-operator -n gpu-operator --create-namespace"
        ),
    )
    return problem(
        f"no node offers {reader.gpu_resource}",
        f"add nodes with GPUs, and install {plugin}; if an autoscaler adds such nodes on demand, run the other checks "
        "with --gpus 0",
        *(install if is_nvidia else ()),
    )


def _list_kueue_tolerations(reader: ClusterReader) -> list[Object]:
    """Return the tolerations that Kueue adds to the pods of a training on several nodes.

    Kueue changes the pods of a pipeline's steps only if the run names a queue.
    """
    if reader.nodes == 1:
        return []
    try:
        flavors = list(list_flavors(reader, find_cluster_queue(reader)))
    except NotAllowedError:  # the check of the queue says so
        return []
    return [each for flavor in flavors for each in (flavor.get("spec") or {}).get("tolerations") or []]


def _count_used(reader: ClusterReader, nodes: list[_Node]) -> None:
    """Add up the GPUs that running pods request, by node."""
    by_name = {each.name: each for each in nodes}
    for pod in reader.list_all(PODS, namespaced=False, fields="status.phase!=Succeeded,status.phase!=Failed"):
        spec = pod.get("spec") or {}
        node = by_name.get(spec.get("nodeName") or "")
        if node is not None and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
            node.used += _count_requested_gpus(spec, reader.gpu_resource)


def _count_requested_gpus(spec: Object, resource: str) -> int:
    """Return the number of GPUs that a pod holds: the sum of its containers, or the maximum of an init container."""

    def count(container: Object) -> int:
        resources = container.get("resources") or {}
        return parse_count({**(resources.get("limits") or {}), **(resources.get("requests") or {})}.get(resource))

    first = spec.get("initContainers") or []
    sidecars = sum(count(each) for each in first if each.get("restartPolicy") == "Always")
    together = sidecars + sum(map(count, spec.get("containers") or []))
    return max([together, *map(count, first)])


def _check_closed(reader: ClusterReader, nodes: list[_Node]) -> Iterator[Finding]:
    for reason, command in (("cordoned", "uncordon"), ("not ready", "describe node")):
        closed = [each.name for each in nodes if each.closed_reason == reason]
        if closed:
            yield warning(
                f"{len(closed)} of {len(nodes)} nodes with GPUs are {reason}: {_shorten_names(closed)}",
                "uncordon them when their maintenance is done" if reason == "cordoned" else "look for the cause",
                reader.kubectl(f"{command} {closed[0]}", namespaced=False),
            )


def _check_taints(reader: ClusterReader, nodes: list[_Node]) -> Iterator[Finding]:
    tainted = [each for each in nodes if each.untolerated]
    if not tainted:
        return
    wanted = {(taint["key"], taint.get("value", ""), taint["effect"]) for each in tainted for taint in each.untolerated}
    taints = sorted(f"{key}={value}:{effect}" if value else f"{key}:{effect}" for key, value, effect in wanted)
    given = ", ".join(
        f'{{"key": "{key}", "operator": "Exists", "effect": "{effect}"}}'
        for key, effect in sorted({(key, effect) for key, _, effect in wanted})
    )
    yield warning(
        f"{len(tainted)} of {len(nodes)} nodes with GPUs only accept pods that tolerate {', '.join(taints)}",
        "add the toleration to the run, and to this command",
        f"gumshoe pipeline submit train-agent --set 'tolerations=[{given}]' …",
        f"{reader.doctor_command} {' '.join(f'--toleration {each}' for each in taints)}",
    )


def _check_capacity(reader: ClusterReader, nodes: list[_Node], is_known: bool) -> Finding:
    opened = [each for each in nodes if each.is_open]
    fitting = sum(each.gpus // reader.gpus for each in opened)
    untainted = sum(each.gpus // reader.gpus for each in nodes if not each.closed_reason)
    if fitting < reader.nodes <= untainted and not reader.tolerations:
        return warning(f"there is room for {reader.demand} only on tainted nodes", "add the tolerations as shown above")
    if fitting < reader.nodes:
        most = max((each.gpus for each in opened), default=0)
        return problem(
            f"there is no room for {reader.demand}: {len(opened)} of {len(nodes)} nodes accept such pods, "
            f"with {pluralize(most, 'GPU')} at most and room for {pluralize(fitting, 'pod')}",
            "request fewer GPUs (`gumshoe plan` shows what a model needs), free the nodes above, or add nodes",
        )
    total, free = sum(each.gpus for each in opened), sum(each.free for each in opened)
    if not is_known:
        return ok(f"there is room for {reader.demand} on the {total} GPUs open to such pods, if they are free")
    now = sum(each.free // reader.gpus for each in opened)
    if now < reader.nodes:
        return warning(
            f"there is no room now for {reader.demand}: {free} of {total} GPUs are free, "
            f"which is room for {pluralize(now, 'pod')}",
            "the run waits until other pods end; see which pods hold the GPUs",
            reader.kubectl("get pods -A -o wide --field-selector status.phase=Running", namespaced=False),
        )
    return ok(f"there is room for {reader.demand}: {free} of {total} GPUs open to such pods are free")


def _shorten_names(names: list[str]) -> str:
    rest = len(names) - _NAMED
    return ", ".join(sorted(names)[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
