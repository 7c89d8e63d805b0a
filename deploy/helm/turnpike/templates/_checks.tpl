{{/* What no schema can say. All that is wrong is said at once, with the way out. */}}
{{- define "turnpike.check" -}}
{{- $wrong := list -}}
{{- $v := .Values -}}
{{- if not $v.secrets.existingSecret -}}
{{- $wrong = append $wrong "secrets.existingSecret is missing: `turnpike secrets create secrets.json`, then `kubectl create secret generic NAME --from-file=secrets.json`" -}}
{{- end -}}
{{- if not $v.secrets.linkExistingSecret -}}
{{- $wrong = append $wrong "secrets.linkExistingSecret is missing: `turnpike secrets link link-secret.json`, then `kubectl create secret generic NAME --from-file=link-secret.json`" -}}
{{- end -}}
{{- if and $v.secrets.existingSecret (eq $v.secrets.existingSecret $v.secrets.linkExistingSecret) (eq $v.secrets.key $v.secrets.linkKey) -}}
{{- $wrong = append $wrong "secrets.linkExistingSecret is the whole secret: engines get the link key alone (`turnpike secrets link`)" -}}
{{- end -}}
{{- if not $v.database.existingSecret -}}
{{- $wrong = append $wrong "database.existingSecret is missing: a Secret whose key `url` is postgresql://…" -}}
{{- end -}}
{{- if hasKey $v.secrets.files "secrets.json" -}}
{{- $wrong = append $wrong "secrets.files: secrets.json is the file of secrets.existingSecret; give yours another name" -}}
{{- end -}}
{{- $gateways := ternary (int $v.gateway.autoscaling.maxReplicas) (int $v.gateway.replicas) $v.gateway.autoscaling.enabled -}}
{{- if and (gt $gateways 1) (not $v.redis.existingSecret) -}}
{{- $wrong = append $wrong (printf "redis.existingSecret is missing: %d gateways share rate limits and revocations by Redis; or gateway.replicas: 1" $gateways) -}}
{{- end -}}
{{- if and $v.gateway.autoscaling.enabled (gt (int $v.gateway.autoscaling.minReplicas) (int $v.gateway.autoscaling.maxReplicas)) -}}
{{- $wrong = append $wrong "gateway.autoscaling: minReplicas is above maxReplicas" -}}
{{- end -}}
{{- if $v.sharedStorage.emptyDir -}}
{{- if not $v.development -}}
{{- $wrong = append $wrong "sharedStorage.emptyDir loses usage that is not yet billed with its pod: give it a volume, or set development: true" -}}
{{- end -}}
{{- else if and (ne $v.sharedStorage.accessMode "ReadWriteMany") (or (gt $gateways 1) (gt (int $v.worker.replicas) 1)) -}}
{{- $wrong = append $wrong (printf "sharedStorage.accessMode %s cannot be mounted by several gateways or workers: use ReadWriteMany, or one of each" $v.sharedStorage.accessMode) -}}
{{- end -}}
{{- if and $v.sharedStorage.emptyDir $v.sharedStorage.existingClaim -}}
{{- $wrong = append $wrong "sharedStorage: emptyDir and existingClaim exclude each other" -}}
{{- end -}}
{{- if not $v.engines -}}
{{- $wrong = append $wrong "engines is empty: name at least one, such as engines: {demo: {model: /app/models/stdlib-qa}}" -}}
{{- end -}}
{{- $roles := dict "gateway" $v.gateway "worker" $v.worker -}}
{{- range $name, $spec := $v.engines -}}
{{- $engine := include "turnpike.engine" (dict "root" $ "spec" $spec) | fromYaml -}}
{{- $path := printf "engines.%s" $name -}}
{{- $_ := set $roles $path $engine -}}
{{- if gt (len (printf "%s-%s" (include "turnpike.fullname" $) $name)) 52 -}}
{{- $wrong = append $wrong (printf "%s: its StatefulSet's name would be longer than 52 characters, which Kubernetes makes no pods for: set fullnameOverride" $path) -}}
{{- end -}}
{{- if and (get (default dict $engine.settings) "foreign") $v.networkPolicy.enabled (not $v.networkPolicy.engineEgress) -}}
{{- $wrong = append $wrong (printf "%s.settings.foreign: networkPolicy.engineEgress is empty, so that it reaches no engine" $path) -}}
{{- end -}}
{{- if not $engine.model -}}
{{- $wrong = append $wrong (printf "%s.model is missing: the folder of its model in the container" $path) -}}
{{- end -}}
{{- if and $engine.model (hasPrefix "/models" $engine.model) (not $v.modelVolume) -}}
{{- $wrong = append $wrong (printf "%s.model is in /models, and modelVolume is empty: say where the models are" $path) -}}
{{- end -}}
{{- if and $engine.storage.emptyDir (not $v.development) -}}
{{- $wrong = append $wrong (printf "%s.storage.emptyDir loses the journal with its pod, and so what requests are billed by: use a volume, or set development: true" $path) -}}
{{- end -}}
{{- if $engine.keda.enabled -}}
{{- if not $engine.keda.serverAddress -}}
{{- $wrong = append $wrong (printf "%s.keda.serverAddress is missing: the address of Prometheus" $path) -}}
{{- end -}}
{{- if gt (int $engine.keda.minReplicas) (int $engine.keda.maxReplicas) -}}
{{- $wrong = append $wrong (printf "%s.keda: minReplicas is above maxReplicas" $path) -}}
{{- end -}}
{{- end -}}
{{- $least := $engine.podDisruptionBudget.minAvailable -}}
{{- if and (not (kindIs "invalid" $least)) (ge (int $least) (int $engine.replicas)) (gt (int $engine.replicas) 1) -}}
{{- $wrong = append $wrong (printf "%s.podDisruptionBudget.minAvailable %d of %d replicas lets no node be drained" $path (int $least) (int $engine.replicas)) -}}
{{- end -}}
{{- end -}}
{{- range $path, $role := $roles -}}
{{- range $role.extraArgs -}}
{{- if hasPrefix "--drain-timeout" . -}}
{{- $wrong = append $wrong (printf "%s.extraArgs: use drainSeconds instead of --drain-timeout, since the pod's grace depends on it" $path) -}}
{{- end -}}
{{- end -}}
{{- range $role.extraEnv -}}
{{- if eq .name "TURNPIKE_DRAIN_TIMEOUT" -}}
{{- $wrong = append $wrong (printf "%s.extraEnv: use drainSeconds instead of %s, since the pod's grace depends on it" $path .name) -}}
{{- end -}}
{{- end -}}
{{- if not (kindIs "invalid" $role.terminationGracePeriodSeconds) -}}
{{- $least := add (int $role.preStopSeconds) (int (default 0 $role.drainSeconds)) 41 -}}
{{- if lt (int $role.terminationGracePeriodSeconds) (int $least) -}}
{{- $wrong = append $wrong (printf "%s.terminationGracePeriodSeconds %d cuts running requests: preStopSeconds + drainSeconds + 41 is %d" $path (int $role.terminationGracePeriodSeconds) $least) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $v.gateway.ingress.enabled (not $v.gateway.ingress.host) -}}
{{- $wrong = append $wrong "gateway.ingress.host is missing" -}}
{{- end -}}
{{- if $wrong -}}
{{- fail (printf "\n\nThese values cannot be used:\n- %s\n" (join "\n- " $wrong)) -}}
{{- end -}}
{{- end -}}
