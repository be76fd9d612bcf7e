"""Define the values of the chart `agent`: types, limits, defaults and descriptions.

values.yaml, values.schema.json and the table in README.md are generated from this module: see charts/generate.py. The
docstring of a section becomes its comment in values.yaml. Values are written in snake_case here and in camelCase there.
"""

from typing import Annotated, Any, Literal

from charts.server_settings import describe_settings, from_setting
from pydantic import BaseModel, ConfigDict, Field, with_config
from pydantic.alias_generators import to_camel
from typing_extensions import TypedDict

from gumshoe.corpus import CORPORA, DEFAULT_ENVIRONMENT

_STRICT = ConfigDict(extra="forbid", alias_generator=to_camel)

ReleaseName = Annotated[str, Field(max_length=40)]
AdapterName = Annotated[str, Field(pattern=r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$")]
ModelUri = Annotated[str, Field(pattern="^(hf|s3|pvc|gs|https?|oci)://.+")]
AdapterUri = Annotated[str, Field(pattern="^((hf|s3|pvc|gs|https?|oci)://.+)?$")]
ImageDigest = Annotated[str, Field(pattern="^(sha256:[0-9a-f]{64})?$")]
OptionalUrl = Annotated[str, Field(pattern="^(https?://.+)?$")]
Quantity = Annotated[str, Field(pattern="^[0-9.]+([KMGTP]i?|m)?$")] | float
Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[int, Field(ge=0)]
NonEmpty = Annotated[str, Field(min_length=1)]
PublicPath = Annotated[str, Field(pattern=r"^/[\w./-]*$")]
Percent = Annotated[int, Field(ge=0, le=100)]
KubernetesObject = dict[str, Any]
PodLabels = Annotated[
    dict[str, str],
    Field(json_schema_extra={"propertyNames": {"not": {"pattern": r"^(app\.kubernetes\.io|helm\.sh)/"}}}),
]
"""Labels beside those of the chart, which select its pods."""


@with_config(_STRICT)
class SecretName(TypedDict):
    name: NonEmpty


@with_config(ConfigDict(extra="allow"))
class NamedObject(TypedDict):
    name: str


@with_config(_STRICT)
class Resources(TypedDict, total=False):
    requests: dict[str, Quantity]
    limits: dict[str, Quantity]


@with_config(_STRICT)
class SecurityContext(TypedDict, total=False):
    run_as_non_root: bool
    run_as_user: Annotated[int, Field(ge=0)]
    run_as_group: Annotated[int, Field(ge=0)]


class ValuesSection(BaseModel):
    """A group of values. Unknown names are refused."""

    model_config = _STRICT


class CaBundleValues(ValuesSection):
    config_map: str = Field(
        "", description="ConfigMap with the CA certificates (PEM) to trust instead of the public ones."
    )
    secret: str = Field("", description="Secret with these certificates, instead of a ConfigMap.")
    key: Annotated[str, Field(pattern="^[-._a-zA-Z0-9]+$")] = Field(
        "ca.crt", description="Key of the certificates in the ConfigMap or Secret."
    )


class TrustValues(ValuesSection):
    """Certificates that the agent server and vLLM trust. The bundle replaces the public certificates."""

    ca_bundle: CaBundleValues = CaBundleValues()


class ProxyValues(ValuesSection):
    """Proxy of the agent server and vLLM for addresses outside the cluster."""

    http: OptionalUrl = Field("", description="Value of HTTP_PROXY, e.g. `http://proxy.example.com:3128`.")
    https: OptionalUrl = Field("", description="Value of HTTPS_PROXY, e.g. `http://proxy.example.com:3128`.")
    no_proxy: list[NonEmpty] = Field(
        [],
        description="Additional hosts and domains without proxy, e.g. `[.example.com]`. Services of the cluster and "
        "the metadata addresses of clouds are never accessed through the proxy.",
    )


class IstioValues(ValuesSection):
    sidecar: bool = Field(
        False,
        description="Run the pods with Istio's sidecar, as a native sidecar (Istio 1.24 or later). By default, they "
        "opt out of injection.",
    )
    namespace: NonEmpty = Field("istio-system", description="Namespace of istiod, for the NetworkPolicies.")


class ModelValues(ValuesSection):
    uri: ModelUri = Field(
        "hf://Qwen/Qwen2.5-7B-Instruct", description="URI of the base model: `hf://`, `s3://` or `pvc://`."
    )
    token_secret: str = Field(
        "", description="Secret with HF_TOKEN, for gated and private models of the Hugging Face hub."
    )
    max_context: Any = from_setting(
        "model.max_context",
        default=8192,
        description="Maximum number of tokens per episode, for vLLM and the agent server. `gumshoe deploy` sets it to "
        "that of the adapter's training.",
    )


class AdapterValues(ValuesSection):
    name: AdapterName = Field(
        "", description="Name under which vLLM serves the adapter: its version. Never use a name for two adapters."
    )
    uri: AdapterUri = Field(
        "",
        description="URI of the adapter's files: `s3://` or `pvc://`. `gumshoe artifacts show adapters/VERSION` prints "
        "it.",
    )
    max_rank: Literal[1, 8, 16, 32, 64, 128, 256, 320, 512] = Field(
        32, description="Maximum LoRA rank that vLLM accepts."
    )


class CanaryValues(ValuesSection):
    """Another adapter of the same base model. One vLLM serves both, and the agent server chooses one per episode."""

    name: AdapterName = Field("", description="Name of the canary's adapter. Empty for no canary.")
    uri: AdapterUri = Field("", description="URI of the canary's files.")
    percent: Any = from_setting("model.canary_percent")


class PreviousValues(ValuesSection):
    """The adapter that was in service before. It stays loaded for a rollback, without traffic."""

    name: AdapterName = Field("", description="Name of the previous adapter. Empty for none.")
    uri: AdapterUri = Field("", description="URI of the previous adapter's files.")


class ExternalValues(ValuesSection):
    urls: list[Annotated[str, Field(pattern="^https?://[^/]+/?$")]] = Field(
        [], description="URLs of vLLM servers that have loaded the adapter (mode `external`)."
    )


class ServingImageValues(ValuesSection):
    repository: NonEmpty = Field("docker.io/vllm/vllm-openai", description="Image of vLLM.")
    tag: str = Field("v0.31.0", description="Tag of the image.")
    digest: ImageDigest = Field("", description="Digest of the image, used instead of the tag: `sha256:...`.")


class ServingReplicasValues(ValuesSection):
    min: Count = Field(1, description="Minimum number of replicas.")
    max: Count = Field(
        1,
        description="Maximum number of replicas. If it is greater than `min`, KEDA adds replicas when requests wait in "
        "vLLM. This requires Prometheus metrics (`monitoring.enabled`).",
    )


class ServingAutoscalingValues(ValuesSection):
    waiting: Count = Field(4, description="Number of waiting requests per replica that adds another one.")
    prometheus: Annotated[str, Field(pattern="^https?://.+")] = Field(
        "http://prometheus-operated.monitoring.svc:9090", description="URL of Prometheus."
    )


class ServingStorageValues(ValuesSection):
    existing_secret: str = Field(
        "",
        description="Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for `s3://`. Without one, the role of "
        "`serving.serviceAccount` is used, or else the node's (with `networkPolicy.credentials`).",
    )
    endpoint: Annotated[str, Field(pattern="^([^/]+)?$")] = Field(
        "", description="Host and port of the S3 server, if it is not AWS."
    )
    https: bool = Field(True, description="Use TLS for that server.")
    region: str = Field("", description="S3 region.")


class ServingAccountValues(ValuesSection):
    name: str = Field("", description="Existing ServiceAccount for vLLM. Default: the chart creates one.")
    annotations: dict[str, str] = Field(
        {},
        description="Annotations of the ServiceAccount for access without keys, e.g. `{eks.amazonaws.com/role-arn: "
        "arn:aws:iam::123456789012:role/models}`.",
    )


class ServingFetchValues(ValuesSection):
    """The chart's own init container, which fetches model and adapters if KServe's storage initializer cannot."""

    image: str = Field(
        "",
        description="Image of the init container: one of the agent server. Default: `agent.image`, so that another "
        "image of the agent server restarts vLLM.",
    )
    resources: Resources = Field(
        Resources(requests={"cpu": "1", "memory": "2Gi"}, limits={"memory": "4Gi"}),
        description="Resources of the init container.",
    )
    extra_env: list[NamedObject] = Field(
        [],
        description="Additional environment variables of the init container, e.g. HF_ENDPOINT for a mirror. They "
        "replace the chart's own.",
    )


class RuntimeCanaryValues(ValuesSection):
    """KServe's own canary: another runtime for the same model and adapters. It routes each request separately."""

    percent: Percent = Field(0, description="Percentage of requests for the canary runtime. 0 for none.")
    tag: str = Field("", description="Image tag of the canary runtime.")
    digest: ImageDigest = Field("", description="Image digest of the canary runtime, used instead of the tag.")
    extra_args: list[str] = Field([], description="Arguments of the canary runtime, appended to `extraArgs`.")


class DisruptionValues(ValuesSection):
    max_unavailable: Annotated[int, Field(ge=0)] | Annotated[str, Field(pattern="^[0-9]+%?$")] = Field(
        1, description="Maximum number of unavailable pods while nodes are drained, or a percentage."
    )


class ServingValues(ValuesSection):
    mode: Literal["standard", "llmisvc", "external"] = Field(
        "standard",
        description="`standard` (ServingRuntime and InferenceService), `llmisvc` (LLMInferenceService) or `external` "
        "(existing vLLM servers).",
    )
    external: ExternalValues = ExternalValues()
    image: ServingImageValues = ServingImageValues()
    gpus: Annotated[int, Field(ge=1, le=64)] = Field(1, description="GPUs per replica.")
    gpu_resource: str = Field(
        "nvidia.com/gpu",
        description="Resource name of the GPUs, e.g. `amd.com/gpu`, `habana.ai/gaudi` or, for MIG, "
        "`nvidia.com/mig-3g.40gb`.",
    )
    resource_claims: list[NamedObject] = Field(
        [],
        description="Resource claims of the GPUs (Dynamic Resource Allocation), used instead of `gpuResource`, e.g. "
        "`[{name: gpu, resourceClaimTemplateName: one-gpu}]`.",
    )
    key_secret: str = Field(
        "",
        description="Secret with a key in `VLLM_API_KEY`, which vLLM then requires for its API (`/v1`). Other paths, "
        "e.g. `/invocations`, stay open, so that the NetworkPolicy is still needed. The agent server sends the key, "
        "also to vLLM servers of mode `external`.",
    )
    resources: Resources = Field(
        Resources(requests={"cpu": "4", "memory": "32Gi"}, limits={"memory": "64Gi"}),
        description="Resources per replica besides the GPUs.",
    )
    shared_memory: Quantity = Field("8Gi", description="Size of /dev/shm, which counts as memory.")
    gpu_memory: Annotated[float, Field(gt=0, le=1)] = Field(
        0.9, description="Fraction of a GPU's memory that vLLM uses."
    )
    startup_minutes: Count = Field(30, description="Minutes allowed for downloading and loading the model.")
    termination_seconds: Seconds = Field(
        300,
        description="Seconds after which a stopped replica is killed. Running requests may take 15 seconds less, which "
        "vLLM needs to leave the Service and to end.",
    )
    restricted: bool = Field(
        False,
        description="Meet the level `restricted` of the Pod Security Standards: vLLM does not run as root, and the "
        "chart's own init container fetches model and adapters, because KServe's storage initializer does not meet it.",
    )
    security_context: SecurityContext = Field(
        SecurityContext(),
        description="User and group of vLLM. Default with `restricted`: user 10001, or on OpenShift the assigned one; "
        "otherwise that of the image, which is root. The chart's own restrictions cannot be overridden.",
    )
    strategy: Literal["RollingUpdate", "Recreate"] = Field(
        "RollingUpdate",
        description="`RollingUpdate` needs free GPUs for a new replica beside an old one. `Recreate` (mode `standard` "
        "only) stops old replicas first, so questions fail meanwhile.",
    )
    replicas: ServingReplicasValues = ServingReplicasValues()
    autoscaling: ServingAutoscalingValues = ServingAutoscalingValues()
    node_selector: dict[str, str] = Field({}, description="Node labels for vLLM.")
    tolerations: list[KubernetesObject] = Field([], description="Tolerations for vLLM.")
    affinity: KubernetesObject = Field({}, description="Affinity for vLLM.")
    priority_class_name: str = Field("", description="Priority class of vLLM.")
    runtime_class_name: str = Field("", description="Runtime class of vLLM, e.g. `nvidia`.")
    scheduler_name: str = Field("", description="Scheduler of vLLM. Default: the cluster's default scheduler.")
    disruption: DisruptionValues = DisruptionValues()
    pod_annotations: dict[str, str] = Field({}, description="Additional annotations of vLLM's pods.")
    pod_labels: PodLabels = Field({}, description="Additional labels of vLLM's pods.")
    service_account: ServingAccountValues = ServingAccountValues()
    storage: ServingStorageValues = ServingStorageValues()
    fetch: ServingFetchValues = ServingFetchValues()
    extra_args: list[str] = Field(
        [], description="Additional arguments for vLLM, except `--lora-modules`, which the chart sets."
    )
    extra_env: list[NamedObject] = Field(
        [], description="Additional environment variables for vLLM. They replace the chart's own."
    )
    extra_volumes: list[KubernetesObject] = Field([], description="Additional volumes for vLLM's pods.")
    extra_volume_mounts: list[KubernetesObject] = Field([], description="Mounts of these volumes.")
    runtime_canary: RuntimeCanaryValues = RuntimeCanaryValues()


class AgentImageValues(ValuesSection):
    repository: str = Field(
        "",
        description="Image of the agent server (required), e.g. `registry.example.com/gumshoe/agent`; for documents, "
        "`agent-documents`. `images/build.sh` builds both.",
    )
    tag: str = Field("", description="Tag of the image. Default: the chart's appVersion.")
    digest: ImageDigest = Field("", description="Digest of the image, used instead of the tag: `sha256:...`.")


class AgentStorageValues(ValuesSection):
    existing_secret: str = Field(
        "", description="Secret whose keys become environment variables, e.g. AWS_ACCESS_KEY_ID."
    )
    endpoint: OptionalUrl = Field("", description="Value of AWS_ENDPOINT_URL, if the S3 server is not AWS.")
    region: str = Field("", description="Value of AWS_REGION.")


class AgentAccessValues(ValuesSection):
    existing_secret: str = Field("", description="Secret with a key file, written by `gumshoe serve-key`.")
    key: NonEmpty = Field("keys.yaml", description="Key of that file in the Secret.")
    jwks_url: Any = from_setting("access.jwks_url", pattern="^(https?://.+)?$")
    issuer: Any = from_setting("access.issuer")
    audience: Any = from_setting("access.audience")
    inbox_claim: Any = from_setting("access.inbox_claim")
    collection_claim: Any = from_setting("access.collection_claim")


class AgentAccountValues(ValuesSection):
    name: str = Field("", description="Existing ServiceAccount for the agent server. Default: the chart creates one.")
    annotations: dict[str, str] = Field(
        {}, description="Annotations of the ServiceAccount for access to S3 without keys, as in `serving`."
    )


class AgentAutoscalingValues(ValuesSection):
    enabled: bool = Field(
        False,
        description="Create a HorizontalPodAutoscaler. When it is enabled for an existing release, replicas fall to 1 "
        "until it first acts.",
    )
    min: Count = Field(2, description="Minimum number of replicas.")
    max: Count = Field(10, description="Maximum number of replicas.")
    cpu: Annotated[int, Field(ge=1, le=100)] = Field(
        70, description="Target CPU utilization in percent of the request."
    )


class ServiceValues(ValuesSection):
    port: Annotated[int, Field(ge=1, le=65535)] = Field(80, description="Port of the Service.")


class AgentValues(ValuesSection):
    environment: Any = Field(
        DEFAULT_ENVIRONMENT,
        description=f"What the agent searches: {' or '.join(f'`{name}`' for name in CORPORA)}. Semantic search of "
        "documents needs more memory (`agent.resources`).",
        json_schema_extra={"type": "string", "enum": [*CORPORA]},
    )
    image: AgentImageValues = AgentImageValues()
    store: Any = from_setting(
        "store",
        description="Store with the index and the adapter: `s3://bucket/project`.",
        pattern="^(s3://.+)?$",
    )
    index: Annotated[str, Field(pattern="^([^/]+/[^/]+)?$")] = Field(
        "",
        description="Index in the store. Default: `mail-indexes/latest`, or `document-indexes/latest` for documents. "
        "`latest` is resolved when a pod starts.",
    )
    tokenizer: Any = from_setting(
        "model.tokenizer",
        description="Tokenizer of the model, by name or directory. Default: the one of the adapter in the store.",
    )
    service_account: AgentAccountValues = AgentAccountValues()
    storage: AgentStorageValues = AgentStorageValues()
    access: AgentAccessValues = AgentAccessValues()
    settings: dict[str, Any] = Field(
        {},
        description="Additional server settings (see `gumshoe serve --print-config`), e.g. `{model: {samples: 8, "
        "temperature: 0.8}}`. Settings that follow from other values are refused.",
        json_schema_extra=describe_settings,
    )
    replicas: Count = Field(2, description="Number of replicas without autoscaling.")
    autoscaling: AgentAutoscalingValues = AgentAutoscalingValues()
    resources: Resources = Field(
        Resources(requests={"cpu": "1", "memory": "1Gi"}, limits={"memory": "2Gi"}), description="Resources per pod."
    )
    index_space: Quantity = Field("20Gi", description="Disk space for the index, on the node.")
    startup_minutes: Count = Field(
        10,
        description="Minutes allowed for verifying the index and loading its embedding model, after the init container "
        "has fetched it.",
    )
    termination_seconds: Seconds = Field(
        150, description="Seconds for running requests to finish when a pod is stopped."
    )
    disruption: DisruptionValues = DisruptionValues()
    node_selector: dict[str, str] = Field({}, description="Node labels for the agent server.")
    tolerations: list[KubernetesObject] = Field([], description="Tolerations for the agent server.")
    affinity: KubernetesObject = Field({}, description="Affinity for the agent server.")
    priority_class_name: str = Field("", description="Priority class of the agent server.")
    runtime_class_name: str = Field("", description="Runtime class of the agent server.")
    scheduler_name: str = Field(
        "", description="Scheduler of the agent server. Default: the cluster's default scheduler."
    )
    pod_annotations: dict[str, str] = Field({}, description="Additional annotations of the pods.")
    pod_labels: PodLabels = Field({}, description="Additional labels of the pods.")
    extra_args: list[str] = Field([], description="Additional arguments for `gumshoe serve`.")
    extra_env: list[NamedObject] = Field(
        [], description="Additional environment variables for the agent server. They replace the chart's own."
    )
    extra_volumes: list[KubernetesObject] = Field([], description="Additional volumes for the pods.")
    extra_volume_mounts: list[KubernetesObject] = Field([], description="Mounts of these volumes.")
    service: ServiceValues = ServiceValues()


class NetworkPolicyValues(ValuesSection):
    enabled: bool = Field(True, description="Create NetworkPolicies that allow only the required traffic.")
    from_: list[KubernetesObject] = Field(
        [],
        alias="from",
        description="Peers that may access the agent server, as in a NetworkPolicy, e.g. the pods of an ingress "
        "controller. Default: all pods of the namespace.",
    )
    prometheus: list[KubernetesObject] = Field(
        [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
        description="Peers that may read the metrics.",
    )
    model_from: list[KubernetesObject] = Field(
        [], description="Additional peers that may access vLLM, e.g. the gateway for KServe's own canary."
    )
    dns: list[KubernetesObject] = Field(
        [
            {
                "ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}],
                "to": [
                    {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}},
                    {"ipBlock": {"cidr": "169.254.20.10/32"}},
                    {"ipBlock": {"cidr": "169.254.169.254/32"}},
                ],
            },
            {
                "ports": [{"port": 5353, "protocol": "UDP"}, {"port": 5353, "protocol": "TCP"}],
                "to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "openshift-dns"}}}],
            },
        ],
        description="Egress rules for DNS, as in a NetworkPolicy. Default: CoreDNS and kube-dns, NodeLocal DNSCache, "
        "Cloud DNS of GKE, and OpenShift.",
    )
    credentials: Literal["none", "metadata", "pod-identity"] = Field(
        "none",
        description="Address from which pods may get cloud credentials: `metadata` (roles of nodes, Workload Identity "
        "of GKE) or `pod-identity` (EKS Pod Identity). Keys and roles for ServiceAccounts (IRSA) need none.",
    )
    model_egress: list[KubernetesObject] = Field(
        [],
        description="Additional egress rules of vLLM, as in a NetworkPolicy. HTTPS, the ports of the URLs above and "
        "the namespaces of Services in them (`NAME.NAMESPACE.svc`) are allowed already. A Service with another name, "
        "whose pods have another port than the URL, needs a rule.",
    )
    egress: list[KubernetesObject] = Field(
        [],
        description="Additional egress rules of the agent server, as in a NetworkPolicy. The ports of the URLs above "
        "and the namespaces of Services in them (`NAME.NAMESPACE.svc`) are allowed already. A Service with another "
        "name, whose pods have another port than the URL, needs a rule.",
    )


class IngressValues(ValuesSection):
    enabled: bool = Field(False, description="Create an Ingress for the agent server.")
    class_name: str = Field("", description="Ingress class. Default: the cluster's default class.")
    annotations: dict[str, str] = Field({}, description="Annotations of the Ingress.")
    host: str = Field("", description="Public host name.")
    tls_secret: str = Field("", description="Secret with the TLS certificate.")


class HttpRouteValues(ValuesSection):
    enabled: bool = Field(False, description="Create an HTTPRoute (Gateway API) for the agent server.")
    parent_refs: list[NamedObject] = Field([], description="Gateways, e.g. `[{name: gateway, namespace: gateways}]`.")
    hostnames: list[str] = Field([], description="Public host names.")


class RouteValues(ValuesSection):
    enabled: bool = Field(
        False, description="Create Routes (OpenShift) for the agent server, one for each public path, with TLS."
    )
    host: str = Field(
        "", description="Public host name. Default: one that the routers assign (`spec.subdomain`, OpenShift 4.11)."
    )
    annotations: dict[str, str] = Field({}, description="Annotations of the Routes.")
    tls_secret: str = Field(
        "",
        description="Secret with the TLS certificate (OpenShift 4.19 or later), which the routers must be allowed to "
        "read. Default: the certificate of the routers.",
    )


class MonitoringValues(ValuesSection):
    enabled: bool = Field(False, description="Create ServiceMonitors for the agent server and vLLM.")
    rules: bool = Field(False, description="Create alerts (a PrometheusRule).")
    runbooks: NonEmpty = Field("RUNBOOKS.md", description="URL of this chart's RUNBOOKS.md, which the alerts link to.")
    dashboard: bool = Field(False, description="Create a ConfigMap with a Grafana dashboard.")
    labels: dict[str, str] = Field({}, description="Additional labels that your Prometheus and Grafana select by.")
    otlp_endpoint: OptionalUrl = Field("", description="OTLP endpoint for traces.")


class HelmTestValues(ValuesSection):
    """Settings of `helm test`."""

    inbox: str = Field(
        "", description="Inbox for the test question. Required for mail; without it, no question is asked."
    )
    question: NonEmpty = Field("What is my latest message about?", description="Question that `helm test` asks.")
    key_secret: str = Field("", description="Secret with an access key for the test.")
    key_secret_key: str = Field("key", description="Key in that Secret.")


class ChartValues(ValuesSection):
    name_override: ReleaseName = Field("", description="Replaces the chart's name in resource names.")
    fullname_override: ReleaseName = Field("", description="Replaces release and chart name in resource names.")
    image_pull_secrets: list[SecretName] = Field(
        [],
        description="Secrets for private registries, e.g. `[{name: registry}]`, used for the agent server and vLLM.",
    )
    platform: Literal["kubernetes", "openshift"] = Field(
        "kubernetes",
        description="`openshift` leaves the user and group IDs of the pods to the cluster, which refuses fixed ones.",
    )
    trust: TrustValues = TrustValues()
    proxy: ProxyValues = ProxyValues()
    istio: IstioValues = IstioValues()
    model: ModelValues = ModelValues()
    adapter: AdapterValues = AdapterValues()
    canary: CanaryValues = CanaryValues()
    previous: PreviousValues = PreviousValues()
    serving: ServingValues = ServingValues()
    agent: AgentValues = AgentValues()
    network_policy: NetworkPolicyValues = NetworkPolicyValues()
    public_paths: list[PublicPath] = Field(
        ["/invoke", "/source", "/feedback", "/principal", "/mcp"],
        description="Paths that Ingress, HTTPRoute and Routes publish, each with what is below it: those of the API. "
        "Add `/` (the page itself, nothing below it), `/page.js`, `/page.css` and `/text.js` for the web page, and "
        "`/docs` and `/openapi.json` for the description of the API. With `/`, an OpenShift Route publishes all paths, "
        "since its paths are prefixes. `/metrics` has a port of its own.",
        min_length=1,
    )
    ingress: IngressValues = IngressValues()
    http_route: HttpRouteValues = HttpRouteValues()
    route: RouteValues = RouteValues()
    monitoring: MonitoringValues = MonitoringValues()
    test: HelmTestValues = HelmTestValues()
