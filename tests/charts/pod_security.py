"""Check pods against the level `restricted` of the Pod Security Standards, rule by rule.

https://kubernetes.io/docs/concepts/security/pod-security-standards/, Kubernetes 1.34, for pods of Linux.
"""

from collections.abc import Callable, Iterator
from typing import Any

_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
_SAFE_SYSCTLS = {
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_syncookies",
}
_SELINUX_TYPES = {None, "", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
_PROFILES = ("RuntimeDefault", "Localhost")


def find_restricted_violations(pod: dict[str, Any]) -> list[str]:
    """Return the names of the rules that the specification of a pod breaks."""
    return [name for name, breaks in RULES.items() if breaks(pod)]


def _containers(pod: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        yield from pod.get(kind, [])


def _contexts(pod: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the security context of each container, without what it inherits."""
    yield from (container.get("securityContext", {}) for container in _containers(pod))


def _any_context(breaks: Callable[[dict[str, Any]], bool], *, of_pod: bool = False) -> Callable[[dict[str, Any]], bool]:
    def check(pod: dict[str, Any]) -> bool:
        contexts = [*_contexts(pod), *([pod.get("securityContext", {})] if of_pod else [])]
        return any(map(breaks, contexts))

    return check


def _inherited(pod: dict[str, Any], field: str) -> list[Any]:
    """Return a field of each container's security context, or of the pod's if the container does not set it."""
    own = pod.get("securityContext", {}).get(field)
    return [context.get(field, own) for context in _contexts(pod)]


def _drops_not_all(context: dict[str, Any]) -> bool:
    capabilities = context.get("capabilities", {})
    return "ALL" not in capabilities.get("drop", []) or bool(set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"})


def _has_unsafe_selinux(context: dict[str, Any]) -> bool:
    options = context.get("seLinuxOptions", {})
    return options.get("type") not in _SELINUX_TYPES or bool(options.get("user") or options.get("role"))


RULES: dict[str, Callable[[dict[str, Any]], bool]] = {
    "host namespaces": lambda pod: any(pod.get(each) for each in ("hostNetwork", "hostPID", "hostIPC")),
    "privileged": _any_context(lambda context: bool(context.get("privileged"))),
    "capabilities": _any_context(_drops_not_all),
    "volume types": lambda pod: any(not set(each) - {"name"} <= _VOLUMES for each in pod.get("volumes", [])),
    "host ports": lambda pod: any(port.get("hostPort") for each in _containers(pod) for port in each.get("ports", [])),
    "AppArmor": _any_context(
        lambda context: context.get("appArmorProfile", {}).get("type") == "Unconfined", of_pod=True
    ),
    "SELinux": _any_context(_has_unsafe_selinux, of_pod=True),
    "proc mount": _any_context(lambda context: context.get("procMount", "Default") != "Default"),
    "sysctls": lambda pod: (
        not {each["name"] for each in pod.get("securityContext", {}).get("sysctls", [])} <= _SAFE_SYSCTLS
    ),
    "probe hosts": lambda pod: any(
        each.get(probe, {}).get(kind, {}).get("host")
        for each in _containers(pod)
        for probe in ("startupProbe", "readinessProbe", "livenessProbe")
        for kind in ("httpGet", "tcpSocket")
    ),
    "privilege escalation": _any_context(lambda context: context.get("allowPrivilegeEscalation") is not False),
    "running as non-root": lambda pod: any(each is not True for each in _inherited(pod, "runAsNonRoot")),
    "non-root user": _any_context(lambda context: context.get("runAsUser") == 0, of_pod=True),
    "seccomp": lambda pod: any((each or {}).get("type") not in _PROFILES for each in _inherited(pod, "seccompProfile")),
}
"""Functions that return True if a pod breaks a rule, by the rule's name."""
