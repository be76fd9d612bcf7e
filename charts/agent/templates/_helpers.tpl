{{- define "gumshoe.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* KServe adds to it, and a name has 63 characters at most. */}}
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

{{/* The pods of vLLM, as KServe labels them. */}}
{{- define "gumshoe.modelSelector" -}}
{{- if eq .Values.serving.mode "llmisvc" -}}
app.kubernetes.io/name: {{ include "gumshoe.fullname" . }}
app.kubernetes.io/component: llminferenceservice-workload
{{- else -}}
serving.kserve.io/inferenceservice: {{ include "gumshoe.fullname" . }}
component: predictor
{{- end -}}
{{- end -}}

{{/* An image: by digest where there is one. Takes repository, tag and digest. */}}
{{- define "gumshoe.image" -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ .tag }}{{- end -}}
{{- end -}}

{{- define "gumshoe.agentImage" -}}
{{- $own := ternary "ghcr.io/gumshoe/agent-documents" "ghcr.io/gumshoe/agent" (eq .Values.agent.environment "documents") -}}
{{- with .Values.agent.image -}}
{{- include "gumshoe.image" (dict "repository" (.repository | default $own) "tag" (.tag | default $.Chart.AppVersion) "digest" .digest) -}}
{{- end -}}
{{- end -}}

{{/* Where vLLM answers, for the agent server. */}}
{{- define "gumshoe.modelUrls" -}}
{{- if eq .Values.serving.mode "external" -}}
{{- join "," .Values.serving.external.urls -}}
{{- else -}}
{{- printf "http://%s-model.%s.svc:8080" (include "gumshoe.fullname" .) .Release.Namespace -}}
{{- end -}}
{{- end -}}

{{/* The directory that an adapter is brought to: beside the model's, below one parent, as KServe asks. */}}
{{- define "gumshoe.adapterPath" -}}
{{- printf "/mnt/lora/%s" . -}}
{{- end -}}

{{/* The adapters that vLLM carries, each with where its files lie, by name: which of them is in service does not matter
to vLLM, so that it goes on untouched when they change places. */}}
{{- define "gumshoe.adapters" -}}
{{- $both := dict .Values.adapter.name .Values.adapter.uri -}}
{{- range list .Values.canary .Values.previous -}}{{ if .name }}{{ $both = set $both .name .uri }}{{ end }}{{- end -}}
{{- toYaml $both -}}
{{- end -}}

{{/* Base model and adapters, as KServe's storage initializer is to bring them. */}}
{{- define "gumshoe.storageUris" -}}
- uri: {{ .Values.model.uri | quote }}
  mountPath: /mnt/models
{{- range $name, $uri := include "gumshoe.adapters" . | fromYaml }}
- uri: {{ $uri | quote }}
  mountPath: {{ include "gumshoe.adapterPath" $name }}
{{- end }}
{{- end -}}

{{/* vLLM's arguments, as training has them: what the model's own files say of sampling is left aside. */}}
{{- define "gumshoe.vllmArgs" -}}
- --served-model-name=base
- --port={{ include "gumshoe.modelPort" . }}
- --max-model-len={{ .Values.model.maxContext | int }}
- --gpu-memory-utilization={{ .Values.serving.gpuMemory }}
- --tensor-parallel-size={{ .Values.serving.gpus | int }}
- --enable-lora
- --max-lora-rank={{ .Values.adapter.maxRank | int }}
- --max-loras={{ include "gumshoe.adapters" . | fromYaml | len }}
- --generation-config=vllm
- --logprobs-mode=processed_logprobs
- --disable-uvicorn-access-log
{{- end -}}

{{- define "gumshoe.modelPort" -}}
{{- ternary 8000 8080 (eq .Values.serving.mode "llmisvc") -}}
{{- end -}}

{{/* Requests that wait in all of vLLM's replicas, for Prometheus. */}}
{{- define "gumshoe.waiting" -}}
{{- printf "sum(vllm:num_requests_waiting{namespace=%q,service=%q})" .Release.Namespace (printf "%s-model" (include "gumshoe.fullname" .)) -}}
{{- end -}}

{{- define "gumshoe.isScaled" -}}
{{- if gt (.Values.serving.replicas.max | int) (.Values.serving.replicas.min | int) -}}yes{{- end -}}
{{- end -}}

{{/* The adapters, last of all arguments: vLLM takes what follows them as more of them. */}}
{{- define "gumshoe.loraModules" -}}
- --lora-modules
{{- range $name, $_ := include "gumshoe.adapters" . | fromYaml }}
- {{ include "gumshoe.loraModule" $name }}
{{- end }}
{{- end -}}

{{/* An adapter, as vLLM's --lora-modules takes it. Takes its name. */}}
{{- define "gumshoe.loraModule" -}}
{{- dict "name" . "path" (include "gumshoe.adapterPath" .) "base_model_name" "base" | toJson | quote -}}
{{- end -}}

{{/* Of a pod of vLLM's: what both ways of KServe have. */}}
{{- define "gumshoe.modelPod" -}}
{{- with .Values.serving -}}
automountServiceAccountToken: false
terminationGracePeriodSeconds: {{ .terminationSeconds | int }}
{{- if .storage.existingSecret }}
serviceAccountName: {{ include "gumshoe.fullname" $ }}-model
{{- end }}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
{{- end -}}

{{/* Of a predictor. Takes root, args, and for a canary image and name. */}}
{{- define "gumshoe.predictor" -}}
{{- $root := .root -}}
minReplicas: {{ $root.Values.serving.replicas.min | int }}
maxReplicas: {{ $root.Values.serving.replicas.max | int }}
deploymentStrategy: {type: {{ $root.Values.serving.strategy }}}
{{ include "gumshoe.modelPod" $root }}
storageUris:
  {{- include "gumshoe.storageUris" $root | nindent 2 }}
model:
  {{- with .name }}
  name: {{ . }}
  {{- end }}
  modelFormat: {name: gumshoe, version: "1"}
  runtime: {{ include "gumshoe.fullname" $root }}
  {{- with .image }}
  image: {{ . | quote }}
  {{- end }}
  env:
    {{- include "gumshoe.modelEnv" $root | nindent 4 }}
  args:
    {{- with .args }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- include "gumshoe.loraModules" $root | nindent 4 }}
{{- end -}}

{{/* Of vLLM's container. The digest of all that vLLM is started with says whether KServe has seen a change of it. */}}
{{- define "gumshoe.modelEnv" -}}
{{- $parts := list (include "gumshoe.image" .Values.serving.image) (include "gumshoe.vllmArgs" .) (include "gumshoe.storageUris" .) (toJson .Values.serving) (include "gumshoe.modelContainer" .) -}}
- name: GUMSHOE_MODEL
  value: {{ join "\n" $parts | sha256sum | trunc 16 | quote }}
{{- with .Values.serving.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Of vLLM's container: what both ways of KServe have. */}}
{{- define "gumshoe.modelContainer" -}}
{{- $port := include "gumshoe.modelPort" . -}}
ports:
  - name: http
    containerPort: {{ $port }}
    protocol: TCP
securityContext:
  {{- with .Values.serving.securityContext }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- include "gumshoe.containerSecurity" . | nindent 2 }}
resources:
  {{- include "gumshoe.modelResources" . | nindent 2 }}
startupProbe:
  httpGet: {path: /health, port: {{ $port }}}
  periodSeconds: 10
  failureThreshold: {{ mul 6 (.Values.serving.startupMinutes | int) }}
readinessProbe:
  httpGet: {path: /health, port: {{ $port }}}
  periodSeconds: 5
livenessProbe:
  httpGet: {path: /health, port: {{ $port }}}
  periodSeconds: 20
  failureThreshold: 6
volumeMounts:
  - name: shm
    mountPath: /dev/shm
  {{- with .Values.serving.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "gumshoe.modelVolumes" -}}
volumes:
  - name: shm
    emptyDir: {medium: Memory, sizeLimit: {{ .Values.serving.sharedMemory }}}
  {{- with .Values.serving.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* What one GPU container asks for. */}}
{{- define "gumshoe.modelResources" -}}
{{- $gpus := dict .Values.serving.gpuResource (.Values.serving.gpus | int) -}}
{{- $limits := merge (dict) $gpus (.Values.serving.resources.limits | default dict) -}}
{{- $requests := merge (dict) $gpus (.Values.serving.resources.requests | default dict) -}}
{{- toYaml (dict "limits" $limits "requests" $requests) -}}
{{- end -}}

{{/* Restricted, as the Pod Security Standards have it. */}}
{{- define "gumshoe.containerSecurity" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* What no schema can say. */}}
{{- define "gumshoe.check" -}}
{{- with .Values -}}
{{- if eq .serving.mode "external" -}}
  {{- if not .serving.external.urls -}}{{ fail "serving.external.urls: name the vLLM servers that have the adapter" }}{{- end -}}
{{- else -}}
  {{- if not .adapter.uri -}}{{ fail "adapter.uri: say where the adapter's files lie, as `gumshoe artifacts show adapters/VERSION` prints" }}{{- end -}}
  {{- if and .canary.name (not .canary.uri) -}}{{ fail "canary.uri: say where the canary's files lie" }}{{- end -}}
  {{- if and .previous.name (not .previous.uri) -}}{{ fail "previous.uri: say where its files lie" }}{{- end -}}
{{- end -}}
{{- if not .adapter.name -}}{{ fail "adapter.name: name the adapter; its version is a good name" }}{{- end -}}
{{- if eq .adapter.name "base" -}}{{ fail "adapter.name: the base model is called base; choose another name" }}{{- end -}}
{{- if eq .canary.name "base" -}}{{ fail "canary.name: the base model is called base; choose another name" }}{{- end -}}
{{- if and .canary.name (eq .canary.name .adapter.name) -}}{{ fail "canary.name: it is the adapter's own; a canary is another one" }}{{- end -}}
{{- if and .previous.name (has .previous.name (list .adapter.name .canary.name)) -}}{{ fail "previous.name: it is in service; the previous adapter is another one" }}{{- end -}}
{{- if not .agent.store -}}{{ fail "agent.store: say which store the index is fetched from, s3://bucket/project" }}{{- end -}}
{{- if not (or .agent.access.existingSecret .agent.access.jwksUrl (dig "access" "open" false .agent.settings)) -}}{{ fail "agent.access: set existingSecret (keys) or jwksUrl (tokens): somebody is to say who may ask" }}{{- end -}}
{{- if and .agent.access.jwksUrl (not (and .agent.access.issuer .agent.access.audience)) -}}{{ fail "agent.access: jwksUrl needs issuer and audience" }}{{- end -}}
{{- if and .ingress.enabled (not .ingress.host) -}}{{ fail "ingress.host: name the host" }}{{- end -}}
{{- if and .httpRoute.enabled (not .httpRoute.parentRefs) -}}{{ fail "httpRoute.parentRefs: name the gateway" }}{{- end -}}
{{- if lt (.serving.replicas.max | int) (.serving.replicas.min | int) -}}{{ fail "serving.replicas.max: it is less than min" }}{{- end -}}
{{- if and (gt (.serving.runtimeCanary.percent | int) 0) (gt (.serving.replicas.max | int) (.serving.replicas.min | int)) -}}{{ fail "serving.runtimeCanary: with KServe's canary replicas are fixed; set serving.replicas.max to min" }}{{- end -}}
{{- if and (eq .serving.strategy "Recreate") (ne .serving.mode "standard") -}}{{ fail "serving.strategy: KServe takes Recreate in serving.mode standard alone" }}{{- end -}}
{{- if and (gt (.serving.runtimeCanary.percent | int) 0) (ne .serving.mode "standard") -}}{{ fail "serving.runtimeCanary: KServe has it in serving.mode standard alone" }}{{- end -}}
{{- end -}}
{{- end -}}

{{/* What the agent server is told: `agent.settings`, under what follows from all else. */}}
{{- define "gumshoe.agentSettings" -}}
{{- $agent := .Values.agent -}}
{{- $model := dict "policy" (printf "vllm:%s#%s" (include "gumshoe.modelUrls" .) .Values.adapter.name) "tokenizer" ($agent.tokenizer | default "/data/adapter") "max_context" (.Values.model.maxContext | int) -}}
{{- if .Values.canary.name -}}
{{- $model = merge $model (dict "canary" .Values.canary.name "canary_percent" .Values.canary.percent) -}}
{{- end -}}
{{- $access := dict -}}
{{- with $agent.access -}}
{{- if .existingSecret -}}{{- $access = merge $access (dict "keys" (printf "/etc/gumshoe-keys/%s" .key)) -}}{{- end -}}
{{- if .jwksUrl -}}{{- $access = merge $access (dict "jwks_url" .jwksUrl "issuer" .issuer "audience" .audience "inbox_claim" .inboxClaim) -}}{{- end -}}
{{- end -}}
{{- $own := dict "index" "/data/index" "store" $agent.store "host" "0.0.0.0" "port" 8000 "model" $model "access" $access -}}
{{- toYaml (mergeOverwrite (deepCopy $agent.settings) $own) -}}
{{- end -}}

{{/* Ports of all addresses that the agent server is told of, for its NetworkPolicy; 443 is AWS's. */}}
{{- define "gumshoe.ports" -}}
{{- $urls := list .Values.agent.storage.endpoint .Values.agent.access.jwksUrl .Values.monitoring.otlpEndpoint -}}
{{- if eq .Values.serving.mode "external" -}}{{- $urls = concat $urls .Values.serving.external.urls -}}{{- end -}}
{{- $ports := ternary (list) (list "443") (ne .Values.agent.storage.endpoint "") -}}
{{- range compact $urls -}}
{{- $url := urlParse . -}}
{{- $named := regexFind ":[0-9]+$" $url.host | trimPrefix ":" -}}
{{- $ports = append $ports (default (ternary "443" "80" (eq $url.scheme "https")) $named) -}}
{{- end -}}
{{- range $ports | uniq | sortAlpha }}
- {port: {{ . }}, protocol: TCP}
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
{{- with .Values.agent.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "gumshoe.agentEnvFrom" -}}
{{- with .Values.agent.storage.existingSecret }}
envFrom:
  - secretRef: {name: {{ . }}}
{{- end }}
{{- end -}}

{{/* Of the agent server's containers: what both have. */}}
{{- define "gumshoe.agentContainer" -}}
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
  - name: settings
    mountPath: /etc/gumshoe
    readOnly: true
  {{- if .Values.agent.access.existingSecret }}
  - name: keys
    mountPath: /etc/gumshoe-keys
    readOnly: true
  {{- end }}
  {{- with .Values.agent.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}
