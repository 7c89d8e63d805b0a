"""The Helm chart by Helm itself: what is rendered, linted and valid in Kubernetes, and what is refused and how.

Run by `make test-chart`, which brings Helm and the schemas of Kubernetes; `make test` does without both.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.chart import CHART, ENVIRONMENT, names_of, run_helm
from tests.deploy.prometheus import RULES
from turnpike.settings.loading import describe, environment_name
from turnpike.settings.settings import ENGINE, GATEWAY, WORKER, Settings

VERSIONS = ("1.27", "1.31", "1.37")
"""Of Kubernetes, whose schemas every manifest keeps."""
OF_OPERATORS = {"ServiceMonitor", "PrometheusRule", "ScaledObject"}
"""Kinds that have no schema there."""
LEAST: dict[str, Any] = {
    "secrets": {"existingSecret": "server", "linkExistingSecret": "link"},
    "database": {"existingSecret": "database"},
    "redis": {"existingSecret": "redis"},
    "engines": {"demo": {"model": "/app/models/stdlib-qa"}},
}
MODELS = {"persistentVolumeClaim": {"claimName": "models"}}
KEDA = {"enabled": True, "serverAddress": "http://prometheus:9090"}


def over(base: Mapping[str, Any], *changes: Mapping[str, Any]) -> dict[str, Any]:
    """Values with others over them; None takes one away."""
    merged = dict(base)
    for change in changes:
        for name, value in change.items():
            nested = isinstance(value, dict) and isinstance(merged.get(name), dict)
            merged[name] = over(merged[name], value) if nested else value
            if value is None:
                del merged[name]
    return merged


def demo(**values: Any) -> dict[str, Any]:
    return {"engines": {"demo": values}}


def gateway(**values: Any) -> dict[str, Any]:
    return {"gateway": values}


def example(role: str, name: str) -> Any:
    """Its default, written as values write it."""
    value = Settings.__struct_defaults__[Settings.__struct_fields__.index(name)]
    return value if isinstance(value, bool | int | float) or value else "x"


GOOD: dict[str, dict[str, Any]] = {
    "least": {},
    "one gateway without Redis": {"redis": {"existingSecret": ""}, **gateway(replicas=1)},
    "development": over({"development": True, "sharedStorage": {"emptyDir": True}}, demo(storage={"emptyDir": True})),
    "one node": {"sharedStorage": {"accessMode": "ReadWriteOnce"}, **gateway(replicas=1)},
    "existing claim": {"sharedStorage": {"existingClaim": "mine"}},
    "storage classes": over({"sharedStorage": {"storageClassName": "nfs"}}, demo(storage={"storageClassName": "ssd"})),
    "own volume for KV": demo(kvStorage={"enabled": True, "size": "1Ti", "storageClassName": "local"}),
    "two models": {
        "modelVolume": MODELS,
        "engines": {"a": {"model": "/models/a", "replicas": 3}, "b": {"model": "/models/b"}},
    },
    "GPU": demo(resources={"limits": {"nvidia.com/gpu": 1}}, nodeSelector={"gpu": "h200"}, settings={"device": "cuda"}),
    "digest": {"image": {"digest": f"sha256:{'a' * 64}", "pullSecrets": [{"name": "registry"}]}},
    "IPv6": {"listenHost": "::"},
    "autoscaled gateways": gateway(autoscaling={"enabled": True}),
    "scaled engines": demo(keda=KEDA),
    "scaled engines by another query": demo(keda={**KEDA, "query": 'sum(x{a="b"})', "threshold": 2.5}),
    "monitored": {"monitoring": {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}}},
    "ingress": gateway(ingress={"enabled": True, "host": "a.example", "tlsSecret": "tls", "className": "nginx"}),
    "load balancer": gateway(service={"type": "LoadBalancer", "annotations": {"a": "b"}}),
    "no policies": {"networkPolicy": {"enabled": False}},
    "narrow policies": {
        "networkPolicy": {
            "apiFrom": [{"ipBlock": {"cidr": "10.0.0.0/8"}}],
            "metricsFrom": [],
            "engineEgress": [{"ports": [{"port": 443, "protocol": "TCP"}]}],
        }
    },
    "own migrations": {"migrations": {"enabled": False}},
    "no budgets": over(gateway(podDisruptionBudget={"enabled": False}), demo(podDisruptionBudget={"enabled": False})),
    "budget of an engine": demo(replicas=4, podDisruptionBudget={"minAvailable": 2}),
    "long drains": over(gateway(drainSeconds=600, preStopSeconds=15), demo(drainSeconds=900)),
    "own grace": gateway(terminationGracePeriodSeconds=81),
    "further secrets": {
        "secrets": {"revision": "7", "files": {"stripe.json": {"secret": "stripe", "key": "k"}}},
        **gateway(settings={"stripe_file": "/run/turnpike/stripe.json"}),
    },
    "extras": gateway(
        extraArgs=["--log-level", "debug"],
        extraEnv=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        extraVolumes=[{"name": "ca", "configMap": {"name": "ca"}}],
        extraVolumeMounts=[{"name": "ca", "mountPath": "/ca"}],
        podLabels={"team": "a"},
        podAnnotations={"note": "b"},
        serviceAccountName="gateway",
        priorityClassName="high",
        tolerations=[{"operator": "Exists"}],
    ),
    "extra manifests": {
        "extraManifests": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"a": "b"}}]
    },
    "every setting of gateways": gateway(settings={name: example(GATEWAY, name) for name in names_of(GATEWAY)}),
    "every setting of workers": {"worker": {"settings": {name: example(WORKER, name) for name in names_of(WORKER)}}},
    "every setting of engines": demo(settings={name: example(ENGINE, name) for name in names_of(ENGINE)}),
}

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no secrets": ({"secrets": {"existingSecret": ""}}, "secrets.existingSecret is missing: `turnpike secrets create"),
    "no link": ({"secrets": {"linkExistingSecret": ""}}, "secrets.linkExistingSecret is missing: `turnpike secrets li"),
    "whole secret in engines": (
        {"secrets": {"linkExistingSecret": "server", "linkKey": "secrets.json"}},
        "engines get the link key alone",
    ),
    "no database": ({"database": {"existingSecret": ""}}, "database.existingSecret is missing"),
    "gateways without Redis": ({"redis": {"existingSecret": ""}}, "redis.existingSecret is missing: 2 gateways"),
    "autoscaled without Redis": (
        {"redis": {"existingSecret": ""}, **gateway(replicas=1, autoscaling={"enabled": True})},
        "redis.existingSecret is missing: 10 gateways",
    ),
    "secret in a value": ({"secrets": {"masterKey": "x"}}, "masterKey"),
    "own secrets.json": ({"secrets": {"files": {"secrets.json": {"secret": "a", "key": "b"}}}}, "another name"),
    "no engine": ({"engines": {"demo": None}}, "engines is empty: name at least one"),
    "no model": (demo(model=""), "engines.demo.model is missing"),
    "no models": (demo(model="/models/a"), "modelVolume is empty"),
    "no gateways": (gateway(replicas=0), "/gateway/replicas"),
    "no replicas": (demo(replicas=0), "/engines/demo/replicas"),
    "no workers": ({"worker": {"replicas": 0}}, "/worker/replicas"),
    "a name too long for pods": (
        {
            "fullnameOverride": "llm-production-eu-west-1-turnpike",
            "engines": {"llama-3-70b-instruct": {"model": "/app/m"}},
        },
        "longer than 52 characters",
    ),
    "an engine of others that cannot be reached": (
        demo(settings={"foreign": "vllm", "foreign_url": "http://vllm:8000"}),
        "networkPolicy.engineEgress is empty",
    ),
    "journal in emptyDir": (demo(storage={"emptyDir": True}), "engines.demo.storage.emptyDir loses the journal"),
    "all journals in emptyDir": ({"engineDefaults": {"storage": {"emptyDir": True}}}, "emptyDir loses the journal"),
    "spool in emptyDir": ({"sharedStorage": {"emptyDir": True}}, "sharedStorage.emptyDir loses usage"),
    "two pods on one volume": (
        {"sharedStorage": {"accessMode": "ReadWriteOnce"}},
        "ReadWriteOnce cannot be mounted by several gateways",
    ),
    "grace of gateways": (
        gateway(terminationGracePeriodSeconds=80),
        "gateway.terminationGracePeriodSeconds 80 cuts running requests: preStopSeconds + drainSeconds + 41 is 81",
    ),
    "grace of engines": (demo(drainSeconds=600, terminationGracePeriodSeconds=600), "preStopSeconds + drainSeconds +"),
    "grace of workers": ({"worker": {"terminationGracePeriodSeconds": 30}}, "worker.terminationGracePeriodSeconds 30"),
    "drain by a flag": (gateway(extraArgs=["--drain-timeout=600"]), "use drainSeconds instead"),
    "drain by the environment": (
        demo(extraEnv=[{"name": "TURNPIKE_DRAIN_TIMEOUT", "value": "600"}]),
        "use drainSeconds instead",
    ),
    "unknown value": ({"gatway": {"replicas": 2}}, "gatway"),
    "unknown setting": (gateway(settings={"body_limt": 1}), "body_limt"),
    "setting of another role": (gateway(settings={"max_running": 1}), "max_running"),
    "name of an engine": ({"engines": {"Demo": {"model": "/a"}}}, "Demo"),
    "taken name": ({"engines": {"gateway": {"model": "/a"}}}, "gateway"),
    "ingress without host": (gateway(ingress={"enabled": True}), "gateway.ingress.host is missing"),
    "KEDA without Prometheus": (demo(keda={"enabled": True}), "engines.demo.keda.serverAddress is missing"),
    "KEDA upside down": (demo(keda={**KEDA, "minReplicas": 9}), "minReplicas is above maxReplicas"),
    "no node can be drained": (demo(replicas=2, podDisruptionBudget={"minAvailable": 2}), "lets no node be drained"),
}


def render(values: Mapping[str, Any], folder: Path) -> list[dict[str, Any]]:
    rendered = run_helm("template", "release", str(CHART), values=over(LEAST, values), folder=folder)
    assert rendered.returncode == 0, rendered.stderr
    (folder / "manifests.yaml").write_text(rendered.stdout)
    return [one for one in yaml.safe_load_all(rendered.stdout) if one]


def pods(manifests: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for one in manifests:
        if "template" in one.get("spec", {}):
            yield one["metadata"]["name"], one["spec"]["template"]["spec"]


def environment(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Of its container, in which no name is given twice."""
    listed = pod["containers"][0]["env"]
    named = {variable["name"]: variable.get("value") for variable in listed}
    assert len(named) == len(listed)
    return named


def validated(file: Path, version: str) -> subprocess.CompletedProcess[str]:
    words = [ENVIRONMENT / "bin" / "kubernetes-validate", "--strict", "--kubernetes-version", version, file]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("name", GOOD)
def test_values_are_rendered_linted_and_valid(name: str, tmp_path: Path) -> None:
    manifests = render(GOOD[name], tmp_path)
    linted = run_helm("lint", "--strict", str(CHART), values=over(LEAST, GOOD[name]), folder=tmp_path)
    assert linted.returncode == 0, linted.stdout
    file = tmp_path / "known.yaml"
    file.write_text(yaml.safe_dump_all([one for one in manifests if one["kind"] not in OF_OPERATORS]))
    for version in VERSIONS:
        checked = validated(file, version)
        assert checked.returncode == 0, checked.stdout + checked.stderr
    identities = [(one["kind"], one["metadata"]["name"]) for one in manifests]
    assert len(set(identities)) == len(identities)
    for owner, pod in pods(manifests):
        assert_hardened(pod)
        if owner.endswith("migrations"):
            continue
        container = pod["containers"][0]
        sleep = int(container.get("lifecycle", {}).get("preStop", {"exec": {"command": [0]}})["exec"]["command"][-1])
        drain = float(environment(pod).get("TURNPIKE_DRAIN_TIMEOUT") or 0)
        assert pod["terminationGracePeriodSeconds"] > sleep + drain + 40, owner
        assert {"livenessProbe", "startupProbe"} <= set(container)


def assert_hardened(pod: Mapping[str, Any]) -> None:
    """No token, no service's variables, no root, nothing to write to; requests and limits."""
    assert (pod["automountServiceAccountToken"], pod["enableServiceLinks"]) == (False, False)
    assert pod["securityContext"]["runAsNonRoot"]
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        security = container["securityContext"]
        assert (security["readOnlyRootFilesystem"], security["allowPrivilegeEscalation"]) == (True, False)
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert {"requests", "limits"} <= set(container["resources"])


@pytest.mark.parametrize("name", BAD)
def test_values_are_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    values, reason = BAD[name]
    refused = run_helm("template", "release", str(CHART), values=over(LEAST, values), folder=tmp_path)
    assert refused.returncode != 0
    assert reason in refused.stderr


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    refused = run_helm("template", "release", str(CHART), values={}, folder=tmp_path)
    assert [word in refused.stderr for word in ("existingSecret", "linkExistingSecret", "engines is empty")] == [
        True
    ] * 3


def test_the_validator_finds_a_wrong_type(tmp_path: Path) -> None:
    manifests = render({}, tmp_path)
    next(one for one in manifests if one["kind"] == "Deployment")["spec"]["replicas"] = "two"
    file = tmp_path / "wrong.yaml"
    file.write_text(yaml.safe_dump_all(manifests))
    assert validated(file, VERSIONS[0]).returncode != 0


@pytest.mark.parametrize("role", [GATEWAY, WORKER, ENGINE])
def test_every_setting_comes_to_its_role(role: str, tmp_path: Path) -> None:
    pod = dict(pods(render(GOOD[f"every setting of {role}s"], tmp_path)))
    named = environment(pod["release-turnpike-" + {ENGINE: "demo"}.get(role, role)])
    for name in names_of(role):
        written = example(role, name)
        assert role in (describe(name).extra or {})["roles"]
        assert named[environment_name(name)] in (
            str(written),
            str(written).lower(),
            f"{written:g}" if isinstance(written, float) else "",
        )


def test_only_gateways_reach_engines_and_look_them_up(tmp_path: Path) -> None:
    manifests = render({}, tmp_path)
    policies = {one["metadata"]["name"]: one["spec"] for one in manifests if one["kind"] == "NetworkPolicy"}
    (rule,) = policies["release-turnpike-engines"]["ingress"]
    assert rule["ports"] == [{"port": 7700, "protocol": "TCP"}]
    (peer,) = rule["from"]
    labels = {
        one["metadata"]["name"]: one["spec"]["template"]["metadata"]["labels"]
        for one in manifests
        if "template" in one.get("spec", {})
    }
    wanted = peer["podSelector"]["matchLabels"].items()
    assert [name for name, given in labels.items() if wanted <= given.items()] == ["release-turnpike-gateway"]
    assert policies["release-turnpike-engines"]["egress"] == []
    service = next(
        one for one in manifests if one["metadata"]["name"] == "release-turnpike-engines" and one["kind"] == "Service"
    )
    assert (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]) == ("None", True)
    assert service["spec"]["selector"].items() <= labels["release-turnpike-demo"].items()
    found = environment(dict(pods(manifests))["release-turnpike-gateway"])["TURNPIKE_REPLICAS"]
    assert found == "dns:release-turnpike-engines.default.svc.cluster.local.:7700"


def test_autoscalers_alone_say_how_many(tmp_path: Path) -> None:
    manifests = render(over(GOOD["scaled engines"], GOOD["autoscaled gateways"]), tmp_path)
    kinds = {one["kind"]: one["spec"] for one in manifests}
    assert "replicas" not in kinds["StatefulSet"]
    assert [
        ("replicas" in one["spec"])
        for one in manifests
        if one["metadata"]["name"] == "release-turnpike-gateway" and one["kind"] == "Deployment"
    ] == [False]
    query = kinds["ScaledObject"]["triggers"][0]["metadata"]["query"]
    assert query == 'sum(max by (replica) (turnpike_replica_waiting{replica=~"release-turnpike-demo-[0-9]+"}))'


def test_the_alerts_are_those_of_deploy(tmp_path: Path) -> None:
    manifests = render(GOOD["monitored"], tmp_path)
    rule = next(one for one in manifests if one["kind"] == "PrometheusRule")
    assert rule["spec"] == {"groups": yaml.safe_load(RULES.read_text())["groups"]}
    monitor = next(one for one in manifests if one["kind"] == "ServiceMonitor")["spec"]["selector"][
        "matchLabels"
    ].items()
    monitored = [one for one in manifests if one["kind"] == "Service" and monitor <= one["metadata"]["labels"].items()]
    assert [[port["name"] for port in one["spec"]["ports"]] for one in monitored] == [["metrics"]]


def test_a_journal_outlives_its_pod_and_a_spool_the_release(tmp_path: Path) -> None:
    manifests = render({}, tmp_path)
    engine = next(one for one in manifests if one["kind"] == "StatefulSet")["spec"]
    assert engine["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    assert [claim["metadata"]["name"] for claim in engine["volumeClaimTemplates"]] == ["data"]
    claim = next(one for one in manifests if one["kind"] == "PersistentVolumeClaim")
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
