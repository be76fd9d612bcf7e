"""Check that NetworkPolicies protect the pods of a training, and that the cluster's network enforces them."""

from collections.abc import Iterator

from gumshoe.cluster.preflight.client import NETWORK_POLICIES, PODS, ClusterReader, Object
from gumshoe.cluster.preflight.permissions import suggest_manifests
from gumshoe.cluster.preflight.result import Finding, ok, warning
from gumshoe.cluster.trainjob import ROLE_LABEL

_ROLES = {"rollout": "vLLM rollout servers", "trainer": "trainers"}
_ENFORCING = {  # network plugins by the name of their DaemonSet
    "anetd": "GKE Dataplane V2",
    "antrea-agent": "Antrea",
    "azure-npm": "Azure Network Policy Manager",
    "calico-node": "Calico",
    "canal": "Canal",
    "cilium": "Cilium",
    "kube-network-policies": "kube-network-policies",
    "kube-ovn-cni": "Kube-OVN",
    "kube-router": "kube-router",
    "ovnkube-node": "OVN-Kubernetes",
    "rke2-canal": "Canal",
    "weave-net": "Weave Net",
}
_IGNORING = {"kube-flannel": "Flannel", "kube-flannel-ds": "Flannel"}
_ALL_ADDRESSES = ("0.0.0.0/0", "::/0")
_AWS, _AWS_SWITCH = "aws-node", "--enable-network-policy=true"


def check_network_policies(reader: ClusterReader) -> Iterator[Finding]:
    """Check that NetworkPolicies select the pods of a training, and that the network plugin enforces them.

    No connection is tried: that would need pods of its own. Plugins are recognized by their DaemonSets.
    """
    policies = [each["spec"] for each in reader.list_all(NETWORK_POLICIES)]
    open_roles = [what for role, what in _ROLES.items() if not _is_limited(policies, role)]
    if open_roles:
        yield warning(
            f"NetworkPolicies do not limit who may connect to {' and '.join(open_roles)}", *suggest_manifests(reader)
        )
    else:
        yield ok("NetworkPolicies limit who may connect to rollout servers and trainers")
    yield _check_plugin(reader)


def _check_plugin(reader: ClusterReader) -> Finding:
    daemons = {_daemon_of(each): each for each in reader.list_all(PODS, namespaced=False)}
    enforcing = sorted({_ENFORCING[name] for name in daemons if name in _ENFORCING})
    aws = daemons.get(_AWS)
    if aws is not None and _has_argument(aws, _AWS_SWITCH):
        enforcing.append("the Amazon VPC CNI")
    if enforcing:
        return ok(f"{enforcing[0]} enforces NetworkPolicies")
    ignoring = [*(_IGNORING[name] for name in daemons if name in _IGNORING), *(["the Amazon VPC CNI"] if aws else [])]
    if ignoring:
        return warning(
            f"{ignoring[0]} does not enforce NetworkPolicies: every pod of the cluster can connect to the training's",
            "install a network plugin that does, e.g. Cilium or Calico"
            + (f", or set {_AWS_SWITCH.removeprefix('--')} of the VPC CNI" if aws else "")
            + "; until then, only the key of each run protects its vLLM servers",
        )
    return warning(
        "cannot tell if the cluster's network enforces NetworkPolicies: its plugin is unknown",
        "ask the cluster's administrators, or try it: this must fail while a training runs",
        reader.kubectl(
            "run probe --rm -it --restart=Never --image=busybox -- wget -qO- -T 5 http://NAME-rollout:8000/health"
        ),
    )


def _daemon_of(pod: Object) -> str:
    """Return the name of the DaemonSet that a pod belongs to, or an empty string."""
    owners = pod["metadata"].get("ownerReferences") or []
    return next((each["name"] for each in owners if each.get("kind") == "DaemonSet"), "")


def _has_argument(pod: Object, argument: str) -> bool:
    return any(argument in (each.get("args") or []) for each in pod["spec"].get("containers") or [])


def _is_limited(policies: list[Object], role: str) -> bool:
    """Return True if policies deny ingress to the pods of a role, and none of them allows it for everyone.

    What one policy allows is allowed, whatever the others say.
    """
    own = [each for each in policies if _selects_ingress(each, role)]
    return bool(own) and not any(_admits_everyone(rule) for each in own for rule in each.get("ingress") or [])


def _admits_everyone(rule: Object) -> bool:
    """Return True if a rule admits all pods of the cluster, on some port or on all of them."""
    peers = rule.get("from") or []
    return not peers or any(
        (each.get("namespaceSelector") == {} and not each.get("podSelector"))
        or (each.get("ipBlock") or {}).get("cidr") in _ALL_ADDRESSES
        for each in peers
    )


def _selects_ingress(policy: Object, role: str) -> bool:
    """Return True if a policy is about ingress to the pods of a role."""
    if "Ingress" not in (policy.get("policyTypes") or ["Ingress"]):
        return False
    selector = policy.get("podSelector") or {}
    labels = selector.get("matchLabels") or {}
    rules = selector.get("matchExpressions") or []
    return all(item == (ROLE_LABEL, role) for item in labels.items()) and all(_selects(each, role) for each in rules)


def _selects(rule: Object, role: str) -> bool:
    if rule["key"] != ROLE_LABEL:
        return bool(rule["operator"] in ("NotIn", "DoesNotExist"))
    values = rule.get("values") or []
    return {"In": role in values, "NotIn": role not in values, "Exists": True}.get(rule["operator"], False)
