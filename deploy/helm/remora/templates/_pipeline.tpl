{{- define "remora.pipelineSelector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}-pipeline
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "remora.pipelineLabels" -}}
{{ include "remora.pipelineSelector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* A CronJob of `steps`, one after the other: subcommands of `remora pipeline` that have arguments in the values. */}}
{{- define "remora.pipelineCronJob" -}}
apiVersion: batch/v1
kind: CronJob
metadata:
  name: {{ include "remora.fullname" .root }}-{{ .name }}
  labels:
    {{- include "remora.pipelineLabels" .root | nindent 4 }}
spec:
  schedule: {{ .root.Values.pipeline.schedule | quote }}
  # A landing that lasts longer than the schedule's step is not joined by another one.
  concurrencyPolicy: Forbid
  startingDeadlineSeconds: 300
  successfulJobsHistoryLimit: 1
  failedJobsHistoryLimit: 3
  jobTemplate:
    spec:
      # What a job leaves undone the next one does.
      backoffLimit: 0
      template:
        {{- include "remora.pipelinePod" (merge (dict "restart" "Never") .) | nindent 8 }}
{{- end }}

{{- define "remora.pipelineContainer" -}}
- name: {{ .step }}
  image: {{ .root.Values.pipeline.image.repository }}
    {{- if .root.Values.pipeline.image.digest }}@{{ .root.Values.pipeline.image.digest }}{{ else }}:{{ .root.Values.pipeline.image.tag | default .root.Chart.AppVersion }}{{ end }}
  imagePullPolicy: {{ .root.Values.pipeline.image.pullPolicy }}
  args:
    - pipeline
    - {{ .step }}
    {{- toYaml (index .root.Values.pipeline .step) | nindent 4 }}
    {{- if and (eq .step "land") .root.Values.pipeline.trigger }}
    - --trigger
    - {{ .root.Values.pipeline.trigger | quote }}
    {{- end }}
  {{- with .root.Values.pipeline.env }}
  env:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- include "remora.containerSecurity" . | nindent 4 }}
  resources:
    {{- toYaml .root.Values.pipeline.resources | nindent 4 }}
  volumeMounts:
    - name: tmp
      mountPath: /tmp
    {{- if .root.Values.pipeline.secret }}
    - name: secret
      mountPath: /etc/remora/pipeline
      readOnly: true
    {{- end }}
    {{- if .root.Values.pipeline.claim }}
    - name: tables
      mountPath: /var/lib/remora-lake
    {{- end }}
{{- end }}

{{- define "remora.pipelinePod" -}}
metadata:
  labels:
    {{- include "remora.pipelineLabels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .name }}
spec:
  restartPolicy: {{ .restart }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- with .root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- toYaml .root.Values.podSecurityContext | nindent 4 }}
  # A batch that is cut short lands the next time.
  terminationGracePeriodSeconds: 60
  {{- with .root.Values.pipeline.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .root.Values.pipeline.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with initial .steps }}
  initContainers:
    {{- range . }}
    {{- include "remora.pipelineContainer" (dict "root" $.root "step" .) | nindent 4 }}
    {{- end }}
  {{- end }}
  containers:
    {{- include "remora.pipelineContainer" (dict "root" .root "step" (last .steps)) | nindent 4 }}
  volumes:
    # What Spark cannot keep in memory, and Java's and matplotlib's files.
    - name: tmp
      emptyDir:
        sizeLimit: {{ .root.Values.pipeline.scratch }}
    {{- with .root.Values.pipeline.secret }}
    - name: secret
      secret:
        secretName: {{ . }}
        defaultMode: 0440
    {{- end }}
    {{- with .root.Values.pipeline.claim }}
    - name: tables
      persistentVolumeClaim:
        claimName: {{ . }}
    {{- end }}
{{- end }}
