"""The files of deploy/ say what their readers understand, and name what is there."""

import json
import pathlib
import re
import sys

import pytest
import yaml

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from front import CONFIG, ROOT, Front, request  # noqa: E402

DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yml").read_text())
KUSTOMIZATION = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text())
MANIFESTS = [document for name in KUSTOMIZATION["resources"] for document in yaml.safe_load_all((DEPLOY / name).read_text())]
SERVICE_KEYS = {"image", "build", "command", "secrets", "depends_on", "restart", "stop_grace_period", "read_only", "tmpfs", "cap_drop",
                "security_opt", "ulimits", "hostname", "environment", "volumes", "ports"}


def variables(text):
    return set(re.findall(r"\$\{?(DROIDSPEAK_[A-Z0-9_]+)", text))


def manifest(kind, name):
    [found] = [document for document in MANIFESTS if (document["kind"], document["metadata"]["name"]) == (kind, name)]
    return found


def container(kind, name):
    [found] = manifest(kind, name)["spec"]["template"]["spec"]["containers"]
    return found


# Compose


def test_compose_has_the_parts_of_the_cluster():
    assert set(COMPOSE) <= {"name", "services", "secrets", "volumes", "x-server"}
    assert set(COMPOSE["services"]) == {"server-1", "server-2", "server-3", "haproxy", "valkey", "prometheus", "grafana"}
    for name, service in COMPOSE["services"].items():
        assert set(service) <= SERVICE_KEYS, name
        assert set(service.get("depends_on", [])) <= set(COMPOSE["services"]), name
        assert set(service.get("secrets", [])) <= set(COMPOSE["secrets"]), name


def test_compose_opens_ports_on_this_machine_only():
    ports = [port for service in COMPOSE["services"].values() for port in service.get("ports", [])]
    assert ports and all(port.startswith("127.0.0.1:") for port in ports)


def test_compose_mounts_what_is_there():
    for service in COMPOSE["services"].values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (DEPLOY / source).is_file() if source.startswith(".") else source in COMPOSE["volumes"], volume
        if "build" in service:
            context = DEPLOY / service["build"]["context"]
            assert (context / service["build"]["dockerfile"]).is_file()


def test_haproxy_gets_all_that_it_reads_from_the_environment():
    needed = variables(CONFIG.read_text())
    assert set(COMPOSE["services"]["haproxy"]["environment"]) == needed
    assert {entry["name"] for entry in container("Deployment", "haproxy")["env"]} == needed


def test_prometheus_asks_services_of_compose():
    config = yaml.safe_load((DEPLOY / "monitoring" / "prometheus.yml").read_text())
    targets = [target for job in config["scrape_configs"] for part in job["static_configs"] for target in part["targets"]]
    assert len(targets) == 4
    for target in targets:
        assert target.split(":")[0] in COMPOSE["services"]


# Image


def test_the_image_builds_by_the_projects_verbs_and_runs_as_nobody_special():
    text = (DEPLOY / "Dockerfile").read_text()
    assert len(re.findall(r"^FROM debian:12-slim", text, re.MULTILINE)) == 2
    [verbs] = re.findall(r"^RUN make (.*)$", text, re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text()
    for verb in verbs.split():
        assert re.search(rf"^{verb}:", makefile, re.MULTILINE), verb
    user = re.search(r"^USER (\d+)$", text, re.MULTILINE)[1]
    assert f"--uid {user} " in text
    assert manifest("StatefulSet", "droidspeak")["spec"]["template"]["spec"]["securityContext"]["runAsUser"] == int(user)


def test_the_images_context_leaves_out_what_git_does():
    left_out = (ROOT / ".dockerignore").read_text().split()
    folders = {line.strip("/") for line in (ROOT / ".gitignore").read_text().split() if line.startswith("/")}
    assert folders | {".git"} <= set(left_out)


# Kubernetes


def test_kustomization_names_files_that_exist():
    files = [*KUSTOMIZATION["resources"], *(file for entry in KUSTOMIZATION["configMapGenerator"] for file in entry["files"])]
    for file in files:
        assert (DEPLOY / file).is_file(), file
        assert (DEPLOY / file).resolve().is_relative_to(DEPLOY), "kustomize reads nothing outside its folder"
    listed = {path.name for path in (DEPLOY / "kubernetes").iterdir()}
    assert listed == {pathlib.Path(file).name for file in KUSTOMIZATION["resources"]}


def test_manifests_select_what_they_make():
    workloads = [document for document in MANIFESTS if document["kind"] in ("Deployment", "StatefulSet")]
    labels = [document["spec"]["template"]["metadata"]["labels"] for document in workloads]
    for document in workloads:
        assert document["spec"]["selector"]["matchLabels"] == document["spec"]["template"]["metadata"]["labels"]
    for document in MANIFESTS:
        if document["kind"] == "Service":
            assert document["spec"]["selector"] in labels
        if document["kind"] == "NetworkPolicy":
            assert document["spec"]["podSelector"]["matchLabels"] in labels


def test_haproxy_names_the_pods_of_the_servers():
    servers = manifest("StatefulSet", "droidspeak")
    service = servers["spec"]["serviceName"]
    assert manifest("Service", service)["spec"]["clusterIP"] == "None"
    names = sorted(entry["value"] for entry in container("Deployment", "haproxy")["env"] if "_SERVER_" in entry["name"])
    assert names == [f"droidspeak-{i}.{service}.{KUSTOMIZATION['namespace']}.svc.cluster.local:8080" for i in range(servers["spec"]["replicas"])]


def test_pods_have_no_more_rights_than_they_need():
    for document in MANIFESTS:
        if document["kind"] not in ("Deployment", "StatefulSet"):
            continue
        pod = document["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] and pod["automountServiceAccountToken"] is False
        for part in pod["containers"]:
            rights = part["securityContext"]
            assert rights["readOnlyRootFilesystem"] and not rights["allowPrivilegeEscalation"] and rights["capabilities"] == {"drop": ["ALL"]}
            assert part["resources"]["limits"]["memory"]


def test_stopping_leaves_time_to_drain():
    """`serve --drain-s` is 30 unless said otherwise."""
    assert manifest("StatefulSet", "droidspeak")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > 30
    assert COMPOSE["services"]["server-1"]["stop_grace_period"] == "45s"
    unit = (ROOT / "packages" / "debian" / "droidspeak.service").read_text()
    assert int(re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)[1]) > 30


# Dashboards


@pytest.fixture(scope="module")
def haproxy_metrics(tmp_path_factory):
    front = Front(tmp_path_factory.mktemp("haproxy") / "log")
    try:
        yield request(front.stats_port, "GET", "/metrics")[2].decode()
    finally:
        front.stop()


def test_dashboard_asks_for_metrics_that_haproxy_has(haproxy_metrics):
    text = (DEPLOY / "monitoring" / "cluster_dashboard.json").read_text()
    asked = set(re.findall(r"haproxy_\w+", text))
    assert len(asked) >= 6
    for name in asked:
        assert f"# TYPE {name} " in haproxy_metrics, name
    labels = set(re.findall(r'haproxy_\w+\{([^}]*)\}', text.replace('\\"', '"')))
    for group in labels:
        for pair in group.split(","):
            assert pair in haproxy_metrics, f"no sample has {pair}"


def test_provisioned_dashboards_have_their_own_names():
    boards = [json.loads((DEPLOY / "monitoring" / name).read_text()) for name in ("grafana_dashboard.json", "cluster_dashboard.json")]
    assert len({board["uid"] for board in boards}) == len({board["title"] for board in boards}) == 2
    config = yaml.safe_load((DEPLOY / "monitoring" / "grafana" / "dashboards.yml").read_text())
    folder = config["providers"][0]["options"]["path"]
    mounted = [volume.split(":")[1] for volume in COMPOSE["services"]["grafana"]["volumes"]]
    assert sum(path.startswith(folder + "/") for path in mounted) == 2
