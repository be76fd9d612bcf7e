"""Whether the GPUs that a run asks for are there, and free."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gumshoe.cluster.preflight.client import NODES, PODS, ClusterReader, NotAllowedError, Object
from gumshoe.cluster.preflight.queues import GPU, cluster_queue, flavors_of, number
from gumshoe.cluster.preflight.result import Finding, counted, ok, problem, skipped, warning

_SHUTTING = ("NoSchedule", "NoExecute")  # effects of taints that keep pods away
_NAMED = 3  # nodes that a message names


@dataclass(slots=True)
class _Node:
    """A node with GPUs."""

    name: str
    gpus: int
    product: str
    closed: str
    """Why no pod comes to it; empty where pods do."""
    untolerated: tuple[Object, ...]
    used: int = 0

    @classmethod
    def of(cls, made: Object, tolerations: Iterable[Object]) -> "_Node | None":
        status, spec, meta = made.get("status") or {}, made.get("spec") or {}, made["metadata"]
        count = number((status.get("allocatable") or {}).get(GPU))
        if not count:
            return None
        labels = meta.get("labels") or {}
        memory = labels.get(f"{GPU}.memory")
        product = labels.get(f"{GPU}.product", "GPUs of an unknown make")
        conditions = {each["type"]: each["status"] for each in status.get("conditions") or []}
        closed = "cordoned" if spec.get("unschedulable") else ""
        closed = closed or ("" if conditions.get("Ready", "True") == "True" else "not ready")
        taints = tuple(
            each
            for each in spec.get("taints") or []
            if each.get("effect") in _SHUTTING
            and each["key"] != "node.kubernetes.io/unschedulable"
            and not any(_bears(toleration, each) for toleration in tolerations)
        )
        size = f", {number(memory) // 1024} GiB each" if memory else ""
        return cls(meta["name"], int(count), f"{product} ({int(count)} a node{size})", closed, taints)

    @property
    def is_open(self) -> bool:
        return not self.closed and not self.untolerated

    @property
    def free(self) -> int:
        return max(0, self.gpus - self.used)


def _bears(toleration: Object, taint: Object) -> bool:
    """Whether a toleration covers a taint.

    https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/
    """
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    key, value = toleration.get("key") or "", toleration.get("value") or ""
    if toleration.get("operator", "Equal") == "Exists":
        return key in ("", taint["key"])
    return bool(key == taint["key"] and value == taint.get("value", ""))


def gpus(asked: ClusterReader) -> Iterator[Finding]:
    """Nodes with GPUs: how many, free, and open to the run's pods."""
    if not asked.gpus:
        yield skipped("the run asks for no GPUs (--gpus 0)")
        return
    tolerations = [*asked.tolerations, *_added(asked)]
    every = asked.every(NODES, namespaced=False)
    nodes = [found for each in every if (found := _Node.of(each, tolerations)) is not None]
    if not nodes:
        yield problem(
            f"no node has {GPU} to give",
            "add nodes with GPUs, and install NVIDIA's operator, which makes them known; where an autoscaler adds "
            "such nodes when they are wanted, check the rest with --gpus 0",
            "helm repo add nvidia https://helm.ngc.nvidia.com/nvidia",
            *asked.there("helm upgrade --install gpu-operator nvidia/gpu-operator -n gpu-operator --create-namespace"),
        )
        return
    for product, count in sorted(Counter(each.product for each in nodes).items()):
        yield ok(f"{counted(count, 'node')} with {product}")
    is_known = True
    try:
        _count_used(asked, nodes)
    except NotAllowedError as error:
        is_known = False
        yield warning(
            f"how many GPUs are free: {error}",
            "look yourself",
            asked.kubectl("describe nodes | grep -A8 'Allocated resources'", namespaced=False),
        )
    yield from _closed(asked, nodes)
    yield from _tainted(asked, nodes)
    yield _enough(asked, nodes, is_known)


def _added(asked: ClusterReader) -> list[Object]:
    """The tolerations that Kueue gives the pods of a training on several nodes; those of a pipeline's steps it does not
    touch.
    """
    if asked.nodes == 1:
        return []
    try:
        flavors = list(flavors_of(asked, cluster_queue(asked)))
    except NotAllowedError:  # the check of the queue says so
        return []
    return [each for flavor in flavors for each in (flavor.get("spec") or {}).get("tolerations") or []]


def _count_used(asked: ClusterReader, nodes: list[_Node]) -> None:
    """Note what pods that have not ended ask of the nodes."""
    by_name = {each.name: each for each in nodes}
    for pod in asked.every(PODS, namespaced=False, fields="status.phase!=Succeeded,status.phase!=Failed"):
        spec = pod.get("spec") or {}
        node = by_name.get(spec.get("nodeName") or "")
        if node is not None and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
            node.used += _asks(spec)


def _asks(spec: Object) -> int:
    """The GPUs that a pod holds: what its containers ask for together, or the most of one that begins before them."""

    def of(container: Object) -> int:
        resources = container.get("resources") or {}
        return number({**(resources.get("limits") or {}), **(resources.get("requests") or {})}.get(GPU))

    first = spec.get("initContainers") or []
    beside = sum(of(each) for each in first if each.get("restartPolicy") == "Always")
    together = beside + sum(map(of, spec.get("containers") or []))
    return max([together, *map(of, first)])


def _closed(asked: ClusterReader, nodes: list[_Node]) -> Iterator[Finding]:
    for reason, command in (("cordoned", "uncordon"), ("not ready", "describe node")):
        closed = [each.name for each in nodes if each.closed == reason]
        if closed:
            yield warning(
                f"{len(closed)} of {len(nodes)} nodes with GPUs are {reason}: {_some(closed)}",
                "open them again once that is right" if reason == "cordoned" else "see why",
                asked.kubectl(f"{command} {closed[0]}", namespaced=False),
            )


def _tainted(asked: ClusterReader, nodes: list[_Node]) -> Iterator[Finding]:
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
        f"{len(tainted)} of {len(nodes)} nodes with GPUs keep pods away that do not tolerate {', '.join(taints)}",
        "let the run tolerate it, and tell this command too",
        f"gumshoe pipeline submit train-agent --set 'tolerations=[{given}]' …",
        f"{asked.doctor} {' '.join(f'--toleration {each}' for each in taints)}",
    )


def _enough(asked: ClusterReader, nodes: list[_Node], is_known: bool) -> Finding:
    opened = [each for each in nodes if each.is_open]
    fitting = sum(each.gpus // asked.gpus for each in opened)
    untainted = sum(each.gpus // asked.gpus for each in nodes if not each.closed)
    if fitting < asked.nodes <= untainted and not asked.tolerations:
        return warning(
            f"there is room for {asked.wanted} only where those taints are borne", "tell what the run bears, as above"
        )
    if fitting < asked.nodes:
        most = max((each.gpus for each in opened), default=0)
        return problem(
            f"there is no room for {asked.wanted}: {len(opened)} of {len(nodes)} nodes are open to such pods, "
            f"with {counted(most, 'GPU')} at most and room for {counted(fitting, 'pod')}",
            "ask for fewer GPUs (gumshoe plan says what a model takes), open the nodes above, or add nodes",
        )
    total, free = sum(each.gpus for each in opened), sum(each.free for each in opened)
    if not is_known:
        return ok(f"there is room for {asked.wanted} on the {total} GPUs that such pods may use, if they are free")
    now = sum(each.free // asked.gpus for each in opened)
    if now < asked.nodes:
        return warning(
            f"there is no room now for {asked.wanted}: {free} of {total} GPUs are free, "
            f"which is room for {counted(now, 'pod')}",
            "the run waits until others end; see who has them",
            asked.kubectl("get pods -A -o wide --field-selector status.phase=Running", namespaced=False),
        )
    return ok(f"there is room for {asked.wanted}: {free} of {total} GPUs are free where such pods may run")


def _some(names: list[str]) -> str:
    rest = len(names) - _NAMED
    return ", ".join(sorted(names)[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
