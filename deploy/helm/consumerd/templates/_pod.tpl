{{- define "consumerd.labels" -}}
app.kubernetes.io/name: consumerd
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "consumerd.claim" -}}
{{ .Values.output.existingClaim | default (printf "%s-output" .Release.Name) }}
{{- end }}

{{- define "consumerd.serviceAccount" -}}
{{ .Values.serviceAccount.name | default .Release.Name }}
{{- end }}

{{- define "consumerd.memory" -}}
{{ add (int .Values.memory.budget) (int .Values.memory.process) (int .Values.memory.handler) }}Mi
{{- end }}

{{- define "consumerd.pod" -}}
metadata:
  labels: {{- include "consumerd.labels" . | nindent 4 }}
  annotations:
    checksum/config: {{ .Values.config | sha256sum }}
    {{- with .Values.podAnnotations }}{{ toYaml . | nindent 4 }}{{ end }}
spec:
  serviceAccountName: {{ include "consumerd.serviceAccount" . }}
  automountServiceAccountToken: false
  # Otherwise a Service named consumerd adds variables such as CONSUMERD_PORT, which begin as those of our settings do.
  enableServiceLinks: false
  # The daemon's own deadline comes before SIGKILL.
  terminationGracePeriodSeconds: {{ add (int .Values.preStopSeconds) (ceil .Values.stopTimeout | int) (int .Values.gracePeriodReserve) }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- range $index, $constraint := .Values.topologySpreadConstraints }}
  {{- if eq $index 0 }}
  topologySpreadConstraints:
  {{- end }}
    - {{- merge (dict) $constraint (dict "labelSelector" (dict "matchLabels" (include "consumerd.labels" $ | fromYaml))) | toYaml | nindent 6 }}
  {{- end }}
  affinity:
    podAntiAffinity:
      preferredDuringSchedulingIgnoredDuringExecution:
        - weight: 100
          podAffinityTerm:
            topologyKey: kubernetes.io/hostname
            labelSelector:
              matchLabels: {{- include "consumerd.labels" . | nindent 16 }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile: { type: RuntimeDefault }
  {{- with .Values.initContainers }}
  initContainers: {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: consumerd
      image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: ["run", "-c", "/etc/consumerd/config.toml"]
      env:
        {{- if eq .Values.kind "StatefulSet" }}
        - name: CONSUMERD_GROUP__{{ .Values.identity | upper }}
          valueFrom: { fieldRef: { fieldPath: metadata.name } }
        {{- end }}
        - { name: CONSUMERD_DAEMON__STOP_TIMEOUT, value: {{ .Values.stopTimeout | quote }} }
        - { name: CONSUMERD_FETCH__BUDGET, value: {{ mul (int .Values.memory.budget) 1048576 | quote }} }
        - { name: CONSUMERD_HEALTH__LISTEN, value: "0.0.0.0:{{ .Values.health.port }}" }
        - { name: CONSUMERD_HEALTH__METRICS, value: {{ .Values.health.metrics | quote }} }
        {{- with .Values.env }}{{ toYaml . | nindent 8 }}{{ end }}
      {{- with .Values.envFrom }}
      envFrom: {{- toYaml . | nindent 8 }}
      {{- end }}
      ports:
        - { name: http, containerPort: {{ .Values.health.port }} }
      # The process has 60 s to serve /healthz. The wait for ZooKeeper is not part of it.
      startupProbe:
        httpGet: { path: /healthz, port: http }
        periodSeconds: 2
        timeoutSeconds: 2
        failureThreshold: 30
      # Only the process itself: a restart does not repair handlers, brokers or ZooKeeper.
      livenessProbe:
        httpGet: { path: /healthz, port: http }
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 3
      readinessProbe:
        httpGet: { path: /readyz, port: http }
        periodSeconds: 5
        timeoutSeconds: 2
        failureThreshold: 2
      lifecycle:
        # The member goes on consuming while the endpoint is removed, and Prometheus gets its last values.
        preStop: { exec: { command: ["sleep", {{ .Values.preStopSeconds | quote }}] } }
      resources:
        requests: { cpu: {{ .Values.cpu }}, memory: {{ include "consumerd.memory" . }} }
        limits: { memory: {{ include "consumerd.memory" . }} }
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: { drop: [ALL] }
      volumeMounts:
        - { name: config, mountPath: /etc/consumerd, readOnly: true }
        {{- if .Values.output.enabled }}
        - { name: output, mountPath: /var/lib/consumerd }
        {{- end }}
        - { name: tmp, mountPath: /tmp }
        {{- if .Values.secretNames }}
        - { name: secrets, mountPath: /run/secrets/consumerd, readOnly: true }
        {{- end }}
        {{- with .Values.extraVolumeMounts }}{{ toYaml . | nindent 8 }}{{ end }}
  volumes:
    - name: config
      configMap: { name: {{ .Release.Name }} }
    {{- if .Values.output.enabled }}
    - name: output
      persistentVolumeClaim: { claimName: {{ include "consumerd.claim" . }} }
    {{- end }}
    - name: tmp
      emptyDir: { sizeLimit: 64Mi }
    {{- if .Values.secretNames }}
    - name: secrets
      projected:
        defaultMode: 0440
        sources:
          {{- range .Values.secretNames }}
          - secret: { name: {{ . }} }
          {{- end }}
    {{- end }}
    {{- with .Values.extraVolumes }}{{ toYaml . | nindent 4 }}{{ end }}
{{- end }}
