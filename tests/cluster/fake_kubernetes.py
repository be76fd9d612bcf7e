"""Fake a Kubernetes API over a real socket, for the resources of the chart and of trainings.

It answers Helm, `kubectl` and the Kubernetes clients. `settle` plays the controllers. Tests can make it misbehave.
"""

import base64
import json
import math
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.port_forward import PROTOCOL, forward_port
from tests.cluster.server_side_apply import FieldConflictError, apply, merge, note_update
from tests.http_server import Dialogue, ReceivedRequest, run_faulty_server

Object = dict[str, Any]
_KINDS = {  # kinds by plural, by API version
    "v1": {
        "limitranges": "LimitRange",
        "configmaps": "ConfigMap",
        "events": "Event",
        "nodes": "Node",
        "persistentvolumeclaims": "PersistentVolumeClaim",
        "namespaces": "Namespace",
        "pods": "Pod",
        "resourcequotas": "ResourceQuota",
        "secrets": "Secret",
        "serviceaccounts": "ServiceAccount",
        "services": "Service",
    },
    "apps/v1": {"deployments": "Deployment"},
    "authorization.k8s.io/v1": {"subjectaccessreviews": "SubjectAccessReview"},
    "batch/v1": {"jobs": "Job"},
    "autoscaling/v2": {"horizontalpodautoscalers": "HorizontalPodAutoscaler"},
    "kubeflow.org/v1": {"profiles": "Profile"},
    "kueue.x-k8s.io/v1beta2": {
        "clusterqueues": "ClusterQueue",
        "localqueues": "LocalQueue",
        "resourceflavors": "ResourceFlavor",
        "workloadpriorityclasses": "WorkloadPriorityClass",
        "workloads": "Workload",
    },
    "monitoring.coreos.com/v1": {"podmonitors": "PodMonitor", "prometheusrules": "PrometheusRule"},
    "networking.k8s.io/v1": {"ingresses": "Ingress", "networkpolicies": "NetworkPolicy"},
    "pipelines.kubeflow.org/v2beta1": {"pipelines": "Pipeline", "pipelineversions": "PipelineVersion"},
    "policy/v1": {"poddisruptionbudgets": "PodDisruptionBudget"},
    "rbac.authorization.k8s.io/v1": {
        "clusterrolebindings": "ClusterRoleBinding",
        "clusterroles": "ClusterRole",
        "rolebindings": "RoleBinding",
        "roles": "Role",
    },
    "serving.kserve.io/v1alpha1": {"servingruntimes": "ServingRuntime"},
    "serving.kserve.io/v1alpha2": {"llminferenceservices": "LLMInferenceService"},
    "serving.kserve.io/v1beta1": {"inferenceservices": "InferenceService"},
    "storage.k8s.io/v1": {"storageclasses": "StorageClass"},
    "trainer.kubeflow.org/v1alpha1": {"clustertrainingruntimes": "ClusterTrainingRuntime", "trainjobs": "TrainJob"},
}
_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/(?P<version>v[^/]+)(?:/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<plural>[a-z]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>log|portforward|scale|status))?"
)
_JSON_PATCH, _MERGE_PATCH = "application/json-patch+json", "application/merge-patch+json"
_APPLY_PATCH, _STRATEGIC_PATCH = "application/apply-patch+yaml", "application/strategic-merge-patch+json"
_PROTOBUF = b"k8s\x00"  # prefix of Kubernetes' binary encoding


@dataclass
class FakeKubernetes:
    """The state of the fake cluster, its faults, and a record of requests."""

    url: str = ""
    token: str | None = None
    """If set, the only token that is accepted."""
    objects: dict[tuple[str, str, str], Object] = field(default_factory=dict)
    """Objects by plural, namespace and name."""
    logs: dict[str, str] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    faults: deque[str] = field(default_factory=deque)
    """Faults of the next requests, one each: reset, hang, an HTTP status, or fine."""
    refused: tuple[str, str] | None = None
    """A verb and a plural that are forbidden."""
    denied_deletion: str | None = None
    """A plural whose deletion an admission webhook denies."""
    unserved: set[str] = field(default_factory=set)
    """API versions that are not served."""
    allows: Callable[[Object], bool] = lambda _: True
    """Return True if the specification of a SubjectAccessReview is allowed."""
    settle: Callable[[Object], None] = lambda _: None
    """Play the controllers: change an object that was written."""
    on_delete: Callable[[Object], None] = lambda _: None
    """Play the controllers after a deletion."""
    lines: dict[str, list[tuple[datetime, str]]] = field(default_factory=dict)
    """Lines of the logs that can be followed, by pod."""
    request_faults: dict[str, deque[str]] = field(default_factory=dict)
    """Faults by verb and plural, e.g. `watch trainjobs`: an HTTP status each, or reset."""
    deletion_delay: float = 0
    """Seconds until an object deleted in the foreground disappears; infinity for never."""
    pod_addresses: dict[str, tuple[str, int] | None] = field(default_factory=dict)
    """Addresses that the ports of pods are forwarded to, by pod; None if nothing listens there."""
    is_dead: bool = False
    """If true, no request is answered."""
    kubeconfig: Path = Path()

    def __post_init__(self) -> None:
        self._version = 0
        self._lock = threading.RLock()
        self._history: list[tuple[int, str, str, Object]] = []  # version, kind of event, plural, object
        self._forgotten = 0
        self._cuts = 0

    def expire_watches(self) -> None:
        """Make the resource versions of all watches too old."""
        with self._lock:
            self._version += 1
            self._forgotten = self._version

    def break_streams(self) -> None:
        """Break all watches and followed logs."""
        self._cuts += 1

    def stop_answering(self) -> None:
        """Answer no more requests."""
        self.is_dead = True
        self.break_streams()

    def write_log(self, pod: str, *texts: str) -> None:
        """Write lines to a pod's log. Lines of one call have the same time."""
        self.lines.setdefault(pod, []).extend((datetime.now(UTC), text) for text in texts)

    def change(self, plural: str, namespace: str, name: str, **parts: Any) -> Object:
        """Replace parts of an object."""
        with self._lock:
            return self.put({**deepcopy(self.objects[plural, namespace, name]), **parts}, plural)

    def put(self, made: Object, plural: str | None = None) -> Object:
        """Write an object like an API server."""
        plural = plural or next(p for kinds in _KINDS.values() for p, kind in kinds.items() if kind == made["kind"])
        meta = made["metadata"]
        key = (plural, meta.get("namespace", ""), meta["name"])
        self._version += 1
        old = self.objects.get(key)
        if old is not None:
            made.setdefault("status", old.get("status", {}))
        changed = old is None or old.get("spec") != made.get("spec")
        kept: Object = (
            old["metadata"] if old else {"uid": f"u{self._version}", "creationTimestamp": _now(), "generation": 0}
        )
        meta |= {name: kept[name] for name in ("uid", "creationTimestamp")}
        meta |= {"generation": kept["generation"] + changed, "resourceVersion": str(self._version)}
        version = self._version
        self.settle(made)
        self.objects[key] = made
        self._history.append((version, "MODIFIED" if old else "ADDED", plural, deepcopy(made)))
        return made

    def restore(self, objects: dict[tuple[str, str, str], Object]) -> None:
        """Replace all objects by copies of these."""
        with self._lock:
            self.objects = deepcopy(objects)
            self._version = max(int(each["metadata"]["resourceVersion"]) for each in objects.values())

    def delete(self, plural: str, namespace: str, name: str) -> Object:
        """Delete an object and its dependents."""
        with self._lock:
            gone = self.objects.pop((plural, namespace, name))
            self._version += 1
            last = deepcopy(gone)
            last["metadata"]["resourceVersion"] = str(self._version)
            self._history.append((self._version, "DELETED", plural, last))
            self.on_delete(gone)
            owned = [
                key
                for key, each in self.objects.items()
                if [o for o in each["metadata"].get("ownerReferences") or [] if o["uid"] == gone["metadata"]["uid"]]
            ]
            for each in owned:
                self.delete(*each)
            return gone

    def of(self, kind: str) -> list[Object]:
        """Return the objects of a kind."""
        return [each for each in self.objects.values() if each["kind"] == kind]

    def answer(self, method: str, path: str, query: dict[str, str], body: bytes, content_type: str) -> tuple[int, Any]:
        if path.rstrip("/") == "/version":
            others = ("gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform")
            return 200, {"major": "1", "minor": "33", "gitVersion": "v1.33.0", **dict.fromkeys(others, "-")}
        if path in ("/api", "/apis", "/openapi/v2"):
            return self._handle_discovery(path)
        found = _PATH.fullmatch(path)
        if found is None:
            group = path.removeprefix("/apis/").removeprefix("/api/")
            known = group in _KINDS and group not in self.unserved
            return (200, _resources(group)) if known else _status(404, "NotFound", path)
        parts = found.groupdict()
        version = "/".join(filter(None, (parts["group"], parts["version"])))
        plural, namespace, name = parts["plural"], parts["namespace"] or "", parts["name"]
        if version in self.unserved or plural not in _KINDS.get(version, {}):
            return _status(404, "NotFound", "the server could not find the requested resource")
        verb = {"POST": "create", "PUT": "update", "DELETE": "delete", "PATCH": "patch"}.get(
            method, "get" if name else "list"
        )
        if query.get("watch", "").lower() == "true":
            verb = "watch"
        if faults := self.request_faults.get(f"{verb} {parts['sub'] or plural}"):
            fault = faults.popleft()
            return (0, "") if fault == "reset" else _status(int(fault), "Because", "because")
        if verb == "patch" and body.startswith(b"[") != (content_type == _JSON_PATCH):
            return _status(400, "BadRequest", f"error decoding patch: it is not {content_type}")
        if self.refused in ((verb, plural), (verb, f"{plural}/{parts['sub']}")):
            return _forbid(verb, plural)
        if parts["sub"] == "portforward":
            return (101, "") if name in self.pod_addresses else _status(404, "NotFound", f'pods "{name}" not found')
        if plural == "subjectaccessreviews":
            review = read(body)
            return 201, {**review, "status": {"allowed": self.allows(review["spec"])}}
        if verb == "watch":
            return 200, self._stream_watch(plural, namespace, query)
        if parts["sub"] == "log" and query.get("follow", "").lower() == "true" and name and name not in self.logs:
            return 200, self._stream_log(namespace, name, query)
        with self._lock:
            key = (plural, namespace, str(name))
            if content_type == _APPLY_PATCH:
                return self._apply(version, key, query, body)
            if content_type in (_MERGE_PATCH, _STRATEGIC_PATCH):
                return self._merge(key, parts["sub"] or "", query, json.loads(body), content_type)
            if parts["sub"] == "scale":
                return self._scale(key)
            return self._handle_resource(verb, version, plural, namespace, name, parts["sub"], query, body)

    def _apply(self, version: str, key: tuple[str, str, str], query: dict[str, str], body: bytes) -> tuple[int, Any]:
        """Apply an object on the server side."""
        plural, namespace, _ = key
        live = self.objects.get(key)
        if live is None and self.refused == ("create", plural):
            return _forbid("create", plural)
        wanted: Object = {**read(body), "apiVersion": version, "kind": _KINDS[version][plural]}
        if namespace:
            wanted["metadata"]["namespace"] = namespace
        try:
            forced = query.get("force") == "true"
            made = apply(live or {"metadata": {}}, wanted, query["fieldManager"], force=forced)
        except FieldConflictError as conflict:
            status, found = _status(409, "Conflict", str(conflict))
            return status, {**found, "details": {"name": key[2], "causes": conflict.causes}}
        code = 200 if live else 201
        return (code, made) if "dryRun" in query else (code, self.put(made, plural))

    def _merge(
        self, key: tuple[str, str, str], sub: str, query: dict[str, str], change: Object, content_type: str
    ) -> tuple[int, Any]:
        """Merge a patch into an object. The client manages the changed fields then."""
        live = self.objects.get(key)
        if live is None:
            return _status(404, "NotFound", f'{key[0]} "{key[2]}" not found')
        made = merge(live, change) if content_type == _STRATEGIC_PATCH else _apply_merge_patch(live, change)
        made["metadata"] = deepcopy(made["metadata"])
        note_update(live, made, query["fieldManager"], sub)
        if "dryRun" not in query:
            made = self.put(made, key[0])
        return 200, _describe_scale(made) if sub == "scale" else made

    def _scale(self, key: tuple[str, str, str]) -> tuple[int, Any]:
        if key not in self.objects:
            return _status(404, "NotFound", f'{key[0]} "{key[2]}" not found')
        return 200, _describe_scale(self.objects[key])

    def _stream_watch(self, plural: str, namespace: str, query: dict[str, str]) -> Iterator[bytes]:
        """Yield a bookmark, then the events after a version as they happen."""
        seen, cuts, until = int(query["resourceVersion"]), self._cuts, time.monotonic() + int(query["timeoutSeconds"])
        mark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(seen)}}}
        yield json.dumps(mark).encode() + b"\n"
        while time.monotonic() < until:
            if self._cuts > cuts:
                raise ConnectionError
            with self._lock:
                if seen < self._forgotten:
                    gone = _status(410, "Expired", "too old resource version")[1]
                    yield json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n"
                    return
                new = [each for each in self._history if each[0] > seen and each[2] == plural]
            for version, kind, _, found in new:
                seen = version
                if found["metadata"].get("namespace", "") in ("", namespace) and _matches(found, query):
                    yield json.dumps({"type": kind, "object": found}).encode() + b"\n"
            time.sleep(0.02)

    def _stream_log(self, namespace: str, name: str, query: dict[str, str]) -> Iterator[bytes]:
        """Yield the lines of a log as they are written, until the pod has ended."""
        cuts, sent = self._cuts, 0
        since = datetime.now(UTC) - timedelta(seconds=int(query.get("sinceSeconds", 10**8)))
        while True:
            if self._cuts > cuts:
                raise ConnectionError
            pod = self.objects.get(("pods", namespace, name))
            lines = self.lines.get(name, [])
            for stamp, text in lines[sent:]:
                sent += 1
                if stamp >= since:
                    yield f"{stamp:%Y-%m-%dT%H:%M:%S.%f}000Z {text}\n".encode()
            if sent == len(self.lines.get(name, [])) and (pod is None or pod["status"]["phase"] != "Running"):
                return
            time.sleep(0.02)

    def _handle_discovery(self, path: str) -> tuple[int, Any]:
        if path == "/api":
            return 200, {"kind": "APIVersions", "versions": ["v1"]}
        if path == "/apis":
            groups: dict[str, list[Object]] = {}
            for version in _KINDS:
                if "/" in version and version not in self.unserved:
                    group, _, number = version.partition("/")
                    groups.setdefault(group, []).append({"groupVersion": version, "version": number})
            listed = [
                {"name": name, "versions": versions, "preferredVersion": versions[-1]}
                for name, versions in groups.items()
            ]
            return 200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
        return 200, ""  # an empty OpenAPI document: no schema to validate against

    def _handle_resource(
        self,
        verb: str,
        version: str,
        plural: str,
        namespace: str,
        name: str | None,
        sub: str | None,
        query: dict[str, str],
        body: bytes,
    ) -> tuple[int, Any]:
        kind = _KINDS[version][plural]
        made: Object = {}
        if verb in ("create", "patch", "update"):
            made = (
                read(body)
                if not body.startswith(b"[")
                else self._apply_json_patch((plural, namespace, str(name)), body)
            )
            made |= {"kind": kind, "apiVersion": version}
            if namespace:
                made["metadata"]["namespace"] = namespace
        if verb == "list":
            found = [
                each
                for (known, place, _), each in self.objects.items()
                if known == plural and namespace in ("", place) and _matches(each, query)
            ]
            start, most = int(query.get("continue") or 0), int(query.get("limit") or len(found) or 1)
            rest = {"continue": str(start + most)} if start + most < len(found) else {}
            page = found[start : start + most]
            meta = {"resourceVersion": str(self._version), **rest}
            return 200, {"kind": f"{kind}List", "apiVersion": version, "metadata": meta, "items": page}
        is_dry_run = "dryRun" in query or "dryRun" in (json.loads(body) if body.startswith(b"{") else {})
        if verb == "create":
            if (plural, namespace, made["metadata"]["name"]) in self.objects:
                return _status(409, "AlreadyExists", f'{plural} "{made["metadata"]["name"]}" already exists')
            return 201, made if is_dry_run else self.put(made, plural)
        key = (plural, namespace, str(name))
        if sub == "log":
            lines = [text for _, text in self.lines.get(str(name), [])][-int(query.get("tailLines", 10**6)) :]
            return 200, self.logs.get(str(name), "".join(f"{text}\n" for text in lines))
        if key == ("configmaps", namespace, "kube-root-ca.crt") and any(
            place == namespace for _, place, _ in self.objects
        ):
            return 200, {"kind": kind, "apiVersion": version, "metadata": {"name": name, "uid": f"root-{namespace}"}}
        if key not in self.objects:
            return _status(404, "NotFound", f'{plural} "{name}" not found')
        current = self.objects[key]["metadata"].get("resourceVersion")
        if verb in ("patch", "update") and made["metadata"].get("resourceVersion", current) != current:
            return _status(409, "Conflict", f"the object {name} has been modified")
        if verb in ("patch", "update"):
            return 200, made if is_dry_run else self.put(made, plural)
        if verb == "delete" and self.denied_deletion == plural:
            return _status(
                403, "Forbidden", f'admission webhook "keep.example.com" denied the request: {name} is protected'
            )
        if verb == "delete" and is_dry_run:
            return 200, self.objects[key]
        if verb == "delete":
            return self._handle_delete(key, json.loads(body) if body.startswith(b"{") else {})  # Helm sends Protobuf
        return 200, self.objects[key]

    def _apply_json_patch(self, key: tuple[str, str, str], body: bytes) -> Object:
        """Apply a JSON patch (RFC 6902) that replaces whole fields."""
        made = deepcopy(self.objects.get(key, {"metadata": {"name": key[2]}}))
        for change in json.loads(body):
            *parents, last = change["path"].strip("/").split("/")
            place = made
            for step in parents:
                place = place[step]
            place[last] = change["value"]
        return made

    def _handle_delete(self, key: tuple[str, str, str], options: Object) -> tuple[int, Any]:
        found = self.objects[key]
        wanted = (options.get("preconditions") or {}).get("uid")
        if wanted not in (None, found["metadata"]["uid"]):
            return _status(409, "Conflict", f"the UID in the precondition ({wanted}) is not its own")
        if self.deletion_delay and options.get("propagationPolicy") == "Foreground":
            if not found["metadata"].get("deletionTimestamp"):
                meta = {**found["metadata"], "deletionTimestamp": _now()}
                self.put({**deepcopy(found), "metadata": meta}, key[0])
                if math.isinf(self.deletion_delay):
                    return 200, self.objects[key]
                later = threading.Timer(self.deletion_delay, lambda: key in self.objects and self.delete(*key))
                later.daemon = True
                later.start()
            return 200, self.objects[key]
        return 200, self.delete(*key)


def _apply_merge_patch(old: Any, change: Any) -> Any:
    """Apply a merge patch (RFC 7396) to a document."""
    if not isinstance(change, dict):
        return change
    made = dict(old) if isinstance(old, dict) else {}
    for name, value in change.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = _apply_merge_patch(made.get(name), value)
    return made


def _matches(each: Object, query: dict[str, str]) -> bool:
    labels = each["metadata"].get("labels") or {}
    for part in filter(None, query.get("labelSelector", "").split(",")):
        name, _, value = part.replace("==", "=").partition("=")
        if labels.get(name) != value:
            return False
    for part in filter(None, query.get("fieldSelector", "").split(",")):
        name, _, value = part.partition("=")
        found: Any = each
        for step in name.removesuffix("!").split("."):
            found = (found or {}).get(step)
        if (str(found) == value) == name.endswith("!"):
            return False
    return True


def _forbid(verb: str, plural: str) -> tuple[int, Object]:
    group = next(version.rpartition("/")[0] for version, kinds in _KINDS.items() if plural in kinds)
    text = f'{plural} is forbidden: User "ann" cannot {verb} resource "{plural}" in API group "{group}"'
    return _status(403, "Forbidden", text)


def _describe_scale(found: Object) -> Object:
    """Return an object's subresource `scale`."""
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: found["metadata"][name] for name in ("name", "namespace", "resourceVersion")},
        "spec": {"replicas": found["spec"].get("replicas", 1)},
        "status": {"replicas": (found.get("status") or {}).get("replicas", 0)},
    }


def _status(code: int, reason: str, message: str) -> tuple[int, Object]:
    return code, {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
    }


_CLUSTER_SCOPED = {
    "profiles",
    "clusterqueues",
    "clusterrolebindings",
    "clusterroles",
    "clustertrainingruntimes",
    "namespaces",
    "nodes",
    "resourceflavors",
    "storageclasses",
    "workloadpriorityclasses",
}


def _resources(version: str) -> Object:
    verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
    listed = [
        {"name": plural, "singularName": "", "namespaced": plural not in _CLUSTER_SCOPED, "kind": kind, "verbs": verbs}
        for plural, kind in _KINDS[version].items()
    ]
    if version == "apps/v1":
        scale = {"name": "deployments/scale", "group": "autoscaling", "version": "v1", "kind": "Scale"}
        listed.append({**listed[0], **scale, "verbs": ["get", "patch", "update"]})
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": listed}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read(body: bytes) -> Object:
    """Decode a request body: YAML, JSON, or a Secret in Kubernetes' binary encoding."""
    if not body.startswith(_PROTOBUF):
        return dict(json.loads(body) if body.startswith(b"{") else yaml.load(body, yaml.CSafeLoader))
    unknown, made = _messages()
    secret = made()
    secret.ParseFromString(unknown.FromString(body[len(_PROTOBUF) :]).raw)
    meta = {"name": secret.metadata.name, "labels": dict(secret.metadata.labels)}
    if secret.metadata.namespace:
        meta["namespace"] = secret.metadata.namespace
    data = {name: base64.b64encode(value).decode() for name, value in secret.data.items()}
    return {"metadata": meta, "type": secret.type, "data": data}


@cache
def _messages() -> tuple[Any, Any]:
    """Return the two Protobuf messages that Helm sends, with only the fields that are used.

    https://github.com/kubernetes/api/blob/master/core/v1/generated.proto
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    text, blob, message = 9, 12, 11  # FieldDescriptorProto.Type
    file = descriptor_pb2.FileDescriptorProto(name="fake_kubernetes.proto", package="k8s", syntax="proto2")

    def add(name: str, fields: dict[str, tuple[int, int, str]]) -> Any:
        made = file.message_type.add(name=name)
        for called, (number, kind, of) in fields.items():
            repeated = called in ("labels", "data")
            made.field.add(name=called, number=number, type=kind, label=3 if repeated else 1, type_name=of or None)
        return made

    def entry(owner: Any, name: str, value: int) -> None:
        inner = owner.nested_type.add(name=name)
        inner.options.map_entry = True
        inner.field.add(name="key", number=1, type=text, label=1)
        inner.field.add(name="value", number=2, type=value, label=1)

    add("Unknown", {"raw": (2, blob, "")})
    meta = add(
        "ObjectMeta",
        {"name": (1, text, ""), "namespace": (3, text, ""), "labels": (11, message, ".k8s.ObjectMeta.LabelsEntry")},
    )
    entry(meta, "LabelsEntry", text)
    secret = add(
        "Secret",
        {
            "metadata": (1, message, ".k8s.ObjectMeta"),
            "data": (2, message, ".k8s.Secret.DataEntry"),
            "type": (3, text, ""),
        },
    )
    entry(secret, "DataEntry", blob)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    unknown, made = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"k8s.{each}")) for each in ("Unknown", "Secret")
    )
    return unknown, made


def write_kubeconfig(directory: Path, url: str, **settings: str) -> Path:
    """Write a kubeconfig for a cluster, with more settings of it, and return its path."""
    where = {"cluster": "fake", "user": "ann", "namespace": "agents"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "fake",
        "clusters": [{"name": "fake", "cluster": {"server": url, **settings}}],
        "users": [{"name": "ann", "user": {"token": "secret"}}],
        "contexts": [{"name": "fake", "context": where}],
    }
    (directory / "kubeconfig").write_text(yaml.safe_dump(config))
    return directory / "kubeconfig"


@contextmanager
def fake_kubernetes(directory: Path) -> Iterator[FakeKubernetes]:
    """Run a fake cluster while the block runs. Its kubeconfig is written to `directory`."""
    fake = FakeKubernetes()

    def answer(request: ReceivedRequest, fault: str) -> tuple[int, str, bytes | Iterator[bytes] | Dialogue]:
        container = f"?{request.query['container']}" if "container" in request.query else ""
        fake.requests.append(f"{request.method} {request.path}{container}")
        found: Any
        if fault in ("reset", "hang") or fake.is_dead:
            return 0, "", b""
        if fake.token and request.authorization != f"Bearer {fake.token}":
            status, found = _status(401, "Unauthorized", "Unauthorized")
        elif fault.isdigit():
            status, found = _status(int(fault), "Because", "because")
        else:
            query = request.query
            if request.method == "PATCH":  # a client that does not give its name has that of its user agent
                query = {"fieldManager": request.user_agent.partition("/")[0], **query}
            status, found = fake.answer(request.method, request.path, query, request.body, request.content_type)
        if status == 101 and request.websocket_protocol == PROTOCOL:
            address = fake.pod_addresses[request.path.split("/")[-2]]
            return status, "", forward_port(request.websocket_key, int(request.query["ports"]), address)
        if isinstance(found, str):
            return status, "text/plain", found.encode()
        if isinstance(found, Iterator):
            return status, "application/json", found
        return status, "application/json", json.dumps(found).encode()

    with run_faulty_server(fake.faults, answer) as url:
        fake.url = url
        fake.kubeconfig = write_kubeconfig(directory, url)
        yield fake
        fake.break_streams()


@dataclass
class Controllers:
    """Play the controllers of Deployments, KServe and pods. Set `cluster.settle` to its `settle`."""

    fake: FakeKubernetes
    broken: str | None = None
    """A part whose new pods never become ready (`agent` or `model`), or `kserve` to make KServe do nothing."""
    pod_problem: str = "ImagePullBackOff"
    refusal: str = ""
    """Why the API server refuses the new pods of the broken part; empty if it accepts them."""
    rollouts: list[str] = field(default_factory=list)
    """The Deployments whose templates changed, in order."""

    def repair(self) -> None:
        """End the fault, and do what was left undone."""
        self.broken = None
        for each in [*self.fake.of("InferenceService"), *self.fake.of("Deployment")]:
            self.settle(each)

    def settle(self, made: Object) -> None:
        if made["kind"] == "Deployment":
            self._deployment(made)
        elif made["kind"] == "InferenceService":
            self._model(made, made["spec"]["predictor"]["model"], "kserve-container")
        elif made["kind"] == "LLMInferenceService":
            self._model(made, made["spec"]["template"]["containers"][0], "main")

    def _model(self, made: Object, spec: Object, container: str) -> None:
        if self.broken == "kserve":
            return
        meta = made["metadata"]
        service = self.fake.objects["services", meta["namespace"], f"{meta['name']}-model"]
        template = {
            "metadata": {"labels": service["spec"]["selector"]},
            "spec": {"containers": [{"name": container, "image": "vllm", "args": spec["args"], "env": spec["env"]}]},
        }
        name = f"{meta['name']}-predictor"
        about = {"name": name, "namespace": meta["namespace"], "labels": service["spec"]["selector"]}
        rollout = {"selector": {"matchLabels": service["spec"]["selector"]}, "template": template, "replicas": 1}
        self.fake.put({"kind": "Deployment", "apiVersion": "apps/v1", "metadata": about, "spec": rollout})
        ready = {"type": "Ready", "status": "True"}
        if self.broken == "model":
            ready = {"type": "Ready", "status": "False"}
            cause = {"type": "PredictorReady", "status": "False", "message": "MinimumReplicasUnavailable"}
            if self.refusal:
                cause |= {"reason": "FailedCreate", "message": f'pods "{meta["name"]}-1" is forbidden: {self.refusal}'}
            made["status"] = {"conditions": [ready, cause]}
        else:
            made["status"] = {"conditions": [ready]}

    def _deployment(self, made: Object) -> None:
        meta, wanted = made["metadata"], made["spec"].get("replicas", 1)
        part = "agent" if meta["name"].endswith("-agent") else "model"
        old = self.fake.objects.get(("deployments", meta["namespace"], meta["name"]))
        if old is None or old["spec"]["template"] != made["spec"]["template"]:
            self.rollouts.append(meta["name"])
        broken = self.broken == part
        if broken and self.refusal:
            self._refuse_pods(made)
            return
        counts = {"replicas": wanted, "updatedReplicas": wanted, "availableReplicas": 0 if broken else wanted}
        made["status"] = {"observedGeneration": meta["generation"], **counts}
        waiting = {"waiting": {"reason": self.pod_problem, "message": "no such image"}}
        status: Object = {
            "phase": "Pending" if broken else "Running",
            "conditions": [{"type": "Ready", "status": "False" if broken else "True"}],
            "containerStatuses": [
                {
                    "name": part,
                    "image": "x",
                    "imageID": "x",
                    "ready": not broken,
                    "restartCount": 0,
                    "state": waiting if broken else {"running": {}},
                }
            ],
        }
        template = made["spec"]["template"]
        containers = [{"name": each["name"], "image": each["image"]} for each in template["spec"]["containers"]]
        about = {"name": f"{meta['name']}-0", "namespace": meta["namespace"], "labels": template["metadata"]["labels"]}
        pod = {"kind": "Pod", "apiVersion": "v1", "metadata": about, "spec": {"containers": containers}}
        self.fake.put({**pod, "status": status})

    def _refuse_pods(self, made: Object) -> None:
        """Report that new pods are refused. Those of the previous template keep running."""
        meta = made["metadata"]
        running = int(("pods", meta["namespace"], f"{meta['name']}-0") in self.fake.objects)
        text = f'pods "{meta["name"]}-5d8f-{meta["generation"]}" is forbidden: {self.refusal}'
        conditions = [
            {"type": "Available", "status": "True" if running else "False", "reason": "MinimumReplicas"},
            {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": text},
            {"type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated"},
        ]
        counts = {"replicas": running, "availableReplicas": running, "updatedReplicas": 0}
        made["status"] = {"observedGeneration": meta["generation"], **counts, "conditions": conditions}
