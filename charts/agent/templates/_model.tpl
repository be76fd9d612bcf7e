{{/* URIs of the adapters that vLLM loads, by name. They do not depend on the adapters' roles, so vLLM is not restarted
when two adapters swap roles. */}}
{{- define "gumshoe.adapters" -}}
{{- $both := dict .Values.adapter.name .Values.adapter.uri -}}
{{- range list .Values.canary .Values.previous -}}{{ if .name }}{{ $both = set $both .name .uri }}{{ end }}{{- end -}}
{{- toYaml $both -}}
{{- end -}}

{{/* Directory of an adapter. KServe requires one common parent for all that it fetches, and mounts it read-only, so
that no volume can be mounted below it. Parameters: name, uri. */}}
{{- define "gumshoe.adapterPath" -}}
{{- printf "%s/%s" (ternary "/adapters" "/mnt/lora" (hasPrefix "pvc://" .uri)) .name -}}
{{- end -}}

{{/* All files that vLLM loads, as a list of uri, path and directory in the volume of fetched files. */}}
{{- define "gumshoe.modelFiles" -}}
- {uri: {{ .Values.model.uri | quote }}, path: /mnt/models, directory: models}
{{- range $name, $uri := include "gumshoe.adapters" . | fromYaml }}
- {uri: {{ $uri | quote }}, path: {{ include "gumshoe.adapterPath" (dict "name" $name "uri" $uri) }}, directory: lora/{{ $name }}}
{{- end }}
{{- end -}}

{{/* Set if the chart's own init container fetches model and adapters. KServe's initializer has no security context, is
told nothing of certificates and proxies, reads the address of an S3 server only from annotations of the Secret, and one
kind of credentials from each Secret. Mode `llmisvc` ignores its settings (ClusterStorageContainer). */}}
{{- define "gumshoe.fetchesModel" -}}
{{- $trust := .Values.trust.caBundle -}}
{{- with .Values.serving -}}
{{- $secrets := or .storage.existingSecret $.Values.model.tokenSecret -}}
{{- $own := or .restricted .fetch.image .fetch.extraEnv .storage.endpoint .storage.region $trust.configMap $trust.secret $.Values.proxy.http $.Values.proxy.https (and .serviceAccount.name $secrets) -}}
{{- $same := and $secrets (eq .storage.existingSecret $.Values.model.tokenSecret) -}}
{{- if or (eq .mode "llmisvc") $own $same -}}yes{{- end -}}
{{- end -}}
{{- end -}}

{{/* Files that are fetched, by the chart's init container or by KServe: not those on a PersistentVolumeClaim, and not
images of mode `llmisvc`, which KServe mounts. */}}
{{- define "gumshoe.fetchedFiles" -}}
{{- $fetched := list -}}
{{- range include "gumshoe.modelFiles" . | fromYamlArray -}}
{{- if not (or (hasPrefix "pvc://" .uri) (and (hasPrefix "oci://" .uri) (eq $.Values.serving.mode "llmisvc"))) -}}
{{- $fetched = append $fetched . -}}
{{- end -}}
{{- end -}}
{{- toYaml $fetched -}}
{{- end -}}

{{/* Files on PersistentVolumeClaims, as a list of volume, claim, path and subPath. KServe would lose the sub-path. */}}
{{- define "gumshoe.mountedFiles" -}}
{{- $mounted := list -}}
{{- range include "gumshoe.modelFiles" . | fromYamlArray -}}
{{- if hasPrefix "pvc://" .uri -}}
{{- $parts := splitn "/" 2 (trimPrefix "pvc://" .uri) -}}
{{- $volume := printf "claim-%s" (sha256sum $parts._0 | trunc 8) -}}
{{- $mounted = append $mounted (dict "volume" $volume "claim" $parts._0 "path" .path "subPath" (trimAll "/" ($parts._1 | default ""))) -}}
{{- end -}}
{{- end -}}
{{- toYaml $mounted -}}
{{- end -}}

{{/* Files for KServe's storage initializer. Empty if it fetches none. */}}
{{- define "gumshoe.storageUris" -}}
{{- if not (include "gumshoe.fetchesModel" .) -}}
{{- range include "gumshoe.fetchedFiles" . | fromYamlArray }}
- uri: {{ .uri | quote }}
  mountPath: {{ .path }}
{{- end }}
{{- end -}}
{{- end -}}

{{/* Init container that fetches model and adapters and verifies them. Empty if there is nothing to fetch. */}}
{{- define "gumshoe.fetchContainer" -}}
{{- $files := include "gumshoe.fetchedFiles" . | fromYamlArray -}}
{{- if and (include "gumshoe.fetchesModel" .) $files -}}
{{- with .Values.serving -}}
- name: fetch
  image: {{ .fetch.image | default (include "gumshoe.agentImage" $) | quote }}
  command: [gumshoe, model-fetch]
  # After a restart, files that were already fetched are reused.
  args:
    {{- range $files }}
    - {{ printf "%s=/files/%s" .uri .directory | quote }}
    {{- end }}
  env:
    {{- include "gumshoe.mergeEnv" (dict "own" (include "gumshoe.fetchEnv" $) "extra" .fetch.extraEnv) | nindent 4 }}
  {{- with .storage.existingSecret }}
  envFrom:
    - secretRef: {name: {{ . | quote }}}
  {{- end }}
  securityContext:
    readOnlyRootFilesystem: true
    runAsNonRoot: true
    {{- include "gumshoe.containerSecurity" $ | nindent 4 }}
  resources: {{- toYaml .fetch.resources | nindent 4 }}
  volumeMounts:
    - name: files
      mountPath: /files
    - name: fetch-tmp
      mountPath: /tmp
    {{- with include "gumshoe.trustMount" $ }}
    {{- . | nindent 4 }}
    {{- end }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "gumshoe.fetchEnv" -}}
- name: HOME
  value: /tmp
- name: TMPDIR
  value: /tmp
{{- with .Values.serving.storage.endpoint }}
- name: AWS_ENDPOINT_URL
  value: {{ printf "%s://%s" (ternary "https" "http" $.Values.serving.storage.https) . | quote }}
{{- end }}
{{- with .Values.serving.storage.region }}
- name: AWS_REGION
  value: {{ . | quote }}
{{- end }}
{{- with .Values.model.tokenSecret }}
- name: HF_TOKEN
  valueFrom: {secretKeyRef: {name: {{ . | quote }}, key: HF_TOKEN}}
{{- end }}
{{- include "gumshoe.trustEnv" . }}
{{- include "gumshoe.proxyEnv" . }}
{{- end -}}

{{/* Mounts of vLLM's container for fetched files and claims. Empty if KServe mounts all. */}}
{{- define "gumshoe.fileMounts" -}}
{{- if include "gumshoe.fetchesModel" . -}}
{{- range include "gumshoe.fetchedFiles" . | fromYamlArray }}
- name: files
  mountPath: {{ .path }}
  subPath: {{ .directory }}
  readOnly: true
{{- end }}
{{- end -}}
{{- range include "gumshoe.mountedFiles" . | fromYamlArray }}
- name: {{ .volume }}
  mountPath: {{ .path }}
  {{- with .subPath }}
  subPath: {{ . | quote }}
  {{- end }}
  readOnly: true
{{- end }}
{{- end -}}

{{/* Volumes for the same. */}}
{{- define "gumshoe.fileVolumes" -}}
{{- if include "gumshoe.fetchContainer" . }}
- name: files
  emptyDir: {}
- name: fetch-tmp
  emptyDir: {}
{{- end -}}
{{- $claims := dict -}}
{{- range include "gumshoe.mountedFiles" . | fromYamlArray -}}{{- $claims = set $claims .volume .claim -}}{{- end -}}
{{- range $volume, $claim := $claims }}
- name: {{ $volume }}
  persistentVolumeClaim: {claimName: {{ $claim | quote }}}
{{- end }}
{{- end -}}

{{/* Arguments of vLLM, the same as in training. The model's own sampling defaults are ignored. */}}
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
# Otherwise vLLM aborts running requests when it is stopped. The rest is for the preStop hook and its own end.
- --shutdown-timeout={{ max 0 (sub (.Values.serving.terminationSeconds | int) 15) }}
{{- end -}}

{{- define "gumshoe.modelPort" -}}
{{- ternary 8000 8080 (eq .Values.serving.mode "llmisvc") -}}
{{- end -}}

{{/* Prometheus query: requests waiting in all replicas of vLLM. */}}
{{- define "gumshoe.waiting" -}}
{{- printf "sum(vllm:num_requests_waiting{namespace=%q,service=%q})" .Release.Namespace (printf "%s-model" (include "gumshoe.fullname" .)) -}}
{{- end -}}

{{- define "gumshoe.isScaled" -}}
{{- if gt (.Values.serving.replicas.max | int) (.Values.serving.replicas.min | int) -}}yes{{- end -}}
{{- end -}}

{{/* The adapters. This must be the last argument: vLLM treats everything after it as further adapters. */}}
{{- define "gumshoe.loraModules" -}}
- --lora-modules
{{- range $name, $uri := include "gumshoe.adapters" . | fromYaml }}
- {{ dict "name" $name "path" (include "gumshoe.adapterPath" (dict "name" $name "uri" $uri)) "base_model_name" "base" | toJson | quote }}
{{- end }}
{{- end -}}

{{/* ServiceAccount of vLLM's pods. */}}
{{- define "gumshoe.modelAccount" -}}
{{- .Values.serving.serviceAccount.name | default (printf "%s-model" (include "gumshoe.fullname" .)) -}}
{{- end -}}

{{/* Labels and annotations of vLLM's pods, common to both KServe modes. */}}
{{- define "gumshoe.modelPodMetadata" -}}
labels: {{- merge (dict) (.Values.serving.podLabels | default dict) (include "gumshoe.istioLabels" . | fromYaml) | toYaml | nindent 2 }}
{{- $annotations := merge (dict) (.Values.serving.podAnnotations | default dict) (include "gumshoe.istioAnnotations" . | fromYaml) }}
{{- with $annotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Pod settings of vLLM, common to both KServe modes. */}}
{{- define "gumshoe.modelPod" -}}
{{- with .Values.serving -}}
automountServiceAccountToken: false
enableServiceLinks: false  # a Service named `vllm` would set VLLM_PORT, which vLLM reads
serviceAccountName: {{ include "gumshoe.modelAccount" $ | quote }}
terminationGracePeriodSeconds: {{ .terminationSeconds | int }}
{{- if .restricted }}
securityContext:
  runAsNonRoot: true
  seccompProfile: {type: RuntimeDefault}
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
{{- with .resourceClaims }}
resourceClaims: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .runtimeClassName }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- with .schedulerName }}
schedulerName: {{ . | quote }}
{{- end }}
{{- with include "gumshoe.fetchContainer" $ }}
initContainers:
  {{- . | nindent 2 }}
{{- end }}
{{- end -}}
{{- end -}}

{{/* Predictor of an InferenceService. Parameters: root, args, and for a canary image and name. */}}
{{- define "gumshoe.predictor" -}}
{{- $root := .root -}}
minReplicas: {{ $root.Values.serving.replicas.min | int }}
{{- if not .name }}
maxReplicas: {{ $root.Values.serving.replicas.max | int }}
{{- end }}
deploymentStrategy: {type: {{ $root.Values.serving.strategy }}}
{{ include "gumshoe.modelPodMetadata" $root }}
{{ include "gumshoe.modelPod" $root }}
{{- with include "gumshoe.storageUris" $root }}
storageUris:
  {{- . | nindent 2 }}
{{- end }}
{{- with include "gumshoe.fileVolumes" $root }}
volumes:
  {{- . | nindent 2 }}
{{- end }}
model:
  {{- if .name }}
  name: kserve-container  # required in a canary; KServe finds the container by this name
  {{- end }}
  modelFormat: {name: gumshoe, version: "1"}
  runtime: {{ include "gumshoe.fullname" $root }}
  {{- with .image }}
  image: {{ . | quote }}
  {{- end }}
  env:
    {{- include "gumshoe.modelEnv" $root | nindent 4 }}
  {{- with include "gumshoe.fileMounts" $root }}
  volumeMounts:
    {{- . | nindent 4 }}
  {{- end }}
  args:
    {{- with .args }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- include "gumshoe.loraModules" $root | nindent 4 }}
{{- end -}}

{{/* Environment of vLLM's container. The digest of its configuration shows if KServe has processed a change. A value
that does not change the pods is left out, because another digest restarts them. */}}
{{- define "gumshoe.modelEnv" -}}
{{- include "gumshoe.mergeEnv" (dict "own" (include "gumshoe.ownModelEnv" .) "extra" .Values.serving.extraEnv) -}}
{{- end -}}

{{- define "gumshoe.ownModelEnv" -}}
{{- $parts := list (include "gumshoe.image" .Values.serving.image) (include "gumshoe.vllmArgs" .) (include "gumshoe.modelFiles" .) (omit .Values.serving "external" "strategy" "replicas" "autoscaling" "disruption" "runtimeCanary" | toJson) (include "gumshoe.modelPodMetadata" .) (include "gumshoe.modelPod" .) (include "gumshoe.modelContainer" .) -}}
- name: GUMSHOE_MODEL
  value: {{ join "\n" $parts | sha256sum | trunc 16 | quote }}
# vLLM reports each start to its makers otherwise.
- name: DO_NOT_TRACK
  value: "1"
{{- if or .Values.serving.restricted (eq .Values.platform "openshift") (dig "runAsUser" 0 (.Values.serving.securityContext | default dict)) }}
# The user has neither a home directory nor a name, without which torch before 2.13 cannot be imported.
- name: HOME
  value: /tmp
- name: USER
  value: vllm
{{- end }}
{{- include "gumshoe.serverKeyEnv" . }}
{{- include "gumshoe.trustEnv" . }}
{{- include "gumshoe.proxyEnv" . }}
{{- end -}}

{{/* Security context of vLLM's container. Its image runs as root, unless the platform or these values set a user. */}}
{{- define "gumshoe.modelSecurity" -}}
{{- $user := dict -}}
{{- if .Values.serving.restricted -}}
{{- $user = dict "runAsNonRoot" true -}}
{{- if ne .Values.platform "openshift" -}}{{- $user = set $user "runAsUser" 10001 -}}{{- end -}}
{{- end -}}
{{- with merge (dict) (.Values.serving.securityContext | default dict) $user -}}
{{ toYaml . }}
{{ end -}}
{{- include "gumshoe.containerSecurity" . -}}
{{- end -}}

{{/* Container settings of vLLM, common to both KServe modes. */}}
{{- define "gumshoe.modelContainer" -}}
{{- $port := include "gumshoe.modelPort" . -}}
ports:
  - name: http
    containerPort: {{ $port }}
    protocol: TCP
securityContext:
  {{- include "gumshoe.modelSecurity" . | nindent 2 }}
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
{{- if ge (.Values.serving.terminationSeconds | int) 15 }}
lifecycle:
  preStop:
    sleep: {seconds: 5}  # until the Service sends no more requests
{{- end }}
volumeMounts:
  - name: shm
    mountPath: /dev/shm
  {{- with include "gumshoe.trustMount" . }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with .Values.serving.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "gumshoe.modelVolumes" -}}
volumes:
  - name: shm
    emptyDir: {medium: Memory, sizeLimit: {{ .Values.serving.sharedMemory }}}
  {{- with include "gumshoe.trustVolume" . }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with .Values.serving.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* Resources of vLLM's container. With resource claims, a driver assigns the GPUs (Dynamic Resource Allocation). */}}
{{- define "gumshoe.modelResources" -}}
{{- with .Values.serving -}}
{{- $gpus := dict -}}
{{- $claims := list -}}
{{- $given := .resources | default dict -}}
{{- range .resourceClaims -}}{{- $claims = append $claims (dict "name" .name) -}}{{- end -}}
{{- if not $claims -}}{{- $gpus = dict .gpuResource (.gpus | int) -}}{{- end -}}
{{- $limits := merge (dict) $gpus ($given.limits | default dict) -}}
{{- $requests := merge (dict) $gpus ($given.requests | default dict) -}}
{{- $resources := dict "limits" $limits "requests" $requests -}}
{{- if $claims -}}{{- $resources = set $resources "claims" $claims -}}{{- end -}}
{{- toYaml $resources -}}
{{- end -}}
{{- end -}}

{{/* Checks of the model's values that the JSON schema cannot express. */}}
{{- define "gumshoe.checkModel" -}}
{{- with .Values.serving -}}
{{- $scaled := gt (.replicas.max | int) (.replicas.min | int) -}}
{{- $isCanary := gt (.runtimeCanary.percent | int) 0 -}}
{{- if and (ne .mode "external") (not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" (include "gumshoe.fullname" $))) -}}{{ fail (printf "fullnameOverride: KServe needs a name of lower-case letters, digits and - that begins with a letter, got %s; set such a name" (include "gumshoe.fullname" $)) }}{{- end -}}
{{- if lt (.replicas.max | int) (.replicas.min | int) -}}{{ fail "serving.replicas.max: must be at least serving.replicas.min" }}{{- end -}}
{{- if and $isCanary $scaled -}}{{ fail "serving.runtimeCanary: KServe cannot scale a canary; set serving.replicas.max to serving.replicas.min" }}{{- end -}}
{{- if and (eq .strategy "Recreate") (ne .mode "standard") -}}{{ fail "serving.strategy: KServe supports Recreate only with serving.mode standard" }}{{- end -}}
{{- if and $isCanary (ne .mode "standard") -}}{{ fail "serving.runtimeCanary: KServe supports it only with serving.mode standard" }}{{- end -}}
{{- if and (not .gpuResource) (not .resourceClaims) -}}{{ fail "serving.gpuResource: required without serving.resourceClaims; set it to the resource name of the GPUs" }}{{- end -}}
{{- if and .restricted (or (not (dig "runAsNonRoot" true (.securityContext | default dict))) (eq (dig "runAsUser" 1 (.securityContext | default dict) | int) 0)) -}}{{ fail "serving.securityContext: serving.restricted forbids root; set another user, or leave it out" }}{{- end -}}
{{- if and (ne .mode "external") (include "gumshoe.fetchesModel" $) -}}
  {{- range include "gumshoe.fetchedFiles" $ | fromYamlArray -}}
    {{- if not (regexMatch "^(hf|s3)://" .uri) -}}{{ fail (printf "%s: only KServe's storage initializer can fetch it, which is not used with these values (see What is installed in the chart's README); use hf://, s3:// or pvc://" .uri) }}{{- end -}}
  {{- end -}}
{{- end -}}
{{- range concat (.extraArgs | default list) (.runtimeCanary.extraArgs | default list) -}}
  {{- $option := index (splitList "=" .) 0 | replace "_" "-" -}}{{/* vLLM accepts abbreviations. */}}
  {{- if and (hasPrefix "--tr" $option) (hasPrefix $option "--trust-remote-code") -}}{{ fail (printf "serving.extraArgs: %s would run code from the model's repository; use a model that vLLM supports" .) }}{{- end -}}
  {{- if and (hasPrefix "--api-k" $option) (hasPrefix $option "--api-key") -}}{{ fail "serving.extraArgs: --api-key would show the key in the pod's command line; use serving.keySecret" }}{{- end -}}
  {{- if and (hasPrefix "--con" $option) (hasPrefix $option "--config") -}}{{ fail (printf "serving.extraArgs: %s names a file that may have any other argument; write the arguments themselves" .) }}{{- end -}}
{{- end -}}
{{- if and .restricted (hasPrefix "oci://" $.Values.model.uri) -}}{{ fail "model.uri: KServe mounts oci:// with a container that serving.restricted forbids; use hf://, s3:// or pvc://" }}{{- end -}}
{{- end -}}
{{- end -}}
