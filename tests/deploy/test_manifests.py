"""The Kubernetes manifests are valid, agree with each other, and with the daemon's deadlines and memory bound."""

from __future__ import annotations

import json
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from consumerd.base.settings.processing import FetchSection
from consumerd.service.config.model import parse
from consumerd.service.daemon.signals import FORCE_SECONDS
from tests.deploy.manifests import (
    CHART,
    KUBERNETES,
    ROOT,
    Manifest,
    check_schema,
    container,
    files,
    helm,
    kustomize,
    load,
    mebibytes,
    one,
    plain_environment,
    pod_spec,
    stop_seconds,
)


def base_files() -> list[Manifest]:
    return [each for path, found in files().items() if path.parts[0] == "base" for each in found]


def deployment_file() -> list[Manifest]:
    return load((KUBERNETES / "overlays" / "deployment" / "deployment.yaml").read_text())


RENDERINGS: dict[str, Callable[[], list[Manifest]]] = {
    "files of base": base_files,
    "file of deployment": deployment_file,
    "kustomize base": lambda: kustomize("base"),
    "kustomize deployment": lambda: kustomize("overlays/deployment"),
    "kustomize autoscaling": lambda: kustomize("overlays/autoscaling"),
    "helm StatefulSet": helm,
    "helm Deployment": lambda: helm("kind=Deployment"),
    "helm everything": lambda: helm(
        "autoscaling.enabled=true", "autoscaling.partitions=6", "secretNames[0]=kafka", "stopTimeout=90.5",
        "memory.budget=1024", "podAnnotations.team=data", "nodeSelector.disk=ssd", "env[0].name=A", "env[0].value=b",
        "envFrom[0].secretRef.name=more", "secretNames[1]=tls", "extraVolumes[0].name=cache",
        "extraVolumes[0].emptyDir.sizeLimit=1Gi", "extraVolumeMounts[0].name=cache",
        "extraVolumeMounts[0].mountPath=/cache", "initContainers[0].name=wait", "initContainers[0].image=busybox",
        "serviceAccount.annotations.role=reader", "priorityClassName=high", "podMonitor.enabled=true",
        "prometheusRule.enabled=true", "topologySpreadConstraints[0].maxSkew=1",
        "topologySpreadConstraints[0].topologyKey=zone",
        "topologySpreadConstraints[0].whenUnsatisfiable=ScheduleAnyway",
        "identity=instance_id", "output.storageClassName=nfs", "imagePullSecrets[0].name=pull",
        "tolerations[0].operator=Exists",
    ),
    "helm minimum": lambda: helm(
        "output.enabled=false", "networkPolicy.enabled=false", "podDisruptionBudget.enabled=false",
        "health.metrics=false",
    ),
}  # fmt: skip

rendered = pytest.mark.parametrize("render", RENDERINGS.values(), ids=RENDERINGS)


@rendered
def test_manifests_are_valid(render: Callable[[], list[Manifest]]) -> None:
    check_schema(render())


def test_every_manifest_file_is_valid() -> None:
    found = files()
    assert found
    for manifests in found.values():
        check_schema(manifests)


def test_schema_check_finds_misspelled_fields() -> None:
    (manifest,) = deployment_file()
    container(pod_spec([manifest]))["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        check_schema([manifest])


@rendered
def test_grace_period_is_longer_than_the_daemons_deadline(render: Callable[[], list[Manifest]]) -> None:
    spec = pod_spec(render())
    # The daemon ends a process whose loop is blocked 3 s after its deadline.
    assert spec["terminationGracePeriodSeconds"] >= stop_seconds(spec) + FORCE_SECONDS + 1 + 3


@rendered
def test_memory_fits_the_fetch_budget(render: Callable[[], list[Manifest]]) -> None:
    spec = pod_spec(render())
    budget = int(plain_environment(spec)["CONSUMERD_FETCH__BUDGET"])
    resources = container(spec)["resources"]
    assert mebibytes(resources["limits"]["memory"]) >= budget / 2**20 + 128
    assert resources["requests"]["memory"] == resources["limits"]["memory"]
    assert "cpu" not in resources["limits"]


@rendered
def test_pods_are_locked_down(render: Callable[[], list[Manifest]]) -> None:
    spec = pod_spec(render())
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == 10001  # as in deploy/Dockerfile
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert container(spec)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@rendered
def test_probes_ask_the_daemons_own_endpoints(render: Callable[[], list[Manifest]]) -> None:
    found = container(pod_spec(render()))
    (port,) = [each for each in found["ports"] if each["name"] == "http"]
    paths = {name: found[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {name: get["path"] for name, get in paths.items()} == {
        "startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"
    }  # fmt: skip
    assert {get["port"] for get in paths.values()} == {"http"}
    assert port["containerPort"] == 8080


@rendered
def test_volumes_and_labels_are_consistent(render: Callable[[], list[Manifest]]) -> None:
    manifests = render()
    spec = pod_spec(manifests)
    assert {each["name"] for each in container(spec)["volumeMounts"]} == {each["name"] for each in spec["volumes"]}
    (workload,) = [each for each in manifests if each["kind"] in ("StatefulSet", "Deployment")]
    labels = workload["spec"]["template"]["metadata"]["labels"]
    selectors = [
        each["spec"]["selector"].get("matchLabels", each["spec"]["selector"])
        for each in manifests
        if each["kind"] in ("StatefulSet", "Deployment", "PodDisruptionBudget", "Service")
    ]
    selectors += [each["spec"]["podSelector"]["matchLabels"] for each in manifests if each["kind"] == "NetworkPolicy"]
    (term,) = spec["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    selectors.append(term["podAffinityTerm"]["labelSelector"]["matchLabels"])
    assert all(selector == labels for selector in selectors)


def identity(spec: Manifest) -> dict[str, str]:
    return {
        each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"]
        for each in container(spec)["env"]
        if "valueFrom" in each
    }


@pytest.mark.parametrize(
    ("render", "expected"),
    [
        ("files of base", {"CONSUMERD_GROUP__CONSUMER_ID": "metadata.name"}),
        ("helm StatefulSet", {"CONSUMERD_GROUP__CONSUMER_ID": "metadata.name"}),
        ("helm everything", {"CONSUMERD_GROUP__INSTANCE_ID": "metadata.name"}),
        ("file of deployment", {}),
        ("helm Deployment", {}),
    ],
)
def test_stateful_sets_give_members_stable_ids(render: str, expected: dict[str, str]) -> None:
    assert identity(pod_spec(RENDERINGS[render]())) == expected


def test_deployment_and_stateful_set_run_the_same_pod() -> None:
    base, deployment = pod_spec(base_files()), pod_spec(deployment_file())
    container(base)["env"] = [each for each in container(base)["env"] if "valueFrom" not in each]
    assert base == deployment


def test_chart_and_kustomize_run_the_same_pod() -> None:
    def comparable(manifests: list[Manifest]) -> Any:
        spec = pod_spec(manifests)
        found = container(spec)
        (config,) = [each for each in spec["volumes"] if each["name"] == "config"]
        config["configMap"]["name"] = "consumerd"  # kustomize appends a hash
        found.pop("imagePullPolicy", None)
        found["env"] = [each for each in found["env"] if not each["name"].startswith("CONSUMERD_HEALTH")]
        spec["affinity"] = None  # by labels, the chart's have the release as well
        return spec

    assert comparable(helm()) == comparable(kustomize("base"))


def test_kustomize_deployment_replaces_the_stateful_set() -> None:
    kinds = [each["kind"] for each in kustomize("overlays/deployment")]
    assert "Deployment" in kinds
    assert "StatefulSet" not in kinds


def test_configurations_are_accepted() -> None:
    for text in (
        (KUBERNETES / "base" / "config.toml").read_text(),
        yaml.safe_load((CHART / "values.yaml").read_text())["config"],
    ):
        config = parse(tomllib.loads(text), "a test", environment=False)
        assert config.group.id == "events"
        assert config.fetch.budget == FetchSection().budget == 128 << 20  # what CONSUMERD_FETCH__BUDGET says, too


def test_autoscaling_is_capped_by_the_partition_count() -> None:
    scaler = one(RENDERINGS["helm everything"](), "HorizontalPodAutoscaler")["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (3, 6)
    workload = one(RENDERINGS["helm everything"](), "StatefulSet")["spec"]
    assert "replicas" not in workload  # otherwise each upgrade would undo what the autoscaler did
    assert one(helm("autoscaling.enabled=true", "autoscaling.partitions=2"), "HorizontalPodAutoscaler")["spec"][
        "minReplicas"
    ] == 2  # fmt: skip


def test_autoscaling_examples_agree() -> None:
    found = files()
    (hpa,) = [each for manifests in found.values() for each in manifests if each["kind"] == "HorizontalPodAutoscaler"]
    (keda,) = [each for manifests in found.values() for each in manifests if each["kind"] == "ScaledObject"]
    assert keda["spec"]["scaleTargetRef"] == hpa["spec"]["scaleTargetRef"]
    assert keda["spec"]["maxReplicaCount"] == hpa["spec"]["maxReplicas"]
    assert keda["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == hpa["spec"]["behavior"]
    (metric,) = hpa["spec"]["metrics"]
    (trigger,) = keda["spec"]["triggers"]
    assert metric["external"]["metric"]["name"] in trigger["metadata"]["query"]


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("autoscaling.enabled=true", "autoscaling.partitions is required"),
        ("kind=DaemonSet", "at '/kind': value must be one of 'StatefulSet', 'Deployment'"),
        ("identity=client_id", "at '/identity': value must be one of 'consumer_id', 'instance_id'"),
        ("replicaCount=7", "additional properties 'replicaCount' not allowed"),
        ("image.tga=1", "at '/image': additional properties 'tga' not allowed"),
        ("stopTimeout=soon", "at '/stopTimeout'"),
        ("config=[group", "config is not valid TOML"),
        ("podMonitor.enabled=true,health.metrics=false", "podMonitor.enabled needs health.metrics: true"),
    ],
)
def test_chart_rejects_invalid_values(setting: str, sentence: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        helm(setting)
    assert sentence in caught.value.stderr


def test_chart_sets_deadline_and_memory_from_values() -> None:
    spec = pod_spec(helm("stopTimeout=90.5", "preStopSeconds=0", "memory.budget=1024"))
    assert spec["terminationGracePeriodSeconds"] == 91 + 10
    assert plain_environment(spec)["CONSUMERD_DAEMON__STOP_TIMEOUT"] == "90.5"
    assert plain_environment(spec)["CONSUMERD_FETCH__BUDGET"] == str(1 << 30)
    assert container(spec)["resources"]["limits"]["memory"] == "1408Mi"


def test_chart_values_and_their_schema_have_the_same_keys() -> None:
    def keys(schema: dict[str, Any]) -> dict[str, Any]:
        assert schema["additionalProperties"] is False
        properties = {name: each for name, each in schema["properties"].items() if name != "global"}
        return {name: keys(each) if "properties" in each else None for name, each in properties.items()}

    def shape(values: dict[str, Any]) -> dict[str, Any]:
        return {name: shape(each) if isinstance(each, dict) and each else None for name, each in values.items()}

    schema = json.loads((CHART / "values.schema.json").read_text())
    assert keys(schema) == shape(yaml.safe_load((CHART / "values.yaml").read_text()))


def test_chart_mounts_secrets_in_one_folder() -> None:
    spec = pod_spec(RENDERINGS["helm everything"]())
    (volume,) = [each for each in spec["volumes"] if each["name"] == "secrets"]
    assert [each["secret"]["name"] for each in volume["projected"]["sources"]] == ["kafka", "tls"]
    (mount,) = [each for each in container(spec)["volumeMounts"] if each["name"] == "secrets"]
    assert mount == {"name": "secrets", "mountPath": "/run/secrets/consumerd", "readOnly": True}


def test_chart_spreads_its_own_pods() -> None:
    manifests = RENDERINGS["helm everything"]()
    (constraint,) = pod_spec(manifests)["topologySpreadConstraints"]
    labels = one(manifests, "StatefulSet")["spec"]["selector"]["matchLabels"]
    assert constraint["labelSelector"] == {"matchLabels": labels}
    assert constraint["topologyKey"] == "zone"


def test_chart_uses_an_existing_service_account() -> None:
    manifests = helm("serviceAccount.name=ours")
    assert pod_spec(manifests)["serviceAccountName"] == "ours"
    assert "ServiceAccount" not in [each["kind"] for each in manifests]
    assert one(RENDERINGS["helm everything"](), "ServiceAccount")["metadata"]["annotations"] == {"role": "reader"}


def test_chart_serves_the_prometheus_operator() -> None:
    manifests = RENDERINGS["helm everything"]()
    labels = one(manifests, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    monitor = one(manifests, "PodMonitor")["spec"]
    assert monitor["selector"]["matchLabels"] == labels
    assert monitor["podMetricsEndpoints"] == [{"port": "http", "path": "/metrics", "interval": "30s"}]
    assert "annotations" not in one(manifests, "Service")["metadata"]  # otherwise each member would be scraped twice
    (alerts,) = load((ROOT / "deploy" / "prometheus" / "consumerd-alerts.yaml").read_text())
    assert one(manifests, "PrometheusRule")["spec"] == alerts


def test_pods_that_are_not_ready_do_not_block_a_drain() -> None:
    for manifests in (base_files(), helm()):
        budget = one(manifests, "PodDisruptionBudget")["spec"]
        assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


@pytest.mark.parametrize(
    ("settings", "first"),
    [
        ((), "consumerd: 3 members as a StatefulSet in namespace default."),
        (
            ("kind=Deployment", "autoscaling.enabled=true", "autoscaling.partitions=6"),
            "consumerd: 3 to 6 members as a Deployment in namespace default.",
        ),
    ],
)
def test_chart_notes_say_what_to_do_next(tmp_path: Path, settings: tuple[str, ...], first: str) -> None:
    # `helm template` leaves notes out, and `helm install` needs a cluster.
    chart = shutil.copytree(CHART, tmp_path / "consumerd")
    notes = (chart / "templates" / "NOTES.txt").read_text()
    (chart / "templates" / "_notes.tpl").write_text('{{ define "notes" }}' + notes + "{{ end }}")
    (chart / "templates" / "notes.yaml").write_text(
        'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: notes}\ndata: {notes: {{ include "notes" . | quote }}}\n'
    )
    found = [each for each in helm(*settings, chart=chart) if each["metadata"]["name"] == "notes"]
    lines = found[0]["data"]["notes"].splitlines()
    kind = "deployment" if "kind=Deployment" in settings else "statefulset"
    assert lines[0] == first
    assert f"  kubectl -n default rollout status {kind}/consumerd" in lines
    assert f"  kubectl -n default port-forward {kind}/consumerd 8080" in lines
