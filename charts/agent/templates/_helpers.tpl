{{- define "gumshoe.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* KServe appends to this name, and names may have at most 63 characters. */}}
{{- define "gumshoe.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "gumshoe.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "gumshoe.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "gumshoe.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: {{ include "gumshoe.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: gumshoe
{{- end -}}

{{- define "gumshoe.agentSelector" -}}
app.kubernetes.io/name: {{ include "gumshoe.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: agent
{{- end -}}

{{/* Labels that KServe sets on vLLM's pods. */}}
{{- define "gumshoe.modelSelector" -}}
{{- if eq .Values.serving.mode "llmisvc" -}}
app.kubernetes.io/name: {{ include "gumshoe.fullname" . }}
app.kubernetes.io/component: llminferenceservice-workload
{{- else -}}
serving.kserve.io/inferenceservice: {{ include "gumshoe.fullname" . }}
component: predictor
{{- end -}}
{{- end -}}

{{/* Image reference with the digest, or else the tag. Parameters: repository, tag, digest. */}}
{{- define "gumshoe.image" -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ .tag }}{{- end -}}
{{- end -}}

{{- define "gumshoe.agentImage" -}}
{{- with .Values.agent.image -}}
{{- include "gumshoe.image" (dict "repository" .repository "tag" (.tag | default $.Chart.AppVersion) "digest" .digest) -}}
{{- end -}}
{{- end -}}

{{/* Environment that makes TLS clients trust `trust.caBundle`. OpenSSL, Python's ssl, httpx, Go and Rust read the first
variable, requests the second, boto3 the third. */}}
{{- define "gumshoe.trustEnv" -}}
{{- with .Values.trust.caBundle -}}
{{- if or .configMap .secret -}}
{{- range list "SSL_CERT_FILE" "REQUESTS_CA_BUNDLE" "AWS_CA_BUNDLE" }}
- name: {{ . }}
  value: /etc/gumshoe-trust/{{ $.Values.trust.caBundle.key }}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "gumshoe.trustMount" -}}
{{- if or .Values.trust.caBundle.configMap .Values.trust.caBundle.secret -}}
- name: trust
  mountPath: /etc/gumshoe-trust
  readOnly: true
{{- end -}}
{{- end -}}

{{- define "gumshoe.trustVolume" -}}
{{- with .Values.trust.caBundle -}}
{{- if .configMap -}}
- name: trust
  configMap: {name: {{ .configMap | quote }}, items: [{key: {{ .key | quote }}, path: {{ .key | quote }}}]}
{{- else if .secret -}}
- name: trust
  secret: {secretName: {{ .secret | quote }}, items: [{key: {{ .key | quote }}, path: {{ .key | quote }}}], defaultMode: 0444}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Environment for `proxy`. Names of Services and the metadata addresses, which offer credentials, are always excluded. */}}
{{- define "gumshoe.proxyEnv" -}}
{{- with .Values.proxy -}}
{{- if or .http .https -}}
{{- with .http }}
- name: HTTP_PROXY
  value: {{ . | quote }}
{{- end -}}
{{- with .https }}
- name: HTTPS_PROXY
  value: {{ . | quote }}
{{- end }}
- name: NO_PROXY
  value: {{ concat (list "localhost" "127.0.0.1" "::1" ".svc" ".cluster.local" "169.254.169.254" "169.254.170.23") (.noProxy | default list) | join "," | quote }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Environment variables. Those in `extra` replace those of the same name in `own`: a server-side apply is rejected if a
name occurs twice. Parameters: own (YAML), extra. */}}
{{- define "gumshoe.mergeEnv" -}}
{{- $names := list -}}
{{- range .extra -}}{{- $names = append $names .name -}}{{- end -}}
{{- $all := list -}}
{{- range .own | fromYamlArray -}}{{- if not (has .name $names) -}}{{- $all = append $all . -}}{{- end -}}{{- end -}}
{{- toYaml (concat $all (.extra | default list)) -}}
{{- end -}}

{{/* Security context of the pods that run our images. OpenShift assigns user and groups, and refuses fixed ones. */}}
{{- define "gumshoe.podSecurity" -}}
runAsNonRoot: true
{{- if ne .Values.platform "openshift" }}
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
{{- end }}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* Labels of all pods for Istio. */}}
{{- define "gumshoe.istioLabels" -}}
sidecar.istio.io/inject: {{ .Values.istio.sidecar | quote }}
{{- end -}}

{{/* Annotations of all pods for Istio. A native sidecar starts before the init containers, which download files, and ends
with the pod's last container. The rewritten probes pass mutual TLS. */}}
{{- define "gumshoe.istioAnnotations" -}}
{{- if .Values.istio.sidecar -}}
sidecar.istio.io/nativeSidecar: "true"
sidecar.istio.io/rewriteAppHTTPProbers: "true"
{{- end -}}
{{- end -}}

{{/* Ports of the sidecar's metrics: merged with the container's, and its own. */}}
{{- define "gumshoe.istioMetrics" -}}
{{- if .Values.istio.sidecar -}}
- {port: 15020, protocol: TCP}
- {port: 15090, protocol: TCP}
{{- end -}}
{{- end -}}

{{/* URLs of vLLM for the agent server and `helm test`, without a slash at the end. */}}
{{- define "gumshoe.modelUrls" -}}
{{- if eq .Values.serving.mode "external" -}}
{{- $urls := list -}}
{{- range .Values.serving.external.urls -}}{{- $urls = append $urls (trimSuffix "/" .) -}}{{- end -}}
{{- join "," $urls -}}
{{- else -}}
{{- printf "http://%s-model.%s.svc:8080" (include "gumshoe.fullname" .) .Release.Namespace -}}
{{- end -}}
{{- end -}}

{{/* Level "restricted" of the Pod Security Standards. */}}
{{- define "gumshoe.containerSecurity" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* Checks that the JSON schema cannot express. */}}
{{- define "gumshoe.check" -}}
{{- with .Values -}}
{{- if and .trust.caBundle.configMap .trust.caBundle.secret -}}{{ fail "trust.caBundle: configMap and secret are both set; use one of them" }}{{- end -}}
{{- if and .proxy.noProxy (not (or .proxy.http .proxy.https)) -}}{{ fail "proxy.noProxy: has no effect without proxy.http or proxy.https; set one of them" }}{{- end -}}
{{- if eq .serving.mode "external" -}}
  {{- if not .serving.external.urls -}}{{ fail "serving.external.urls: required for serving.mode external; list the vLLM servers that serve the adapter" }}{{- end -}}
{{- else -}}
  {{- if not .adapter.uri -}}{{ fail "adapter.uri: required; `gumshoe artifacts show adapters/VERSION` prints it" }}{{- end -}}
  {{- if and .canary.name (not .canary.uri) -}}{{ fail "canary.uri: required with canary.name; set it to the URI of the canary's files" }}{{- end -}}
  {{- if and .previous.name (not .previous.uri) -}}{{ fail "previous.uri: required with previous.name; set it to the URI of that adapter's files" }}{{- end -}}
{{- end -}}
{{- if not .adapter.name -}}{{ fail "adapter.name: required; use the adapter's version" }}{{- end -}}
{{- if eq .adapter.name "base" -}}{{ fail "adapter.name: base is the name of the base model; choose another name" }}{{- end -}}
{{- if eq .canary.name "base" -}}{{ fail "canary.name: base is the name of the base model; choose another name" }}{{- end -}}
{{- if and .canary.name (eq .canary.name .adapter.name) -}}{{ fail "canary.name: must differ from adapter.name; name another adapter" }}{{- end -}}
{{- if and .previous.name (has .previous.name (list .adapter.name .canary.name)) -}}{{ fail "previous.name: must differ from adapter.name and canary.name; name another adapter" }}{{- end -}}
{{- if not .agent.image.repository -}}{{ fail "agent.image.repository: required; set it to your image of the agent server, which images/build.sh builds" }}{{- end -}}
{{- if not .agent.store -}}{{ fail "agent.store: required; set it to the store of the index, e.g. s3://bucket/project" }}{{- end -}}
{{- if not (or .agent.index (has .agent.environment (list "email" "documents"))) -}}{{ fail (printf "agent.index: required for agent.environment %s; set it to the index in the store" .agent.environment) }}{{- end -}}
{{- if not (or .agent.access.existingSecret .agent.access.jwksUrl (dig "access" "open" false .agent.settings)) -}}{{ fail "agent.access: required; set existingSecret (keys) or jwksUrl (tokens)" }}{{- end -}}
{{- if and (dig "access" "open" false .agent.settings) (not (and (dig "access" "open_to_network" false .agent.settings) (dig "access" "allowed_hosts" list .agent.settings))) -}}{{ fail "agent.settings.access.open: lets everybody who can reach the Service read everything; set agent.access instead, or also set open_to_network: true and allowed_hosts" }}{{- end -}}
{{- if and .agent.access.jwksUrl (not (and .agent.access.issuer .agent.access.audience)) -}}{{ fail "agent.access: jwksUrl needs issuer and audience" }}{{- end -}}
{{- if and .agent.autoscaling.enabled (lt (.agent.autoscaling.max | int) (.agent.autoscaling.min | int)) -}}{{ fail "agent.autoscaling.max: must be at least agent.autoscaling.min" }}{{- end -}}
{{- if and .ingress.enabled (not .ingress.host) -}}{{ fail "ingress.host: required with ingress.enabled; set it to the public host name" }}{{- end -}}
{{- if and .httpRoute.enabled (not .httpRoute.parentRefs) -}}{{ fail "httpRoute.parentRefs: required with httpRoute.enabled; name the gateway" }}{{- end -}}
{{- end -}}
{{- include "gumshoe.checkModel" . -}}
{{- end -}}

{{/* Set if the agent server has a canary: one that gets questions. One without is only loaded by vLLM, and may have been
trained differently, which the agent server would refuse. */}}
{{- define "gumshoe.hasCanary" -}}
{{- if and .Values.canary.name (gt (.Values.canary.percent | float64) 0.0) -}}yes{{- end -}}
{{- end -}}

{{/* Set if the agent server must know what the canary was trained on, because it binds adapters to inboxes. */}}
{{- define "gumshoe.bindsCanary" -}}
{{- $model := .Values.agent.settings.model | default dict -}}
{{- if and (include "gumshoe.hasCanary" .) (ne ($model.bound | default "off") "off") -}}yes{{- end -}}
{{- end -}}

{{/* Settings of the agent server: `agent.settings`, overridden by the settings that follow from other values. */}}
{{- define "gumshoe.agentSettings" -}}
{{- $agent := .Values.agent -}}
{{- $model := dict "policy" (printf "vllm:%s#%s" (include "gumshoe.modelUrls" .) .Values.adapter.name) "tokenizer" ($agent.tokenizer | default "/data/adapter") "max_context" (.Values.model.maxContext | int) -}}
{{- if include "gumshoe.hasCanary" . -}}
{{- $model = merge $model (dict "canary" .Values.canary.name "canary_percent" .Values.canary.percent) -}}
{{- if include "gumshoe.bindsCanary" . -}}{{- $model = merge $model (dict "canary_adapter" "/data/canary") -}}{{- end -}}
{{- end -}}
{{- $access := dict -}}
{{- with $agent.access -}}
{{- if .existingSecret -}}{{- $access = merge $access (dict "keys" (printf "/etc/gumshoe-keys/%s" .key)) -}}{{- end -}}
{{- if .jwksUrl -}}{{- $access = merge $access (dict "jwks_url" .jwksUrl "issuer" .issuer "audience" .audience "inbox_claim" .inboxClaim) -}}
{{- with .collectionClaim -}}{{- $access = merge $access (dict "collection_claim" .) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- $own := dict "index" "/data/index" "store" $agent.store "host" "0.0.0.0" "port" 8000 "metrics_port" 8001 "model" $model "access" $access -}}
{{- toYaml (mergeOverwrite (deepCopy $agent.settings) $own) -}}
{{- end -}}

{{/* Egress rules of the agent server and vLLM: DNS, Istio's control plane, and addresses of cloud credentials. */}}
{{- define "gumshoe.commonEgress" -}}
{{- with .Values.networkPolicy.dns -}}
{{ toYaml . }}
{{- end }}
{{- if .Values.istio.sidecar }}
- ports: [{port: 15012, protocol: TCP}]  # configuration and certificates of the sidecar
  to:
    - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: {{ .Values.istio.namespace | quote }}}}
      podSelector: {matchLabels: {app: istiod}}
{{- end }}
{{- if eq .Values.networkPolicy.credentials "metadata" }}
- ports: [{port: 80, protocol: TCP}]
  to:
    - ipBlock: {cidr: 169.254.169.254/32}
    - ipBlock: {cidr: "fd00:ec2::254/128"}
- ports: [{port: 987, protocol: TCP}, {port: 988, protocol: TCP}]  # metadata server of GKE
  to:
    - ipBlock: {cidr: 169.254.169.252/32}
{{- else if eq .Values.networkPolicy.credentials "pod-identity" }}
- ports: [{port: 80, protocol: TCP}]
  to:
    - ipBlock: {cidr: 169.254.170.23/32}
    - ipBlock: {cidr: "fd00:ec2::23/128"}
{{- end }}
{{- end -}}

{{/* Egress rules for all URLs in the agent server's settings; port 443 for AWS and the model hub. */}}
{{- define "gumshoe.egressToServices" -}}
{{- $urls := list .Values.agent.storage.endpoint .Values.agent.access.jwksUrl .Values.monitoring.otlpEndpoint .Values.proxy.http .Values.proxy.https -}}
{{- with .Values.agent.tokenizer -}}{{- if not (hasPrefix "/" .) -}}{{- $urls = append $urls "https://hub" -}}{{- end -}}{{- end -}}
{{- if eq .Values.agent.environment "documents" -}}{{- $urls = append $urls "https://hub" -}}{{- end -}}{{/* embedding model */}}
{{- if or (not .Values.agent.storage.endpoint) .Values.agent.serviceAccount.annotations -}}{{- $urls = append $urls "https://aws" -}}{{- end -}}
{{- include "gumshoe.egressTo" $urls -}}
{{- end -}}

{{/* Egress rules to vLLM. */}}
{{- define "gumshoe.egressToModel" -}}
{{- if eq .Values.serving.mode "external" -}}
{{- include "gumshoe.egressTo" (concat .Values.serving.external.urls (list .Values.proxy.http .Values.proxy.https)) -}}
{{- else -}}
- ports: [{port: {{ include "gumshoe.modelPort" . }}, protocol: TCP}]
  to:
    - podSelector:
        matchLabels:
          {{- include "gumshoe.modelSelector" . | nindent 10 }}
{{- end -}}
{{- end -}}

{{/* Egress rules of vLLM's pods to fetch files: HTTPS, and to the S3 server, the proxy and the URIs. */}}
{{- define "gumshoe.egressToFiles" -}}
{{- $urls := list "https://hub" .Values.proxy.http .Values.proxy.https -}}
{{- with .Values.serving.storage.endpoint -}}{{- $urls = append $urls (printf "%s://%s" (ternary "https" "http" $.Values.serving.storage.https) .) -}}{{- end -}}
{{- range include "gumshoe.modelFiles" . | fromYamlArray -}}{{- if hasPrefix "http" .uri -}}{{- $urls = append $urls .uri -}}{{- end -}}{{- end -}}
{{- include "gumshoe.egressTo" $urls -}}
{{- end -}}

{{/*
Egress rules for URLs. Most network plugins compare the port of the pod behind a Service, which the URL does not have:
all ports of the Service's namespace are open. Without .svc, only the host of an http URL may be SERVICE.NAMESPACE.
Parameter: the URLs.
*/}}
{{- define "gumshoe.egressTo" -}}
{{- $ports := list -}}
{{- $namespaces := list -}}
{{- range compact . -}}
{{- $url := urlParse . -}}
{{- $named := regexFind ":[0-9]+$" $url.host | trimPrefix ":" -}}
{{- $ports = append $ports (default (ternary "443" "80" (eq $url.scheme "https")) $named) -}}
{{- $host := regexReplaceAll ":[0-9]+$" $url.host "" -}}
{{- $service := regexReplaceAll "\\.svc(\\.cluster\\.local)?$" $host "" -}}
{{- if ternary (and (eq $url.scheme "http") (regexMatch "^[^.]+\\.[a-z0-9-]+$" $host)) (contains "." $service) (eq $service $host) -}}
{{- $namespaces = append $namespaces (regexFind "[^.]+$" $service) -}}
{{- end -}}
{{- end -}}
{{- with $ports | uniq | sortAlpha }}
- ports:
    {{- range . }}
    - {port: {{ . }}, protocol: TCP}
    {{- end }}
{{- end }}
{{- range $namespaces | uniq | sortAlpha }}
- to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: {{ . | quote }}}}}]
{{- end -}}
{{- end -}}

{{- define "gumshoe.agentEnv" -}}
- name: GUMSHOE_STORE
  value: {{ .Values.agent.store | quote }}
- name: HOME
  value: /tmp
- name: TMPDIR
  value: /tmp
{{- with .Values.agent.storage.endpoint }}
- name: AWS_ENDPOINT_URL
  value: {{ . | quote }}
{{- end }}
{{- with .Values.agent.storage.region }}
- name: AWS_REGION
  value: {{ . | quote }}
{{- end }}
{{- with .Values.monitoring.otlpEndpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- include "gumshoe.trustEnv" . }}
{{- include "gumshoe.proxyEnv" . }}
{{- end -}}

{{- define "gumshoe.agentEnvFrom" -}}
{{- with .Values.agent.storage.existingSecret }}
envFrom:
  - secretRef: {name: {{ . | quote }}}
{{- end }}
{{- end -}}

{{/* Set if the agent server itself writes to the store. Its init container reads the index. */}}
{{- define "gumshoe.agentUsesStore" -}}
{{- $keeping := dig "keeping" (dict) (.Values.agent.settings | default dict) -}}
{{- if or $keeping.feedback $keeping.trajectories -}}yes{{- end -}}
{{- end -}}

{{/* The key of vLLM, for vLLM and its clients. */}}
{{- define "gumshoe.serverKeyEnv" -}}
{{- with .Values.serving.keySecret }}
- name: VLLM_API_KEY
  valueFrom: {secretKeyRef: {name: {{ . | quote }}, key: VLLM_API_KEY}}
{{- end -}}
{{- end -}}

{{/* Settings common to both containers of the agent server. Only the server needs its keys. Parameters: root, keys. */}}
{{- define "gumshoe.agentContainer" -}}
{{- with .root -}}
securityContext:
  readOnlyRootFilesystem: true
  runAsNonRoot: true
  {{- include "gumshoe.containerSecurity" . | nindent 2 }}
resources: {{- toYaml .Values.agent.resources | nindent 2 }}
volumeMounts:
  - name: data
    mountPath: /data
  - name: tmp
    mountPath: /tmp
  {{- if $.keys }}
  - name: settings
    mountPath: /etc/gumshoe
    readOnly: true
  {{- if .Values.agent.access.existingSecret }}
  - name: keys
    mountPath: /etc/gumshoe-keys
    readOnly: true
  {{- end }}
  {{- end }}
  {{- with include "gumshoe.trustMount" . }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with .Values.agent.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}
{{- end -}}
