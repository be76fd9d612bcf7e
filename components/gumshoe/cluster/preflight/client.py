"""Read a cluster's API as raw documents, and report missing permissions."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gumshoe.cluster.kubernetes_api import Cluster, ClusterError, shorten
from gumshoe.cluster.pod_resources import GPU_RESOURCE
from gumshoe.cluster.preflight.result import pluralize

Object = dict[str, Any]
_PAGE = 500  # objects per page


class NotAllowedError(ClusterError):
    """Report that the account that runs the checks lacks a permission."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource type of the API."""

    version: str
    """API version with the group, e.g. `v1` or `apps/v1`."""
    plural: str

    @property
    def rbac_name(self) -> str:
        """The name in RBAC rules and `kubectl`."""
        group = self.version.rpartition("/")[0]
        return f"{self.plural}.{group}" if group else self.plural

    def build_path(self, namespace: str | None, name: str | None = None) -> str:
        """Return the URL path of an object or of all objects."""
        root = f"/apis/{self.version}" if "/" in self.version else f"/api/{self.version}"
        within = f"/namespaces/{namespace}" if namespace else ""
        return f"{root}{within}/{self.plural}{f'/{name}' if name else ''}"


NAMESPACES = Resource("v1", "namespaces")
NODES = Resource("v1", "nodes")
PODS = Resource("v1", "pods")
SECRETS = Resource("v1", "secrets")
CONFIG_MAPS = Resource("v1", "configmaps")
ACCOUNTS = Resource("v1", "serviceaccounts")
CLAIMS = Resource("v1", "persistentvolumeclaims")
QUOTAS = Resource("v1", "resourcequotas")
DEPLOYMENTS = Resource("apps/v1", "deployments")
NETWORK_POLICIES = Resource("networking.k8s.io/v1", "networkpolicies")
STORAGE_CLASSES = Resource("storage.k8s.io/v1", "storageclasses")
ACCESS_REVIEWS = Resource("authorization.k8s.io/v1", "subjectaccessreviews")
LOCAL_QUEUES = Resource("kueue.x-k8s.io/v1beta2", "localqueues")
CLUSTER_QUEUES = Resource("kueue.x-k8s.io/v1beta2", "clusterqueues")
FLAVORS = Resource("kueue.x-k8s.io/v1beta2", "resourceflavors")
PRIORITIES = Resource("kueue.x-k8s.io/v1beta2", "workloadpriorityclasses")
PIPELINES = Resource("pipelines.kubeflow.org/v2beta1", "pipelines")
RUNTIMES = Resource("trainer.kubeflow.org/v1alpha1", "clustertrainingruntimes")


@dataclass(frozen=True)
class ClusterReader:
    """Read a cluster, and hold the requirements of the run it is checked for."""

    cluster: Cluster
    seconds: float
    """Timeout of a request."""
    gpus: int
    """Number of GPUs per pod."""
    nodes: int
    """Number of such pods that run at once."""
    tolerations: tuple[Object, ...] = field(default=())
    """Tolerations of the pods, as in Kubernetes manifests."""
    gpu_resource: str = GPU_RESOURCE
    """Name of the resource that nodes count GPUs by."""
    in_pod: bool = False
    """True if the checks run in a pod of the namespace."""

    @property
    def namespace(self) -> str:
        return self.cluster.namespace

    @property
    def demand(self) -> str:
        """The requirements of the run in words."""
        each = pluralize(self.gpus, "GPU")
        return f"{self.nodes} pods of {each}" if self.nodes > 1 else f"a pod of {each}"

    def kubectl(self, rest: str, *, namespaced: bool = True) -> str:
        """Return a kubectl command for this cluster and namespace."""
        context = f" --context {self.cluster.context}" if self.cluster.context else ""
        within = f" -n {self.namespace}" if namespaced else ""
        return f"kubectl{context}{within} {rest}"

    def add_context(self, *commands: str) -> tuple[str, ...]:
        """Add this cluster's context to `kubectl` and `helm` commands."""
        if not self.cluster.context:
            return commands
        flags = {"kubectl": "--context", "helm": "--kube-context"}
        split = [each.partition(" ") for each in commands]
        return tuple(f"{name} {flags[name]} {self.cluster.context} {rest}" for name, _, rest in split)

    @property
    def doctor_command(self) -> str:
        """The command that checks this cluster and namespace."""
        context = f" --context {self.cluster.context}" if self.cluster.context else ""
        resource = f" --gpu-resource {self.gpu_resource}" if self.gpu_resource != GPU_RESOURCE else ""
        run = f"--gpus {self.gpus} --nodes {self.nodes}{resource}"
        return f"gumshoe doctor{context} --namespace {self.namespace} {run}"

    def get(self, resource: Resource, name: str, *, namespaced: bool = True) -> Object | None:
        """Return an object, or None if it does not exist.

        Raises:
            NotAllowedError: if the account lacks the permission.
            ClusterError: if the cluster rejects the request.
            ClusterUnavailableError: if the cluster does not answer.
        """
        namespace = self.namespace if namespaced else None
        return self._request("get", resource, resource.build_path(namespace, name), name=name)

    def list_all(self, resource: Resource, *, namespaced: bool = True, fields: str = "") -> Iterator[Object]:
        """Yield all objects of a type, in the namespace or in the cluster.

        Raises:
            NotAllowedError: if the account lacks the permission.
            ClusterError: if the cluster rejects the request.
            ClusterUnavailableError: if the cluster does not answer.
        """
        query = {"limit": str(_PAGE), **({"fieldSelector": fields} if fields else {})}
        path = resource.build_path(self.namespace if namespaced else None)
        while True:
            page = self._request("list", resource, path, query=query, everywhere=not namespaced) or {}
            yield from page.get("items") or []
            query["continue"] = (page.get("metadata") or {}).get("continue") or ""
            if not query["continue"]:
                return

    def is_allowed(self, account: str, verb: str, resource: Resource) -> bool:
        """Return True if a service account of the namespace has a permission there.

        Raises:
            NotAllowedError: if the account lacks the permission to ask this.
            ClusterError: if the cluster rejects the request.
            ClusterUnavailableError: if the cluster does not answer.
        """
        group, _, _ = resource.version.rpartition("/")
        plural, _, sub = resource.plural.partition("/")
        attributes = {"namespace": self.namespace, "verb": verb, "group": group, "resource": plural, "subresource": sub}
        body = {
            "apiVersion": ACCESS_REVIEWS.version,
            "kind": "SubjectAccessReview",
            "metadata": {},
            "spec": {
                "user": f"system:serviceaccount:{self.namespace}:{account}",
                "groups": [
                    "system:serviceaccounts",
                    f"system:serviceaccounts:{self.namespace}",
                    "system:authenticated",
                ],
                "resourceAttributes": {name: value for name, value in attributes.items() if value},
            },
        }
        answer = self._request("create", ACCESS_REVIEWS, ACCESS_REVIEWS.build_path(None), body=body) or {}
        return bool(answer["status"]["allowed"])

    @cached_property
    def api_versions(self) -> dict[str, list[str]]:
        """Versions by API group. Discovery needs no permission."""
        groups = self.read("/apis")["groups"]
        return {each["name"]: [version["version"] for version in each["versions"]] for each in groups}

    @property
    def is_openshift(self) -> bool:
        """True if the cluster is OpenShift, which has security rules and a DNS namespace of its own."""
        return "security.openshift.io" in self.api_versions

    def list_resources(self, version: str) -> set[str]:
        """Return the resources of an API version."""
        found = self._send("GET", f"/apis/{version}") or {}
        return {each["name"] for each in found.get("resources") or []}

    def read(self, path: str) -> Object:
        """Read a document of the API that needs no permission.

        Raises:
            ClusterError: if it does not exist, or the cluster rejects the request.
            ClusterUnavailableError: if the cluster does not answer.
        """
        found = self._send("GET", path)
        if found is None:
            raise ClusterError(
                "cluster.not-kubernetes",
                f"the server is not a Kubernetes API: {path} does not exist; check the server address of the context",
            )
        return found

    def has_api(self, resource: Resource) -> bool:
        """Return True if the cluster serves the API of a resource."""
        group, _, version = resource.version.rpartition("/")
        return version in self.api_versions.get(group, [])

    def _request(
        self,
        verb: str,
        resource: Resource,
        path: str,
        *,
        name: str = "",
        query: dict[str, str] | None = None,
        body: Object | None = None,
        everywhere: bool = False,
    ) -> Object | None:
        target = f"{resource.rbac_name}/{name}" if name else resource.rbac_name
        where = f" in {self.namespace}" if f"/namespaces/{self.namespace}/" in path else ""
        where = " in all namespaces" if everywhere and resource in (PODS, DEPLOYMENTS) else where
        method = "POST" if verb == "create" else "GET"
        return self._send(method, path, query, body, right=f"{verb} {target}{where}")

    def _send(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        body: Object | None = None,
        right: str = "",
    ) -> Object | None:
        """Send a request and return the raw answer, or None if it does not exist (404).

        `right` is the permission that the request needs, for the error message. The classes of the Kubernetes client
        are not used: they reject objects that lack a field which another Kubernetes version requires.
        """
        from kubernetes.client import ApiException

        with self.cluster.translate_errors():
            try:
                found = self.cluster.core.api_client.call_api(
                    path,
                    method,
                    query_params=[*(query or {}).items()],
                    header_params={"Accept": "application/json", "Content-Type": "application/json"},
                    body=body,
                    response_type="object",
                    auth_settings=["BearerToken"],
                    _return_http_data_only=True,
                    _request_timeout=(self.seconds, self.seconds),
                )
            except ApiException as error:
                if error.status == 404:
                    return None
                if error.status == 403:
                    raise NotAllowedError(
                        "cluster.access-denied", f"not checked: this account may not {right or f'read {path}'}", 403
                    ) from None
                raise
            if not isinstance(found, dict):
                raise ValueError(f"{path} returned {shorten(found)}")
            return found
