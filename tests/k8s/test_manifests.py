"""Kubernetes' manifests: rendered, validated, and compared with the programs, files and metrics that they name."""

import functools
import re
import shutil
import subprocess
import tomllib

import jsonschema
import pytest
import yaml

from controller import config as controller_config
from controller.guard import __main__ as guard
from export import config as export_config
from export.__main__ import main as export
from export.fleets import export_fleet
from serving.tf_serving.__main__ import main as serve_config
from serving.tf_serving.config_files import FLAGS, METRICS_PATH
from serving.verify_command import parser as verify_parser
from tests.conftest import GRID, ROOT
from tests.k8s.json_schema import validate, validator

K8S = ROOT / "k8s"
RENDERED = (
    "base", "overlays/single", "overlays/city", "overlays/kserve", "overlays/street", "overlays/signed",
    "overlays/rollout",
)  # fmt: skip
CUSTOM = {
    "ServiceMonitor": "monitoring.coreos.com_v1_ServiceMonitor",
    "PrometheusRule": "monitoring.coreos.com_v1_PrometheusRule",
    "InferenceService": "serving.kserve.io_v1beta1_InferenceService",
    "ServingRuntime": "serving.kserve.io_v1alpha1_ServingRuntime",
}
"""Schemas of custom resources, by kind."""
OWN_VOLUMES = {
    *(("controller", "state"), ("controller", "records"), ("rollout", "ledger"), ("rollout", "server-files")),
    *(("files", "server-files"), ("files", "links")),
}
"""(container, volume) that it may write, beside the exporter's models."""


@functools.cache
def render(folder):
    """The documents of a folder, rendered with kustomize."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed (Debian: kubernetes-client); it renders the manifests")
    done = subprocess.run(["kubectl", "kustomize", str(K8S / folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.load_all(done.stdout, yaml.CSafeLoader) if document]


@pytest.fixture(params=RENDERED)
def rendered(request):
    return render(request.param)


def pods(documents):
    """By (kind, name): a workload's pod template."""
    found = {}
    for document in documents:
        spec = document.get("spec", {})
        if document["kind"] in ("Deployment", "Job"):
            found[document["kind"], document["metadata"]["name"]] = spec["template"]
        elif document["kind"] == "CronJob":
            found["CronJob", document["metadata"]["name"]] = spec["jobTemplate"]["spec"]["template"]
        elif document["kind"] == "ServingRuntime":
            (service,) = [each for each in documents if each["kind"] == "InferenceService"]
            name = service["metadata"]["name"]
            # KServe sets both labels, whatever the predictor's labels are
            labels = {"app": f"isvc.{name}-predictor", "serving.kserve.io/inferenceservice": name}
            template = {"metadata": {"labels": labels}, "spec": {**spec, **service["spec"]["predictor"]}}
            found["ServingRuntime", document["metadata"]["name"]] = template
    return found


def containers(documents):
    """(pod template, container) of every workload."""
    return [
        (pod, container)
        for pod in pods(documents).values()
        for container in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"])
    ]


def container(documents, name):
    return next(each for _, each in containers(documents) if each["name"] == name)


def named(documents, kind):
    return {each["metadata"]["name"]: each for each in documents if each["kind"] == kind}


def environment(documents, container):
    maps = named(documents, "ConfigMap")
    return {
        key: value
        for source in container.get("envFrom", ())
        for key, value in maps[source["configMapRef"]["name"]]["data"].items()
    }


def arguments(documents, container):
    values = environment(documents, container)
    return [re.sub(r"\$\((\w+)\)", lambda match: values[match[1]], text) for text in container.get("args", ())]


def words_of(command, folder, **variables):
    """The words that `greenserve` gets from a container's command."""
    program = folder / "greenserve"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    variables["PATH"] = f"{folder}:/usr/bin:/bin"
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout.splitlines()


def test_every_object_is_valid(rendered):
    for document in rendered:
        if document["kind"] not in CUSTOM:
            validate(document)


@pytest.mark.parametrize("folder", ["overlays/city", "overlays/kserve"])
def test_custom_resources_match_their_schema(folder, shared):
    checked = set()
    for document in render(folder):
        if document["kind"] in CUSTOM:
            judge = validator(shared / "schemas" / f"{CUSTOM[document['kind']]}.json")
            judge.validate(document)
            document = {**document, "spec": {**document["spec"], "mispelt": 1}}
            with pytest.raises(jsonschema.ValidationError):
                judge.validate(document)
            checked.add(document["kind"])
    assert checked == set(CUSTOM) - (
        {"InferenceService", "ServingRuntime"} if "city" in folder else {"ServiceMonitor", "PrometheusRule"}
    )


def test_no_container_runs_as_root_or_can_write_its_image(rendered):
    for pod, each in containers(rendered):
        context = each["securityContext"]
        assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"]
        assert context["capabilities"]["drop"] == ["ALL"]
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        assert pod["spec"]["securityContext"]["runAsGroup"] == pod["spec"]["securityContext"]["runAsUser"] == 65534
        assert each["resources"]["requests"].keys() == {"cpu", "memory"} and "memory" in each["resources"]["limits"]


def test_only_the_exporter_can_write_models_and_nobody_the_city(rendered):
    for _, each in containers(rendered):
        for mount in each["volumeMounts"]:
            may_write = (
                mount["mountPath"] == "/tmp"
                or (each["name"] in ("export", "fleet") and mount["name"] == "models")
                or (each["name"], mount["name"]) in OWN_VOLUMES
            )
            assert may_write or mount["readOnly"] is True, (each["name"], mount)


def test_images_of_the_project_can_be_built(rendered):
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    built = {
        match[1]
        for path in ROOT.glob("[!.]*/**/Dockerfile")
        for match in re.finditer(r"-t (\S+) ", path.read_text())
    }  # fmt: skip
    for _, each in containers(rendered):
        image = each["image"]
        if image != "tensorflow/serving:2.20.0":
            assert image.endswith((f":{version}", f":{version}-sumo")) and image.removesuffix("-sumo") in built


def test_every_path_in_a_command_is_mounted(rendered):
    for _, each in containers(rendered):
        mounts = [mount["mountPath"] for mount in each["volumeMounts"]]
        text = " ".join([*each.get("command", ())[-1:], *each.get("args", ())])
        for path in re.findall(r"(?<![\w.])/(?!usr/bin|bin)[\w/.$()-]+", text):
            assert any(path.startswith(f"{mount}/") or path == mount for mount in mounts), (each["name"], path)
    for pod, each in containers(rendered):
        volumes = {volume["name"] for volume in pod["spec"].get("volumes", ())}
        assert {mount["name"] for mount in each["volumeMounts"]} <= volumes


def test_every_volume_and_setting_exists(rendered):
    maps, claims = named(rendered, "ConfigMap"), named(rendered, "PersistentVolumeClaim")
    for pod in pods(rendered).values():
        for volume in pod["spec"].get("volumes", ()):
            assert "sizeLimit" in volume.get("emptyDir", {"sizeLimit": ""}), "a temporary folder without a bound"
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in claims
            sources = [volume, *volume.get("projected", {}).get("sources", ())]
            assert {source["configMap"]["name"] for source in sources if "configMap" in source} <= maps.keys()
    for _, each in containers(rendered):
        used = set(re.findall(r"\$\((\w+)\)", " ".join(each.get("args", ()))))
        assert used <= environment(rendered, each).keys(), each["name"]


def test_every_port_that_is_named_exists(rendered):
    templates = list(pods(rendered).values())
    for service in named(rendered, "Service").values():
        (template,) = selected(templates, service["spec"]["selector"])
        names = ports_of(template)
        for port in service["spec"]["ports"]:
            assert port["targetPort"] in names or port["targetPort"] in names.values()
            assert names.get(port["targetPort"], port["targetPort"]) == port["port"]
    for policy in named(rendered, "NetworkPolicy").values():
        for template in selected(templates, policy["spec"]["podSelector"]["matchLabels"]):
            names = ports_of(template)
            ports = {port["port"] for rule in policy["spec"].get("ingress", ()) for port in rule["ports"]}
            assert ports <= names.keys() | set(names.values())
    egress = {port["port"] for policy in named(rendered,
    "NetworkPolicy").values() for rule in policy["spec"].get("egress", ())
              for port in rule["ports"]}  # fmt: skip
    settings = environment(rendered, container(rendered, "guard"))
    addresses = [settings["SERVER"], settings["SUMO_ADDRESS"]]
    if ("Job", "rollout") in pods(rendered):
        addresses.append(environment(rendered, container(rendered, "rollout"))["CONTROL_ADDRESS"])
    assert egress == {53, 5353, *(int(address.rpartition(":")[2]) for address in addresses)}
    for _, each in containers(rendered):
        ports = {key for port in each.get("ports", ()) for key in (port["name"], port["containerPort"])}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            for check in each.get(probe, {}).values():
                assert not isinstance(check, dict) or check["port"] in ports


def ports_of(template):
    """Container ports by name, of sidecars too."""
    every = [*template["spec"].get("initContainers", ()), *template["spec"]["containers"]]
    return {port["name"]: port["containerPort"] for each in every for port in each.get("ports", ())}


def selected(templates, labels):
    return [each for each in templates if labels.items() <= each["metadata"]["labels"].items()]


def test_every_selector_matches_pods(rendered):
    templates = list(pods(rendered).values())
    wanted = [service["spec"]["selector"] for service in named(rendered, "Service").values()]
    wanted += [budget["spec"]["selector"]["matchLabels"] for budget in named(rendered, "PodDisruptionBudget").values()]
    wanted += [each["spec"]["selector"]["matchLabels"] for each in named(rendered, "Deployment").values()]
    for policy in named(rendered, "NetworkPolicy").values():
        peers = [*policy["spec"].get("ingress", ()), *policy["spec"].get("egress", ())]
        wanted.append(policy["spec"]["podSelector"]["matchLabels"])
        wanted += [
            peer["podSelector"]["matchLabels"] for rule in peers for side in ("from", "to") for peer in rule.get(side,
            ())
            if "matchLabels" in peer.get("podSelector", ())
        ]  # fmt: skip
    for template in templates:
        spread = template["spec"].get("topologySpreadConstraints", ())
        wanted += [each["labelSelector"]["matchLabels"] for each in spread]
    assert all(selected(templates, labels) for labels in wanted)
    jobs = set(re.findall(r'job="([\w-]+)"', (K8S / "monitoring" / "rules.yaml").read_text()))
    for monitor in named(rendered, "ServiceMonitor").values():
        labels, endpoints = monitor["spec"]["selector"]["matchLabels"], monitor["spec"]["endpoints"]
        services = [
            each for each in named(rendered, "Service").values() if labels.items() <= each["metadata"]["labels"].items()
        ]
        for service in services:
            assert {each["port"] for each in endpoints} <= {port["name"] for port in service["spec"]["ports"]}
            jobs.discard(service["metadata"]["labels"][monitor["spec"]["jobLabel"]])
        assert services and all(each["path"] in ("/metrics", METRICS_PATH) for each in endpoints)
    assert not jobs or not named(rendered, "ServiceMonitor"), (
        f"no ServiceMonitor makes the label job {jobs} of an alert"
    )
    for scaler in named(rendered, "HorizontalPodAutoscaler").values():
        deployment = named(rendered, "Deployment")[scaler["spec"]["scaleTargetRef"]["name"]]
        names = {each["name"] for each in deployment["spec"]["template"]["spec"]["containers"]}
        assert scaler["spec"]["metrics"][0]["containerResource"]["container"] in names
        assert "replicas" not in deployment["spec"], "the autoscaler's number would be reset by each apply"


def test_replicas_share_the_calls_of_one_client(rendered):
    services = named(rendered, "Service").values()
    assert {each["spec"]["clusterIP"] for each in services if each["metadata"]["labels"]["app"] == "tf-serving"} == {
        "None"
    }


@pytest.mark.parametrize(
    "folder", ["base", "overlays/single", "overlays/street", "overlays/kserve", "overlays/rollout"]
)
def test_controller_accepts_its_arguments(folder):
    documents = render(folder)
    parsed = controller_config.parse(
        with_city(arguments(documents, container(documents, "controller")), GRID / "city.toml")
    )
    assert parsed.sumo.attach == ("127.0.0.1", 8814) and not parsed.guard and parsed.http == ("0.0.0.0", 9108)
    assert (
        parsed.models.server == "tf-serving:8500" and parsed.models.version == "stable" and len(parsed.infer_tls) == 8
    )
    assert parsed.models.server.partition(":")[0] in named(documents, "Service")


def test_servers_start_after_their_models_are_verified():
    documents = render("overlays/signed")
    (verify,) = pods(documents)["Deployment", "tf-serving"]["spec"]["initContainers"]
    assert verify["command"] == ["greenserve", "verify"]
    args = verify_parser("greenserve verify").parse_args(verify["args"])
    server = container(documents, "tf-serving")
    for path in (args.model_config_file, args.signed_by):
        assert str(path.parent) in [mount["mountPath"] for mount in verify["volumeMounts"]]
    assert {"name": "models", "mountPath": "/models", "readOnly": True} in verify["volumeMounts"]
    assert all(mount in verify["volumeMounts"] for mount in server["volumeMounts"])
    how = (K8S / "signing" / "kustomization.yaml").read_text()
    for workload in ("Job", "CronJob"):
        spec = pods(documents)[workload, "export"]["spec"]
        for each in (*spec["initContainers"], *spec["containers"]):
            assert each["args"][-1] == "--sign=/signing/key.pem", each["name"]
        secrets = {volume["secret"]["secretName"] for volume in spec["volumes"] if "secret" in volume}
        assert secrets == {"model-signing-key"} and "secret generic model-signing-key --from-file=key.pem" in how
    assert f"secret generic model-signers --from-file={args.signed_by.name}" in how


def with_city(arguments, city):
    place = arguments.index("--city=/city/city.toml")
    return [*arguments[:place], f"--city={city}", *arguments[place + 1 :]]


@pytest.fixture(scope="module")
def fleets(grid_models, tmp_path_factory):
    """The sample city's models, and what the Job's second container makes of them."""
    folder = tmp_path_factory.mktemp("fleets") / "models"
    shutil.copytree(grid_models, folder)
    assert export(["fleet", "--city", str(GRID / "city.toml"), "--models-dir", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def districts(grid_models, tmp_path_factory):
    """`serve config --shards 2` of the sample city, a city.toml with its districts, their fleets and their files."""
    folder = tmp_path_factory.mktemp("districts")
    shutil.copytree(grid_models, folder / "models")
    flags = ["--models-dir", str(folder / "models"), "--out", str(folder / "config")]
    assert serve_config([*flags, "--city", str(GRID / "city.toml"), "--shards", "2"]) == 0
    text = (GRID / "city.toml").read_text().replace("grid.sumocfg", str(GRID / "grid.sumocfg"))
    city = folder / "city.toml"
    city.write_text(text + (folder / "config" / "districts.toml").read_text())
    assert export(["fleet", "--city", str(city), "--models-dir", str(folder / "models")]) == 0
    shutil.rmtree(folder / "config")
    assert serve_config([*flags, "--city", str(city)]) == 0
    return folder


@pytest.mark.parametrize("number", [1, 2])
def test_district_is_controlled_with_its_own_server(number, districts):
    documents = render("overlays/city")
    pod = pods(documents)["Deployment", f"controller-shard-{number}"]["spec"]
    (each,) = pod["containers"]
    assert {"--tls-ca=/tls/ca.crt", "--tls-certificate=/tls/tls.crt", "--tls-key=/tls/tls.key"} <= set(each["args"])
    args = [text for text in arguments(documents, each) if not text.startswith("--tls-")]
    parsed = controller_config.parse(with_city(args, districts / "city.toml"))
    assert len(parsed.infer_tls) == 4 and parsed.models.server == f"tf-serving-shard-{number}:8500"
    assert parsed.models.server.partition(":")[0] in named(documents, "Service")
    (secret,) = [volume["secret"]["secretName"] for volume in pod["volumes"] if volume["name"] == "tls"]
    assert secret in (K8S / "mtls" / "kustomization.yaml").read_text()
    (sumo_guard,) = pod["initContainers"]
    assert f"--order={number}" in arguments(documents, sumo_guard) and "--only-client" not in sumo_guard["args"]
    assert "--first-controller-timeout-s=900" in sumo_guard["args"]
    assert environment(documents, container(documents, "sumo"))["CLIENTS"] == "2"


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("name", ["flags", "models.config", "monitoring.config"])
def test_districts_files_are_those_of_serve_config(number, name, districts):
    committed = (K8S / "overlays" / "city" / f"shard-{number}" / name).read_text()
    assert committed == (districts / "config" / f"shard-{number}" / name).read_text()


@pytest.mark.parametrize(
    ("folder", "mounted_at"), [("base/server/serving", "/models"), ("overlays/kserve", "/mnt/models")]
)  # fmt: skip
def test_server_files_are_those_of_serve_config(folder, mounted_at, fleets, tmp_path):
    flags = ["--city", str(GRID / "city.toml"), "--models-dir", str(fleets), "--mounted-at", mounted_at]
    assert serve_config([*flags, "--out", str(tmp_path)]) == 0
    for name in ("flags", "models.config", "monitoring.config"):
        assert (K8S / folder / name).read_text() == (tmp_path / name).read_text(), name


def test_every_runbook_url_begins_with_one_variable(tmp_path):
    shutil.copytree(K8S / "monitoring", tmp_path / "monitoring")
    path = tmp_path / "monitoring" / "kustomization.yaml"
    url = "https://docs.example.org/runbook.html"
    path.write_text(path.read_text().replace("url=docs/runbook.md", f"url={url}"))
    (tmp_path / "kustomization.yaml").write_text("components: [monitoring]\n")
    documents = render(tmp_path)
    rules = named(documents, "PrometheusRule")["greenserve"]["spec"]["groups"][0]["rules"]
    assert rules and all(rule["annotations"]["runbook_url"] == f"{url}#{rule['alert'].lower()}" for rule in rules)
    assert "greenserve-runbook" not in named(documents, "ConfigMap")


def mounted_files(documents):
    """By server: the content of its files out of ConfigMaps."""
    maps, found = named(documents, "ConfigMap"), []
    for pod, each in containers(documents):
        if each["image"].startswith("tensorflow/"):
            (volume,) = [volume for volume in pod["spec"]["volumes"] if volume["name"] == "config"]
            sources = [
                source["configMap"]
                for source in volume.get("projected", {}).get("sources", [volume])
                if "configMap" in source
            ]
            parts = [maps[source["name"]]["data"] for source in sources]
            assert len({name for part in parts for name in part}) == sum(map(len, parts)), "a file is in two maps"
            found.append({name: text for part in parts for name, text in part.items()})
    return found


def test_changed_flags_restart_servers_and_changed_models_do_not(tmp_path):
    templates = []
    for file in (None, "models.config", "flags"):
        folder = tmp_path / str(file)
        shutil.copytree(K8S / "base" / "server", folder)
        if file:
            with (folder / "serving" / file).open("a") as appended:
                appended.write("# changed\n")
        templates.append(pods(render(folder))["Deployment", "tf-serving"])
    before, with_models, with_flags = templates
    assert before == with_models != with_flags


def test_server_is_started_with_flags_that_it_has(rendered, shared):
    known = set(re.findall(r"^\s*--(\w+)=", (shared / "tfserving-2.20-help.txt").read_text(), re.M))
    for pod, each in containers(rendered):
        if each["image"].startswith("tensorflow/") and each["name"] != "files":
            start = "exec /usr/bin/tensorflow_model_server $(cat /config/flags)"
            secrets = [
                source for volume in pod["spec"]["volumes"] for source in volume.get("projected", {}).get("sources", ())
            ]
            tls = " --ssl_config_file=/config/ssl.config" if any("secret" in source for source in secrets) else ""
            assert each["command"] == ["/bin/sh", "-c", start + tls]
    files = mounted_files(rendered)
    for data in files:
        lines = data["flags"].splitlines()
        assert lines[: len(FLAGS)] == list(FLAGS)
        assert {line.removeprefix("--").partition("=")[0] for line in lines} <= known
        assert set(re.findall(r"=/config/([\w.]+)", data["flags"])) == set(data) - {"flags"}
        assert METRICS_PATH in data["monitoring.config"]
    assert files


def test_secret_with_the_servers_key_is_mounted_beside_its_other_files():
    for number in (1, 2):
        pod = pods(render("overlays/city"))["Deployment", f"tf-serving-shard-{number}"]["spec"]
        (config,) = [volume["projected"]["sources"] for volume in pod["volumes"] if volume["name"] == "config"]
        (secret,) = [source["secret"] for source in config if "secret" in source]
        assert secret["items"] == [{"key": "ssl.config", "path": "ssl.config"}]
        assert (
            f"secret generic {secret['name']} --from-file=ssl.config"
            in (K8S / "mtls" / "kustomization.yaml").read_text()
        )
        (server,) = pod["containers"]
        assert server["readinessProbe"]["tcpSocket"] == {"port": "grpc"} and "grpc" not in server["startupProbe"]


def test_liveness_of_controllers_and_guards_is_that_of_their_http_ports(rendered):
    """A probe of the guard's TraCI port would count as a controller."""
    for each in (each for _, each in containers(rendered) if each["name"] == "controller"):
        assert each["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "http"}
        assert each["readinessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    guards = [each for _, each in containers(rendered) if each["name"] == "guard"]
    assert guards
    for each in guards:
        assert each["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "guard-http"}
        assert not each.keys() & {"readinessProbe", "startupProbe"}
        args = guard.parse(with_city(arguments(rendered, each), GRID / "city.toml"))
        assert args.http == ("0.0.0.0", each["ports"][0]["containerPort"])


def test_controllers_reach_and_are_reached_by_labelled_peers_only(rendered):
    policies = [
        each["spec"] for name, each in named(rendered, "NetworkPolicy").items() if name.startswith("controller")
    ]
    assert policies
    for policy in policies:
        assert all(
            rule.get("from") and all("namespaceSelector" in peer for peer in rule["from"]) for rule in policy["ingress"]
        )
        every = [peer for rule in policy["egress"] for peer in rule.get("to", [{}])]
        peers = [peer for peer in every if peer.get("podSelector")]
        assert [peer for peer in every if peer not in peers] == [{"ipBlock": {"cidr": "169.254.20.10/32"}}], "NodeLocal"
        assert [each for peer in peers for each in peer["podSelector"].get("matchExpressions", ())] == [
            {"key": "app", "operator": "In", "values": ["sumo"]},
            {"key": "k8s-app", "operator": "In", "values": ["kube-dns"]},
            {"key": "dns.operator.openshift.io/daemonset-dns", "operator": "Exists"},
        ], "matchLabels would get the labels of a district, which SUMO and the DNS do not have"
        sources = [peer["namespaceSelector"]["matchLabels"] for rule in policy["ingress"] for peer in rule["from"]]
        assert sources == [{"kubernetes.io/metadata.name": "monitoring"}]


def test_guard_holds_the_connection_with_the_citys_watchdog(tmp_path):
    documents = render("base")
    city = tmp_path / "city.toml"
    city.write_text("[controller]\nwatchdog_s = 7\n")
    each = container(documents, "guard")
    assert each["command"] == ["greenserve", "guard"]
    args = guard.parse(with_city(arguments(documents, each), city))
    assert args.is_only_client and args.first_controller_timeout_s >= 600, "longer than the kubelet's back-off"
    assert (args.sumo.attach, args.port, args.sumo.order) == (("sumo", 8813), 8814, 1) and not args.sumo.arguments
    assert args.watchdog_s == 7 and each["restartPolicy"] == "Always"


def test_sumo_is_started_on_the_sample_city_and_has_no_probes():
    documents = render("overlays/single")
    each = container(documents, "sumo")
    assert not [key for key in each if key.endswith("Probe")], "SUMO would count a probe as a client"
    options = dict(text.removeprefix("--").partition("=")[::2] for text in arguments(documents, each))
    assert (GRID / options["configuration-file"].removeprefix("/city/")).is_file()
    address = environment(documents, container(documents, "guard"))["SUMO_ADDRESS"]
    assert address == f"sumo:{options['remote-port']}" and "sumo" in named(documents, "Service")
    assert options["num-clients"] == "1" and "no-step-log" in options


def test_sumo_is_started_again_after_its_end_but_not_after_a_wrong_file(tmp_path):
    """The loop of the manifest, with a program in SUMO's place that ends at once."""
    command = container(render("overlays/single"), "sumo")["command"]
    runs = tmp_path / "runs"
    sumo, date, sleep = (tmp_path / name for name in ("sumo", "date", "sleep"))
    sumo.write_text(f'#!/bin/sh\necho "$@" >> {runs}\n[ $(wc -l < {runs}) -lt 3 ] || exit 7\n')
    date.write_text("#!/bin/sh\necho 0\n")
    sleep.write_text("#!/bin/sh\n")
    for path in (sumo, date, sleep):
        path.chmod(0o755)
    done = subprocess.run([*command, "--num-clients=1"], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, timeout=10)
    assert done.returncode == 7 and runs.read_text() == "--num-clients=1\n" * 3


def test_exporter_accepts_its_arguments_and_replaces_nothing():
    documents = render("overlays/single")
    nightly = named(documents, "CronJob")["export"]["spec"]
    assert (
        nightly["timeZone"] and nightly["startingDeadlineSeconds"] >= 600 and nightly["concurrencyPolicy"] == "Forbid"
    )
    for kind in ("Job", "CronJob"):
        (each,), (fleet,) = (pods(documents)[kind, "export"]["spec"][key] for key in ("initContainers", "containers"))
        built = export_fleet.parse(with_city(fleet["args"][1:], GRID / "city.toml"))
        assert fleet["args"][0] == "fleet" and built.skip_existing and not built.overwrite and built.keep is None
        assert each["args"][0] == "export" and each["command"][2] == 'exec greenserve "$@" $EXPORT_FLAGS'
        parsed = export_config.parse(with_city(each["args"][1:], GRID / "city.toml"))
        assert parsed.skip_existing and not parsed.overwrite and parsed.keep is None
        assert str(parsed.models_dir) == "/models" and parsed.tl == ["all"]


def test_export_of_a_street_city_is_the_shipped_policy_with_enough_memory(tmp_path):
    documents = render("overlays/street")
    for kind in ("Job", "CronJob"):
        (each,), (fleet,) = (pods(documents)[kind, "export"]["spec"][key] for key in ("initContainers", "containers"))
        assert fleet["resources"]["limits"]["memory"] == "2Gi", "a fleet of 1,000 TLs takes 1.0 GB"
        flags = environment(documents, each)["EXPORT_FLAGS"].split()
        assert export_config.parse(with_city([*each["args"][1:], *flags], GRID / "city.toml")).pretrained
    for flags, words in (("", []), ("--pretrained --keep 3", ["--pretrained", "--keep", "3"])):
        given = words_of([*each["command"], *each["args"]], tmp_path, EXPORT_FLAGS=flags)
        assert " ".join(given).split() == [*" ".join(each["args"]).split(), *words]


def test_every_pod_has_a_network_policy_for_both_directions(rendered):
    policies = named(rendered, "NetworkPolicy").values()
    assert all(policy["spec"]["policyTypes"] == ["Ingress", "Egress"] for policy in policies)
    for name, template in pods(rendered).items():
        selectors = [policy["spec"]["podSelector"]["matchLabels"] for policy in policies]
        assert any(selected([template], labels) for labels in selectors), name
    for name, policy in named(rendered, "NetworkPolicy").items():
        if name == "export":
            assert not policy["spec"].keys() & {"ingress", "egress"}, "it needs no connection"


def test_nothing_but_the_operator_ends_a_simulation_or_its_controller(rendered):
    budgets = {name: each["spec"] for name, each in named(rendered, "PodDisruptionBudget").items()}
    classes = named(rendered, "PriorityClass")
    found = [name for kind, name in pods(rendered) if kind == "Deployment" and not name.startswith("tf-serving")]
    assert found
    for name in found:
        template = pods(rendered)["Deployment", name]
        assert template["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
        assert template["spec"]["priorityClassName"] in classes
        assert budgets[name]["maxUnavailable"] == 0 and budgets[name]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_modes_of_operators_outlive_the_controllers_pod(rendered):
    for (kind, name), template in pods(rendered).items():
        if kind == "Deployment" and name.startswith("controller"):
            (each,) = template["spec"]["containers"]
            (folder,) = [variable["value"] for variable in each["env"] if variable["name"] == "TMPDIR"]
            (volume,) = [mount["name"] for mount in each["volumeMounts"] if mount["mountPath"] == folder]
            (claim,) = [v["persistentVolumeClaim"] for v in template["spec"]["volumes"] if v["name"] == volume]
            suffix = name.removeprefix("controller")
            assert claim == {"claimName": f"controller-state{suffix}"}, "each controller has its own"
            assert template["spec"]["securityContext"]["fsGroup"] == template["spec"]["securityContext"]["runAsUser"]


def test_objects_have_the_recommended_labels(rendered):
    for document in rendered:
        labels = document["metadata"].get("labels", {})
        if document["kind"] not in ("ServiceMonitor", "PrometheusRule", "ConfigMap"):
            assert labels.get("app.kubernetes.io/part-of") == "greenserve", document["metadata"]["name"]
    for (kind, _), template in pods(rendered).items():
        if kind != "ServingRuntime":
            assert template["metadata"]["labels"]["app.kubernetes.io/name"] == template["metadata"]["labels"]["app"]


def test_shell_pod_can_write_both_volumes_and_may_move_the_servers_labels():
    pod = yaml.safe_load((K8S / "shell.yaml").read_text())
    validate(pod)
    app = pod["metadata"]["labels"]["app"]
    for folder in ("base", "overlays/kserve"):
        peers = named(render(folder), "NetworkPolicy")["tf-serving"]["spec"]["ingress"][0]["from"]
        (expression,) = [each for peer in peers for each in peer["podSelector"].get("matchExpressions", ())]
        assert (expression["key"], expression["operator"]) == ("app", "In") and app in expression["values"]
    claims = {
        volume["persistentVolumeClaim"]["claimName"] for volume in pod["spec"]["volumes"] if "emptyDir" not in volume
    }
    assert all("sizeLimit" in volume.get("emptyDir", {"sizeLimit": ""}) for volume in pod["spec"]["volumes"])
    assert claims == set(named(render("base/storage"), "PersistentVolumeClaim"))
    (each,) = pod["spec"]["containers"]
    (exporter,) = pods(render("overlays/single"))["Job", "export"]["spec"]["containers"]
    assert each["image"] == exporter["image"] and not any(mount.get("readOnly") for mount in each["volumeMounts"])


def test_inference_service_is_a_plain_deployment_of_its_runtime_and_claim():
    documents = render("overlays/kserve")
    (service,) = named(documents, "InferenceService").values()
    assert service["metadata"]["annotations"]["serving.kserve.io/deploymentMode"] == "Standard"
    (runtime,) = named(documents, "ServingRuntime").values()
    model = service["spec"]["predictor"]["model"]
    assert model["runtime"] == runtime["metadata"]["name"]
    assert model["modelFormat"] in [
        {key: each[key] for key in ("name", "version")} for each in runtime["spec"]["supportedModelFormats"]
    ]
    assert model["storageUri"].removeprefix("pvc://") in named(documents, "PersistentVolumeClaim")


def test_controllers_image_has_the_record_and_no_tensorflow():
    text = (ROOT / "controller" / "Dockerfile").read_text()
    assert "ARG EXTRAS=controller\n" in text and '".[record,${EXTRAS}]"' in text
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    installed = extras["controller"] + extras["record"] + extras["sumo"]
    assert not [name for name in installed if "tensorflow" in name or "keras" in name]


@pytest.mark.parametrize("folder", ["controller", "serving/embedded", "export"])
def test_images_are_built_in_two_stages_and_run_without_root(folder):
    text = (ROOT / folder / "Dockerfile").read_text()
    assert "ARG BASE=python:3.11-slim\n" in text and text.count("FROM ${BASE}") == 2
    assert "USER 65534:65534\n" in text and "--only-binary :all:" in text and "--constraint constraints.txt" in text
    for name in re.findall(r"^COPY (\w+) \1$", text, re.M):
        assert (ROOT / name / "__init__.py").is_file()
