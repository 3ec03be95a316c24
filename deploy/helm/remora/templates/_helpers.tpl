{{- define "remora.fullname" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "remora.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "remora.labels" -}}
{{ include "remora.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "remora.image" -}}
{{ .Values.image.repository }}
{{- if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{/* Whether events come in over TCP; where the values do not say, that is so for the embedded store. */}}
{{- define "remora.ingest" -}}
{{- if or (eq (toString .Values.ingest.service) "true") (and (kindIs "invalid" .Values.ingest.service) (eq .Values.kind "sqlite")) }}true{{ end }}
{{- end }}

{{/* Whether a Secret is made of what the values name none for. */}}
{{- define "remora.isGenerated" -}}
{{- if or (not .Values.ingest.tlsSecret) (not .Values.ingest.tokensSecret) }}true{{ end }}
{{- end }}

{{- define "remora.ingestSecret" -}}
{{ include "remora.fullname" . }}-ingest
{{- end }}

{{/* A value as TOML has it: texts, numbers and lists are written as in JSON, tables are not. */}}
{{- define "remora.toml" -}}
{{- $parts := list }}
{{- if kindIs "map" . }}
{{- range $name, $value := . }}
{{- $parts = append $parts (printf "%s = %s" (toJson $name) (include "remora.toml" $value)) }}
{{- end }}
{{- printf "{ %s }" (join ", " $parts) }}
{{- else if kindIs "slice" . }}
{{- range . }}
{{- $parts = append $parts (include "remora.toml" .) }}
{{- end }}
{{- printf "[%s]" (join ", " $parts) }}
{{- else }}
{{- toJson . }}
{{- end }}
{{- end }}

{{/* What the chart sets, under what config sets. */}}
{{- define "remora.sections" -}}
{{- $base := dict
    "store" (dict "kind" .Values.kind)
    "supervisor" (dict "workers" (int .Values.workers))
    "admin" (dict "listen" "0.0.0.0:9750") }}
{{- if eq .Values.kind "sqlite" }}
{{- $places := list "/var/lib/remora/queues" }}
{{- range $name, $_ := .Values.persistence.directories }}
{{- $places = append $places (printf "/srv/remora/%s/queues" $name) }}
{{- end }}
{{- $sqlite := dict "directory" (first $places) }}
{{- if rest $places }}
{{- $_ := set $sqlite "directories" $places }}
{{- end }}
{{- $_ := set $base "sqlite" $sqlite }}
{{- end }}
{{- if and (eq .Values.kind "rados") .Values.ceph.rookClient }}
{{- $_ := set $base "rados" (dict "name" (printf "client.%s" .Values.ceph.rookClient)) }}
{{- end }}
{{- if include "remora.ingest" . }}
{{- $_ := set $base "ingest" (dict
    "listen" (printf "0.0.0.0:%d" (int .Values.ingest.port))
    "tls_certificate" "/etc/remora/ingest/tls.crt"
    "tls_key" "/etc/remora/ingest/tls.key"
    "tokens" "/etc/remora/ingest/tokens") }}
{{- end }}
{{- toYaml (mergeOverwrite $base (deepCopy .Values.config)) }}
{{- end }}

{{- define "remora.config" -}}
{{- range $section, $options := include "remora.sections" . | fromYaml -}}
[{{ $section }}]
{{ range $option, $value := $options -}}
{{ $option }} = {{ include "remora.toml" $value }}
{{ end -}}
{{ end -}}
{{- end }}

{{/* A file for `remora topic apply`. */}}
{{- define "remora.topics" -}}
{{- range $name, $options := .Values.topics -}}
[topic.{{ toJson $name }}]
{{ range $option, $value := $options -}}
{{ $option }} = {{ include "remora.toml" $value }}
{{ end -}}
{{ end -}}
{{- end }}

{{- define "remora.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "remora.env" -}}
# A name of its own for each pod: pods of one name in two namespaces must not break each other's locks.
- name: REMORA_OWNERSHIP_HOST_ID
  valueFrom:
    fieldRef:
      fieldPath: metadata.uid
# As in remora.toml, over which the image's own value of this variable would stand.
- name: REMORA_ADMIN_LISTEN
  value: {{ (include "remora.sections" . | fromYaml).admin.listen | quote }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "remora.mounts" -}}
- name: config
  mountPath: /etc/remora/remora.toml
  subPath: remora.toml
  readOnly: true
- name: run
  mountPath: /run/remora
- name: tmp
  mountPath: /tmp
{{- if eq .Values.kind "sqlite" }}
- name: queues
  mountPath: /var/lib/remora
{{- range $name, $_ := .Values.persistence.directories }}
- name: queues-{{ $name }}
  mountPath: /srv/remora/{{ $name }}
{{- end }}
{{- else }}
- name: ceph
  mountPath: /etc/ceph
  readOnly: true
{{- end }}
{{- if include "remora.ingest" . }}
- name: ingest
  mountPath: /etc/remora/ingest
  readOnly: true
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "remora.pod" -}}
metadata:
  labels:
    {{- include "remora.labels" . | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    # A subPath of a ConfigMap is not updated in a running pod: a change of the configuration rolls the pods.
    checksum/config: {{ print (include "remora.config" .) (include "remora.topics" .) | sha256sum }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  automountServiceAccountToken: false
  # A Service called remora-log would set REMORA_LOG_PORT and others, which are no options of remora's.
  enableServiceLinks: false
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- toYaml .Values.podSecurityContext | nindent 4 }}
  terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if eq .Values.kind "rados" }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "remora.selector" . | nindent 10 }}
  {{- end }}
  initContainers:
    {{- if and (eq .Values.kind "rados") .Values.ceph.rookClient }}
    # Rook keeps the monitors' addresses and the client's key in two Secrets; librados wants two files.
    - name: ceph-conf
      image: {{ include "remora.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      command:
        - /opt/remora/bin/python
        - -c
        - |
          import os
          from pathlib import Path
          folder = Path("/etc/ceph")
          (folder / "ceph.conf").write_text(f"[global]\nmon_host = {os.environ['ROOK_MON_HOST']}\n")
          keyring = folder / f"ceph.client.{os.environ['CEPH_CLIENT']}.keyring"
          keyring.touch(mode=0o600)
          keyring.write_text(f"[client.{os.environ['CEPH_CLIENT']}]\nkey = {os.environ['CEPH_KEY']}\n")
      env:
        - name: CEPH_CLIENT
          value: {{ .Values.ceph.rookClient }}
        - name: ROOK_MON_HOST
          valueFrom:
            secretKeyRef:
              name: rook-ceph-config
              key: mon_host
        - name: CEPH_KEY
          valueFrom:
            secretKeyRef:
              name: rook-ceph-client-{{ .Values.ceph.rookClient }}
              key: {{ .Values.ceph.rookClient }}
      securityContext:
        {{- include "remora.containerSecurity" . | nindent 8 }}
      resources:
        {{- toYaml .Values.resources | nindent 8 }}
      volumeMounts:
        - name: ceph
          mountPath: /etc/ceph
    {{- end }}
    # A configuration that is refused stops the rollout here, and leaves the pods of before where they are.
    - name: check-config
      image: {{ include "remora.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: [check-config]
      env:
        {{- include "remora.env" . | nindent 8 }}
      securityContext:
        {{- include "remora.containerSecurity" . | nindent 8 }}
      resources:
        {{- toYaml .Values.resources | nindent 8 }}
      volumeMounts:
        {{- include "remora.mounts" . | nindent 8 }}
    {{- if .Values.topics }}
    # Before the daemon, so that no sender finds a topic missing; topics that are as the values say are left alone.
    - name: topics
      image: {{ include "remora.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: [topic, apply, -f, /etc/remora/topics.toml]
      env:
        {{- include "remora.env" . | nindent 8 }}
      securityContext:
        {{- include "remora.containerSecurity" . | nindent 8 }}
      resources:
        {{- toYaml .Values.resources | nindent 8 }}
      volumeMounts:
        {{- include "remora.mounts" . | nindent 8 }}
        - name: config
          mountPath: /etc/remora/topics.toml
          subPath: topics.toml
          readOnly: true
    {{- end }}
  containers:
    - name: remora
      image: {{ include "remora.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      env:
        {{- include "remora.env" . | nindent 8 }}
      ports:
        - name: admin
          containerPort: 9750
        {{- if include "remora.ingest" . }}
        - name: ingest
          containerPort: {{ .Values.ingest.port }}
        {{- end }}
      # Neither of the three asks whether a broker answers: no restart and no rollout brings one back.
      startupProbe:
        httpGet:
          path: /-/live
          port: admin
        periodSeconds: 2
        failureThreshold: 60
      livenessProbe:
        httpGet:
          path: /-/live
          port: admin
        periodSeconds: 15
        timeoutSeconds: 5
      readinessProbe:
        httpGet:
          path: /-/ready{{ if or (include "remora.ingest" .) (eq .Values.kind "sqlite") }}/ingest{{ end }}
          port: admin
        periodSeconds: 5
        timeoutSeconds: 5
      {{- if and (eq .Values.kind "rados") (gt (int .Values.replicas) 1) }}
      lifecycle:
        preStop:
          exec:
            command: [/opt/remora/bin/remora, drain, --timeout, "20"]
      {{- end }}
      securityContext:
        {{- include "remora.containerSecurity" . | nindent 8 }}
      resources:
        {{- toYaml .Values.resources | nindent 8 }}
      volumeMounts:
        {{- include "remora.mounts" . | nindent 8 }}
    {{- with .Values.extraContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    - name: config
      configMap:
        name: {{ include "remora.fullname" . }}
    # Sockets, and which workers live: it survives a restart of the container and not the pod.
    - name: run
      emptyDir:
        medium: Memory
        sizeLimit: 16Mi
    - name: tmp
      emptyDir:
        sizeLimit: 64Mi
    {{- if eq .Values.kind "sqlite" }}
    {{- range $name, $_ := .Values.persistence.directories }}
    - name: queues-{{ $name }}
      persistentVolumeClaim:
        claimName: {{ include "remora.fullname" $ }}-{{ $name }}
    {{- end }}
    {{- end }}
    {{- if eq .Values.kind "rados" }}
    - name: ceph
      {{- if .Values.ceph.rookClient }}
      emptyDir:
        medium: Memory
        sizeLimit: 1Mi
      {{- else }}
      projected:
        defaultMode: 0440
        sources:
          - secret:
              name: {{ .Values.ceph.confSecret }}
              items:
                - key: ceph.conf
                  path: ceph.conf
          - secret:
              name: {{ .Values.ceph.keyringSecret }}
              items:
                - key: keyring
                  path: {{ printf "ceph.%s.keyring" ((.Values.config.rados | default dict).name | default "client.remora") }}
      {{- end }}
    {{- end }}
    {{- if include "remora.ingest" . }}
    - name: ingest
      projected:
        defaultMode: 0440
        sources:
          - secret:
              name: {{ .Values.ingest.tlsSecret | default (include "remora.ingestSecret" .) }}
              items:
                - key: tls.crt
                  path: tls.crt
                - key: tls.key
                  path: tls.key
          - secret:
              name: {{ .Values.ingest.tokensSecret | default (include "remora.ingestSecret" .) }}
              items:
                - key: tokens
                  path: tokens
          {{- if include "remora.isGenerated" . }}
          # For commands in the pod that send.
          - secret:
              name: {{ include "remora.ingestSecret" . }}
              items:
                - key: token
                  path: token
                - key: ca.crt
                  path: ca.crt
          {{- end }}
    {{- end }}
    {{- with .Values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}
