"""Reading a cluster's API: documents as it sends them, and the right that is missing where it refuses."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gumshoe.cluster.kubernetes_api import Cluster, ClusterError, short
from gumshoe.cluster.preflight.result import counted

Object = dict[str, Any]
_PAGE = 500  # objects of one answer


class NotAllowedError(ClusterError):
    """Report that the account that runs the checks lacks a right."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of thing, as paths and rights name it."""

    version: str
    """With its group: `v1`, `apps/v1`."""
    plural: str

    @property
    def right(self) -> str:
        """How RBAC and `kubectl` name it."""
        group = self.version.rpartition("/")[0]
        return f"{self.plural}.{group}" if group else self.plural

    def path(self, namespace: str | None, name: str | None = None) -> str:
        root = f"/apis/{self.version}" if "/" in self.version else f"/api/{self.version}"
        within = f"/namespaces/{namespace}" if namespace else ""
        return f"{root}{within}/{self.plural}{f'/{name}' if name else ''}"


NAMESPACES = Resource("v1", "namespaces")
NODES = Resource("v1", "nodes")
PODS = Resource("v1", "pods")
SECRETS = Resource("v1", "secrets")
ACCOUNTS = Resource("v1", "serviceaccounts")
CLAIMS = Resource("v1", "persistentvolumeclaims")
QUOTAS = Resource("v1", "resourcequotas")
DEPLOYMENTS = Resource("apps/v1", "deployments")
STORAGE_CLASSES = Resource("storage.k8s.io/v1", "storageclasses")
ACCESS_REVIEWS = Resource("authorization.k8s.io/v1", "subjectaccessreviews")
LOCAL_QUEUES = Resource("kueue.x-k8s.io/v1beta2", "localqueues")
CLUSTER_QUEUES = Resource("kueue.x-k8s.io/v1beta2", "clusterqueues")
FLAVORS = Resource("kueue.x-k8s.io/v1beta2", "resourceflavors")
PRIORITIES = Resource("kueue.x-k8s.io/v1beta2", "workloadpriorityclasses")
RUNTIMES = Resource("trainer.kubeflow.org/v1alpha1", "clustertrainingruntimes")


@dataclass(frozen=True)
class ClusterReader:
    """A cluster, and the run that it is to be fit for."""

    cluster: Cluster
    seconds: float
    """That a request may take."""
    gpus: int
    """Of each pod of the run."""
    nodes: int
    """How many such pods run at once."""
    tolerations: tuple[Object, ...] = field(default=())
    """That they are given, as Kubernetes writes them."""

    @property
    def namespace(self) -> str:
        return self.cluster.namespace

    @property
    def wanted(self) -> str:
        """What the run needs, in words."""
        each = counted(self.gpus, "GPU")
        return f"{self.nodes} pods of {each}" if self.nodes > 1 else f"a pod of {each}"

    def kubectl(self, rest: str, *, namespaced: bool = True) -> str:
        """A command for this cluster, and this namespace."""
        context = f" --context {self.cluster.context}" if self.cluster.context else ""
        within = f" -n {self.namespace}" if namespaced else ""
        return f"kubectl{context}{within} {rest}"

    def there(self, *commands: str) -> tuple[str, ...]:
        """Commands of `kubectl` and `helm`, for this cluster."""
        if not self.cluster.context:
            return commands
        flags = {"kubectl": "--context", "helm": "--kube-context"}
        split = [each.partition(" ") for each in commands]
        return tuple(f"{name} {flags[name]} {self.cluster.context} {rest}" for name, _, rest in split)

    @property
    def doctor(self) -> str:
        """The command that looks at this cluster, and this namespace."""
        context = f" --context {self.cluster.context}" if self.cluster.context else ""
        return f"gumshoe doctor{context} --namespace {self.namespace} --gpus {self.gpus} --nodes {self.nodes}"

    def get(self, resource: Resource, name: str, *, namespaced: bool = True) -> Object | None:
        """The object of that name; None where there is none.

        Raises:
            NotAllowedError, ClusterError, ClusterUnavailableError: it cannot be said.
        """
        namespace = self.namespace if namespaced else None
        return self._asked("get", resource, resource.path(namespace, name), name=name)

    def every(self, resource: Resource, *, namespaced: bool = True, fields: str = "") -> Iterator[Object]:
        """All objects of a kind, of the namespace or the cluster.

        Raises:
            NotAllowedError, ClusterError, ClusterUnavailableError: they cannot be read.
        """
        query = {"limit": str(_PAGE), **({"fieldSelector": fields} if fields else {})}
        path = resource.path(self.namespace if namespaced else None)
        while True:
            page = self._asked("list", resource, path, query=query, everywhere=not namespaced) or {}
            yield from page.get("items") or []
            query["continue"] = (page.get("metadata") or {}).get("continue") or ""
            if not query["continue"]:
                return

    def may(self, account: str, verb: str, resource: Resource) -> bool:
        """Whether a service account of the namespace may do something in it.

        Raises:
            NotAllowedError, ClusterError, ClusterUnavailableError: it cannot be said.
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
        answer = self._asked("create", ACCESS_REVIEWS, ACCESS_REVIEWS.path(None), body=body) or {}
        return bool(answer["status"]["allowed"])

    @cached_property
    def served(self) -> dict[str, list[str]]:
        """Versions by API group, as the cluster's discovery has them, which anybody may read."""
        groups = self.read("/apis")["groups"]
        return {each["name"]: [version["version"] for version in each["versions"]] for each in groups}

    def kinds(self, version: str) -> set[str]:
        """The resources of an API group in a version."""
        found = self._requested("GET", f"/apis/{version}") or {}
        return {each["name"] for each in found.get("resources") or []}

    def read(self, path: str) -> Object:
        """A document of the API that anybody may read.

        Raises:
            ClusterError, ClusterUnavailableError: there is none, or it cannot be read.
        """
        found = self._requested("GET", path)
        if found is None:
            raise ClusterError(
                "cluster.not-kubernetes",
                f"the server is not a Kubernetes API: {path} does not exist; check the server address of the context",
            )
        return found

    def has(self, resource: Resource) -> bool:
        """Whether the cluster serves the API that a kind belongs to."""
        group, _, version = resource.version.rpartition("/")
        return version in self.served.get(group, [])

    def _asked(
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
        which = f"{resource.right}/{name}" if name else resource.right
        where = f" in {self.namespace}" if f"/namespaces/{self.namespace}/" in path else ""
        where = " in all namespaces" if everywhere and resource in (PODS, DEPLOYMENTS) else where
        method = "POST" if verb == "create" else "GET"
        return self._requested(method, path, query, body, right=f"{verb} {which}{where}")

    def _requested(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        body: Object | None = None,
        right: str = "",
    ) -> Object | None:
        """A document as the API sends it; None where there is none. `right` is what it takes to be answered.

        The published client's own classes refuse documents that lack what a later or earlier Kubernetes requires.
        """
        from kubernetes.client import ApiException

        with self.cluster.explained():
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
                raise ValueError(f"{path} returned {short(found)}")
            return found
