{{- define "turnpike.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "turnpike.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- if .engine }}
turnpike/engine: {{ .engine }}
{{- end }}
{{- end -}}

{{- define "turnpike.labels" -}}
{{ include "turnpike.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- define "turnpike.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{/* An engine's values: what it says over engineDefaults. */}}
{{- define "turnpike.engine" -}}
{{- mergeOverwrite (deepCopy .root.Values.engineDefaults) (default dict .spec) | toYaml -}}
{{- end -}}

{{/* The model folders of all engines, separated by commas. */}}
{{- define "turnpike.models" -}}
{{- $models := list -}}
{{- range $engine, $spec := .Values.engines -}}
{{- $models = append $models (include "turnpike.engine" (dict "root" $ "spec" $spec) | fromYaml).model -}}
{{- end -}}
{{- $models | uniq | join "," -}}
{{- end -}}

{{/* HOST:PORT to listen at, with an IPv6 host in brackets. */}}
{{- define "turnpike.listen" -}}
{{- $host := .root.Values.listenHost -}}
{{- ternary (printf "[%s]" $host) $host (contains ":" $host) }}:{{ .port -}}
{{- end -}}

{{/* What a role is given 45 s beyond its drain: a process needs 40 to end requests and record their usage. */}}
{{- define "turnpike.grace" -}}
{{- $least := add (int .preStopSeconds) (int (default 0 .drainSeconds)) 45 -}}
{{- default $least .terminationGracePeriodSeconds | int -}}
{{- end -}}

{{/* The volume that roles share. */}}
{{- define "turnpike.sharedVolume" -}}
- name: shared
{{- if .Values.sharedStorage.emptyDir }}
  emptyDir: {}
{{- else }}
  persistentVolumeClaim:
    claimName: {{ default (printf "%s-shared" (include "turnpike.fullname" .)) .Values.sharedStorage.existingClaim }}
{{- end }}
{{- end -}}

{{/* The environment of roles that use the database. */}}
{{- define "turnpike.databaseEnv" -}}
- name: TURNPIKE_DATABASE_URL
  valueFrom: {secretKeyRef: {name: {{ .Values.database.existingSecret | quote }}, key: {{ .Values.database.key | quote }}}}
{{- if .Values.redis.existingSecret }}
- name: TURNPIKE_REDIS_URL
  valueFrom: {secretKeyRef: {name: {{ .Values.redis.existingSecret | quote }}, key: {{ .Values.redis.key | quote }}}}
{{- end }}
{{- end -}}

{{/* Settings as environment variables; lists and numbers as the settings are written. */}}
{{- define "turnpike.settingsEnv" -}}
{{- range $name, $value := . }}
- name: TURNPIKE_{{ upper $name }}
  value: {{ (kindIs "float64" $value) | ternary ((eq (toString (float64 (int64 $value))) (toString $value)) | ternary (int64 $value) $value) $value | toString | quote }}
{{- end }}
{{- end -}}

{{- define "turnpike.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* The pod's fields that all roles have. `role`: its values. */}}
{{- define "turnpike.pod" -}}
automountServiceAccountToken: false
# A Service named turnpike would set TURNPIKE_PORT, which is a setting.
enableServiceLinks: false
{{- with .role.serviceAccountName }}
serviceAccountName: {{ . | quote }}
{{- end }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .role.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- range $field := list "nodeSelector" "tolerations" "affinity" }}
{{- with get $.role $field }}
{{ $field }}: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
topologySpreadConstraints:
{{- if .role.topologySpreadConstraints }}
{{- toYaml .role.topologySpreadConstraints | nindent 2 }}
{{- else }}
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "turnpike.selector" . | nindent 8 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* Secret files must be closed to all but their owner; a mounted Secret is open to a group. So they are copied. */}}
{{- define "turnpike.copySecrets" -}}
- name: copy-secrets
  image: {{ include "turnpike.image" .root | quote }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  command: [sh, -c, "install -m 0600 /mounted/* /run/turnpike/"]
  securityContext: {{- include "turnpike.containerSecurity" . | nindent 4 }}
  resources:
    requests: {cpu: 10m, memory: 32Mi}
    limits: {cpu: 100m, memory: 64Mi}
  volumeMounts:
    - {name: mounted-secrets, mountPath: /mounted, readOnly: true}
    - {name: secrets, mountPath: /run/turnpike}
{{- end -}}

{{- define "turnpike.commonVolumes" -}}
- name: secrets
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
- name: tmp
  emptyDir: {sizeLimit: 1Gi}
{{- if .root.Values.modelVolume }}
- name: models
  {{- toYaml .root.Values.modelVolume | nindent 2 }}
{{- end }}
{{- with .role.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "turnpike.serverSecrets" -}}
- name: mounted-secrets
  projected:
    defaultMode: 0440
    sources:
      - secret: {name: {{ .Values.secrets.existingSecret | quote }}, items: [{key: {{ .Values.secrets.key | quote }}, path: secrets.json}]}
      {{- range $file, $from := .Values.secrets.files }}
      - secret: {name: {{ $from.secret | quote }}, items: [{key: {{ $from.key | quote }}, path: {{ $file | quote }}}]}
      {{- end }}
{{- end -}}

{{- define "turnpike.commonMounts" -}}
- {name: secrets, mountPath: /run/turnpike, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- if .root.Values.modelVolume }}
- {name: models, mountPath: /models, readOnly: true}
{{- end }}
{{- with .role.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "turnpike.preStop" -}}
{{- if gt (int .preStopSeconds) 0 }}
lifecycle: {preStop: {exec: {command: [sleep, {{ .preStopSeconds | int | quote }}]}}}
{{- end }}
{{- end -}}

{{- define "turnpike.annotations" -}}
{{- $annotations := .role.podAnnotations -}}
{{- if .root.Values.secrets.revision -}}
{{- $annotations = merge (dict "turnpike/secrets-revision" .root.Values.secrets.revision) $annotations -}}
{{- end -}}
{{- with $annotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
