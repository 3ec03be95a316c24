"""The chart and the Kustomize bases: what they give is what Kubernetes takes, and runs as hardened as they promise."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml
from cryptography import x509

from devkit.processes.programs import program
from remora import config
from remora.cli import group
from remora.config import Settings
from remora.servers import tokens

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/remora"
VALUES = sorted((ROOT / "deploy/helm/values").glob("*.yaml"))
KUSTOMIZE = ROOT / "deploy/kustomize"
RELEASES = ("1.33.0", "1.37.0")
"""The oldest and the newest release of Kubernetes whose schemas are compared with."""

pytestmark = [
    pytest.mark.full("the chart is a release's"),
    pytest.mark.timeout(1800),  # helm is built where it is missing
]

OPERATORS = {"PodMonitor", "PrometheusRule"}
"""Resources of the Prometheus operator, which Kubernetes itself has no schema of."""

Object = dict[str, Any]


@pytest.fixture(scope="session")
def helm() -> str:
    """Helm; missing, with nothing to build it by, it skips the test on a laptop and fails it in CI."""
    if not shutil.which("helm"):
        program("go", "golang")
    done = subprocess.run([ROOT / "scripts/dev/go-tool", "helm"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def rendered(helm: str, *options: str | Path) -> list[Object]:
    """Every object that the chart gives with these options."""
    done = subprocess.run(
        [helm, "template", "remora", CHART, *options],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def refusal(helm: str, *options: str) -> str:
    """Why the chart is not rendered."""
    done = subprocess.run([helm, "template", "remora", CHART, *options], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    return done.stderr


def only(objects: list[Object], kind: str) -> Object:
    """The one object of a kind."""
    (found,) = [each for each in objects if each["kind"] == kind]
    return found


def pods(objects: list[Object]) -> Iterator[Object]:
    """The specification of each pod: of the workload, of the pipeline, and of the test."""
    for each in objects:
        if each["kind"] == "CronJob":
            yield each["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        if each["kind"] == "Pod":
            yield each["spec"]
        elif each["kind"] in ("StatefulSet", "Deployment"):
            yield each["spec"]["template"]["spec"]


def daemon(objects: list[Object]) -> tuple[Object, Object]:
    """The specification of the workload's pod, and its container of the daemon."""
    (spec,) = [each["spec"]["template"]["spec"] for each in objects if each["kind"] in ("StatefulSet", "Deployment")]
    (container,) = [each for each in spec["containers"] if each["name"] == "remora"]
    return spec, container


def assert_valid(objects: list[Object]) -> None:
    """Kubernetes knows every field, in the oldest and the newest release."""
    for each in objects:
        if each["kind"] not in OPERATORS:
            for release in RELEASES:
                kubernetes_validate.validate(each, release, strict=True)


def assert_hardened(objects: list[Object]) -> None:
    """No container may do more than write to its volumes, and none gets a token or what Services call themselves."""
    for spec in pods(objects):
        assert (spec["automountServiceAccountToken"], spec["enableServiceLinks"]) == (False, False)
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["limits"]["memory"]


def settings_of(objects: list[Object]) -> Settings:
    """The settings of a daemon that gets the ConfigMap's file; raises where it is refused."""
    spec, _ = daemon(objects)
    (name,) = [each["configMap"]["name"] for each in spec["volumes"] if each["name"] == "config"]
    (text,) = [
        each["data"]["remora.toml"]
        for each in objects
        if each["kind"] == "ConfigMap" and each["metadata"]["name"] == name
    ]
    return config.from_document(tomllib.loads(text), {"REMORA_OWNERSHIP_HOST_ID": "0" * 36})


@pytest.mark.parametrize("values", [None, *VALUES], ids=lambda each: each.stem if each else "default")
def test_the_chart_is_valid_and_hardened(helm: str, values: Path | None) -> None:
    """With its own values and each example's, Helm finds no fault, Kubernetes knows every field, remora the options."""
    given: list[str | Path] = ["--values", values] if values else []
    lint = subprocess.run([helm, "lint", "--strict", CHART, *given], capture_output=True, text=True, check=False)

    objects = rendered(helm, *given)

    assert lint.returncode == 0, lint.stdout
    assert_valid(objects)
    assert_hardened(objects)
    settings = settings_of(objects)
    assert settings.admin.listen == "0.0.0.0:9750"
    assert settings.store.kind == ("rados" if values and values.stem in ("rados", "rook") else "sqlite")


def test_the_embedded_store_has_a_volume_of_its_own(helm: str) -> None:
    """One pod keeps its queues below a volume that no other pod can use, and a new template replaces it when broken."""
    objects = rendered(helm)
    workload = only(objects, "StatefulSet")["spec"]
    spec, container = daemon(objects)
    mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    (claim,) = workload["volumeClaimTemplates"]

    assert (workload["replicas"], workload["podManagementPolicy"]) == (1, "Parallel")
    assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
    assert mounts["/var/lib/remora"] == claim["metadata"]["name"]
    assert settings_of(objects).sqlite.directory == "/var/lib/remora/queues"
    assert spec["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"
    assert container["readinessProbe"]["httpGet"]["path"] == "/-/ready/ingest"
    assert workload["serviceName"] in [each["metadata"]["name"] for each in objects if each["kind"] == "Service"]


def test_further_directories_have_claims_of_their_own(helm: str) -> None:
    """Each is a claim that outlives the release, in a pod that knows it behind the first directory."""
    names = ("b", "a")
    objects = rendered(helm, *(f"--set=persistence.directories.{name}.size=20Gi" for name in names))
    spec, container = daemon(objects)
    claims = {each["metadata"]["name"]: each for each in objects if each["kind"] == "PersistentVolumeClaim"}
    volumes = {each["name"]: each.get("persistentVolumeClaim") for each in spec["volumes"]}
    mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}

    assert settings_of(objects).sqlite.places == (
        "/var/lib/remora/queues", "/srv/remora/a/queues", "/srv/remora/b/queues",
    )  # fmt: skip
    for name in names:
        assert volumes[mounts[f"/srv/remora/{name}"]] == {"claimName": f"remora-{name}"}
        assert claims[f"remora-{name}"]["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
        assert claims[f"remora-{name}"]["spec"]["resources"] == {"requests": {"storage": "20Gi"}}
    assert_valid(objects)
    assert_hardened(objects)


def test_pods_on_a_cluster_hand_over_before_they_stop(helm: str) -> None:
    """Several pods: one more is started before one stops, and that gives its queues away within its time."""
    options = ("--values", VALUES[[each.stem for each in VALUES].index("rados")])
    objects = rendered(helm, *options)
    spec, container = daemon(objects)
    defaults = Settings()
    drain = container["lifecycle"]["preStop"]["exec"]["command"]

    assert only(objects, "Deployment")["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert drain == ["/opt/remora/bin/remora", "drain", "--timeout", "20"]
    mounts = [each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")]
    assert str(Path(defaults.control_socket).parent) in mounts, "the command's way to the daemon"
    assert spec["terminationGracePeriodSeconds"] > (
        int(drain[-1]) + defaults.delivery.drain_timeout_s + 2 * defaults.ownership.release_timeout_s
    )
    assert container["readinessProbe"]["httpGet"]["path"] == "/-/ready"
    _, alone = daemon(rendered(helm, *options, "--set", "replicas=1"))
    assert "lifecycle" not in alone, "there is nobody to hand over to"


def test_no_probe_asks_for_a_broker(helm: str) -> None:
    """Neither a restart nor a rollout depends on Kafka; the pod's own id is its name in locks."""
    for options in ((), ("--values", ROOT / "deploy/helm/values/rados.yaml")):
        _, container = daemon(rendered(helm, *options))
        paths = {container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}

        assert paths <= {"/-/live", "/-/ready", "/-/ready/ingest"}
        assert container["env"][0] == {
            "name": "REMORA_OWNERSHIP_HOST_ID",
            "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}},
        }


def test_another_configuration_rolls_the_pods(helm: str) -> None:
    """Options are those of remora.toml over the chart's own, and pods get another annotation when they change."""
    first, second = rendered(helm), rendered(
        helm, "--set", "config.kafka.compression=zstd", "--set", "config.delivery.list_entries=2000"
    )  # fmt: skip

    checksums = {
        only(each, "StatefulSet")["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
        for each in (first, second)
    }
    assert len(checksums) == 2
    settings = settings_of(second)
    assert (settings.kafka.compression, settings.delivery.list_entries) == ("zstd", 2000)
    assert settings.sqlite == settings_of(first).sqlite


def test_options_of_every_form_are_written_as_toml(helm: str, tmp_path: Path) -> None:
    """Flags, lists, tables and lists of tables reach remora as they stand in the values, with any characters."""
    sections: dict[str, dict[str, Any]] = {
        "quarantine": {"enabled": False},
        "destinations": {"allow": ["10.0.0.0/8", "[fd00::1]:443"], "deny": []},
        "balance": {"weights": {"cpu": 2.5, "memory": 0}},
        "delivery": {"max_unacked": 10_000_000},
        "kafka": {"ca_directories": '/etc/remora/a<b>&"ä\\ {x} = [1]'},
        "shaping": {
            "scope": [
                {"name": "uplink", "of": "host", "meters": {"max": {"guaranteed": "1MB", "burst": "2MB"}}},
                {"name": "each", "of": "topic", "match": ["a*"], "enabled": False},
            ]
        },
    }
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"config": sections}))

    settings, wanted = settings_of(rendered(helm, "--values", values)), config.from_document(sections)

    for name in sections:
        assert getattr(settings, name) == getattr(wanted, name)


def test_rules_and_dashboard_are_those_of_config(helm: str) -> None:
    """The Prometheus operator gets the alerts as they stand in config/, linked to the runbooks' address, and
    Grafana's sidecar the dashboard."""
    objects = rendered(helm, "--values", ROOT / "deploy/helm/values/sqlite.yaml")
    rule, monitor = only(objects, "PrometheusRule"), only(objects, "PodMonitor")
    (dashboard,) = [each for each in objects if each["metadata"]["labels"].get("grafana_dashboard") == "1"]

    assert rule["spec"] == yaml.safe_load((ROOT / "config/alerts.yml").read_text())
    moved = rendered(
        helm, "--values", ROOT / "deploy/helm/values/sqlite.yaml", "--set", "monitoring.runbooks=https://w/r"
    )
    alerts = [each for each in only(moved, "PrometheusRule")["spec"]["groups"][0]["rules"] if "alert" in each]
    assert alerts
    assert all(each["annotations"]["runbook_url"].startswith("https://w/r#remora") for each in alerts)
    assert json.loads(dashboard["data"]["remora.json"]) == json.loads(
        (ROOT / "config/grafana-dashboard.json").read_text()
    )
    labels = only(objects, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert labels[monitor["spec"]["jobLabel"]] == "remora", "the alerts look for this job"


def test_events_from_other_pods_need_a_certificate_and_tokens(helm: str) -> None:
    """The ingest API has a Service, with the certificate and the tokens of the Secrets that are named."""
    objects = rendered(helm, "--values", ROOT / "deploy/helm/values/sqlite.yaml")
    settings = settings_of(objects).ingest
    mounts = {each["mountPath"] for each in daemon(objects)[1]["volumeMounts"]}
    policy = only(objects, "NetworkPolicy")["spec"]

    assert settings.listen == "0.0.0.0:9751"
    assert {str(Path(each).parent) for each in (settings.tls_certificate, settings.tls_key, settings.tokens)} <= mounts
    assert [rule["ports"] for rule in policy["ingress"]] == [[{"port": "admin"}], [{"port": "ingest"}]]
    assert "Secret" not in {each["kind"] for each in objects}


def test_an_installation_takes_events_with_a_token_that_it_makes(helm: str) -> None:
    """Without values the chart makes a token, its digest and a certificate, which the daemon reads."""
    objects = rendered(helm)
    secret = {name: base64.b64decode(value) for name, value in only(objects, "Secret")["data"].items()}
    (volume,) = [each for each in daemon(objects)[0]["volumes"] if each["name"] == "ingest"]
    certificate = x509.load_pem_x509_certificate(secret["tls.crt"])
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value

    grant = tokens.parse(secret["tokens"], "tokens").grant(secret["token"].decode())
    assert grant is not None
    assert grant.allows("any")
    assert secret["token"].startswith(tokens.PREFIX.encode())
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(secret["ca.crt"]))
    assert {"remora", "remora.default.svc", "localhost"} <= set(names.get_values_for_type(x509.DNSName))
    assert {each["secret"]["name"] for each in volume["projected"]["sources"]} == {"remora-ingest"}
    assert settings_of(objects).ingest.listen == "0.0.0.0:9751"
    without = rendered(helm, "--set", "ingest.service=false")
    assert "Secret" not in {each["kind"] for each in without}
    assert settings_of(without).ingest.listen == Settings().ingest.listen


def test_topics_are_made_before_the_daemon_starts(helm: str, tmp_path: Path) -> None:
    """The topics of the values are a file that `remora topic apply` takes, in a container before the daemon's; another
    topic rolls the pods."""
    values = tmp_path / "values.yaml"
    given = {"endpoint": "kafka://broker:9093", "shards": 3, "args": {"use-ssl": True}, "time-to-live": "1d"}
    values.write_text(yaml.safe_dump({"topics": {"orders": given, "audit": {"endpoint": "http://audit/"}}}))

    objects = rendered(helm, "--values", values)

    spec, _ = daemon(objects)
    (text,) = [each["data"]["topics.toml"] for each in objects if "topics.toml" in each.get("data", {})]
    assert tomllib.loads(text) == {"topic": {"orders": given, "audit": {"endpoint": "http://audit/"}}}
    assert [each["name"] for each in spec["initContainers"]] == ["check-config", "topics"]
    assert spec["initContainers"][1]["args"] == ["topic", "apply", "-f", "/etc/remora/topics.toml"]
    assert_valid(objects)
    assert_hardened(objects)
    (tmp_path / "topics.toml").write_text(text)
    (tmp_path / "remora.toml").write_text(f'[sqlite]\ndirectory = "{tmp_path}/queues"\n')
    made = subprocess.run(
        [sys.executable, "-m", "remora", "topic", "apply", "-f", "topics.toml", "-c", "remora.toml"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    assert "orders" in made.stdout
    checksums = {
        only(each, "StatefulSet")["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
        for each in (objects, rendered(helm))
    }
    assert len(checksums) == 2


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--set", "knd=rados"), "knd"),
        (("--set", "kind=mysql"), "kind"),
        (("--set", "kind=rados"), "ceph"),
        (("--set", "config.kafka.compression=null,config.kafka.sizes[0]=1"), "config"),
        (("--set", "terminationGracePeriodSeconds=5"), "terminationGracePeriodSeconds"),
        (("--set", "pipeline.enabled=true"), "land"),
        (("--set", "pipeline.trigger=soon"), "trigger"),
        (("--set", "persistence.directories.disk2.storageClassName=x"), "size"),
        (("--set", "persistence.directories.a_b.size=1Gi"), "a_b"),
    ],
)
def test_wrong_values_are_refused(helm: str, options: tuple[str, ...], named: str) -> None:
    """The chart's schema names the value that is misspelt, missing or impossible."""
    assert named in refusal(helm, *options)


def test_rooks_client_has_the_capabilities_of_the_readme(helm: str) -> None:
    """The CephClient may do what docs/ceph.md says for the default zone; the chart reads its Secret and its name."""
    client = yaml.safe_load((ROOT / "deploy/rook/cephclient.yaml").read_text())
    objects = rendered(helm, "--values", ROOT / "deploy/helm/values/rook.yaml")
    spec, _ = daemon(objects)
    (writer,) = [each for each in spec["initContainers"] if each["name"] == "ceph-conf"]
    secrets = {each["valueFrom"]["secretKeyRef"]["name"] for each in writer["env"] if "valueFrom" in each}
    zone = settings_of(objects).rados.zone

    osd = client["spec"]["caps"]["osd"].replace(f"pool={zone}.", "pool=default.")
    assert f"mon '{client['spec']['caps']['mon']}' osd '{osd}'" in (ROOT / "docs/ceph.md").read_text()
    assert settings_of(objects).rados.name == f"client.{client['metadata']['name']}"
    assert secrets == {"rook-ceph-config", f"rook-ceph-client-{client['metadata']['name']}"}


def test_rooks_secrets_become_librados_files(helm: str, tmp_path: Path) -> None:
    """The script that runs before the daemon writes a ceph.conf and a keyring that only its user can read."""
    spec, _ = daemon(rendered(helm, "--values", ROOT / "deploy/helm/values/rook.yaml"))
    script = spec["initContainers"][0]["command"][2].replace("/etc/ceph", str(tmp_path))
    given = {"CEPH_CLIENT": "remora", "ROOK_MON_HOST": "[v2:10.0.0.1:3300,v1:10.0.0.1:6789]", "CEPH_KEY": "AQ=="}

    subprocess.run([sys.executable, "-c", script], env=given, check=True)

    keyring = tmp_path / "ceph.client.remora.keyring"
    assert (tmp_path / "ceph.conf").read_text() == f"[global]\nmon_host = {given['ROOK_MON_HOST']}\n"
    assert (keyring.read_text(), keyring.stat().st_mode & 0o777) == ("[client.remora]\nkey = AQ==\n", 0o600)


def test_the_kustomize_bases_are_the_charts(helm: str, tmp_path: Path) -> None:
    """What lies in deploy/kustomize is what scripts/kustomize makes of the chart."""
    made = subprocess.run(
        [ROOT / "scripts/kustomize", tmp_path], capture_output=True, text=True, check=False,
        env={**os.environ, "PATH": f"{Path(helm).parent}:{os.environ['PATH']}"},
    )  # fmt: skip

    assert made.returncode == 0, made.stderr
    for kind in ("sqlite", "rados"):
        for name in ("remora.yaml", "remora.toml"):
            assert (KUSTOMIZE / kind / name).read_text() == (tmp_path / kind / name).read_text()


@pytest.mark.parametrize("name", ["sqlite", "rados", "example"])
def test_kustomize_gives_what_kubernetes_takes(name: str) -> None:
    """Each folder of deploy/kustomize builds, is valid and hardened, and its configuration is taken by remora."""
    done = subprocess.run(
        [program("kubectl", "kubernetes-client"), "kustomize", KUSTOMIZE / name],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    objects = list(yaml.safe_load_all(done.stdout))
    assert_valid(objects)
    assert_hardened(objects)
    settings = settings_of(objects)
    assert settings.store.kind == ("rados" if name == "rados" else "sqlite")
    assert settings.delivery.mode == ("exactly-once" if name == "example" else "at-least-once")


def pipeline_pods(objects: list[Object]) -> dict[str, Object]:
    """The specification of each pod of the pipeline, by its workload's kind and name."""
    templates = {
        f"{each['kind']}/{each['metadata']['name']}": each["spec"].get("jobTemplate", each)["spec"]["template"]
        for each in objects
        if each["metadata"].get("labels", {}).get("app.kubernetes.io/name") == "remora-pipeline"
    }
    return {name: template["spec"] for name, template in templates.items()}


def assert_taken(container: Object, secret: Path) -> None:
    """The command line takes the container's arguments; `secret` is the folder of the Secret's files."""
    command: click.Command = group
    args = [each.replace("/etc/remora/pipeline", str(secret)) for each in container["args"]]
    while isinstance(command, click.Group):
        name, *args = args
        found = command.get_command(click.Context(command), name)
        assert found is not None, name
        command = found
    command.make_context(command.name, args)


def test_a_schedule_lands_and_then_brings_up_the_inventory(helm: str, tmp_path: Path) -> None:
    """The CronJob runs one landing at a time, the inventory behind it, with arguments that the command line takes."""
    (tmp_path / "catalog").write_text("token=secret\n")
    objects = rendered(helm, "--values", ROOT / "deploy/helm/values/pipeline.yaml")

    job = only(objects, "CronJob")["spec"]
    (spec,) = pipeline_pods(objects).values()

    assert (job["concurrencyPolicy"], job["jobTemplate"]["spec"]["backoffLimit"]) == ("Forbid", 0)
    containers = [*spec["initContainers"], *spec["containers"]]
    assert [each["args"][:2] for each in containers] == [["pipeline", "land"], ["pipeline", "inventory"]]
    for each in containers:
        assert_taken(each, tmp_path)
        assert each["image"].startswith("registry.example.com/remora-pipeline:")
        assert {mount["mountPath"] for mount in each["volumeMounts"]} == {"/tmp", "/etc/remora/pipeline"}


def test_a_trigger_lands_without_end(helm: str, tmp_path: Path) -> None:
    """With a trigger one pod lands, and is gone before another one starts; the schedule is the inventory's alone."""
    values = tmp_path / "values.yaml"
    (tmp_path / "landed").mkdir()
    land = ["--bootstrap", "b:9092", "--topic", "t", "--out", str(tmp_path / "landed")]
    inventory = [str(tmp_path / "landed"), "--out", str(tmp_path / "inventory")]
    given = {"enabled": True, "trigger": "1m", "land": land, "inventory": inventory, "claim": "lake"}
    values.write_text(yaml.safe_dump({"pipeline": given}))

    objects = rendered(helm, "--values", values)

    assert_valid(objects)
    assert_hardened(objects)
    found = pipeline_pods(objects)
    assert set(found) == {"Deployment/remora-land", "CronJob/remora-inventory"}
    assert only(objects, "Deployment")["spec"]["strategy"] == {"type": "Recreate"}
    (landing,), (taking,) = (spec["containers"] for spec in found.values())
    assert landing["args"] == ["pipeline", "land", *land, "--trigger", "1m"]
    assert taking["args"] == ["pipeline", "inventory", *inventory]
    for each in (landing, taking):
        assert_taken(each, tmp_path)
        assert "/var/lib/remora-lake" in {mount["mountPath"] for mount in each["volumeMounts"]}


def test_no_service_leads_to_the_pods_of_the_pipeline(helm: str) -> None:
    """What selects the daemon's pods selects none of the pipeline's, and without a value there are none."""
    objects = rendered(helm, "--values", ROOT / "deploy/helm/values/pipeline.yaml")
    labels = only(objects, "CronJob")["spec"]["jobTemplate"]["spec"]["template"]["metadata"]["labels"]

    selectors = [each["spec"]["selector"] for each in objects if each["kind"] == "Service"]
    selectors += [each["spec"]["podSelector"]["matchLabels"] for each in objects if each["kind"] == "NetworkPolicy"]

    assert selectors
    assert not any(selector.items() <= labels.items() for selector in selectors)
    assert pipeline_pods(rendered(helm)) == {}
