"""compose.yaml: valid, and in agreement with the programs, files and scrape configuration that it names."""

import importlib.resources
import json
import re
import tomllib

import jsonschema
import pytest
import yaml

from controller import config as controller_config
from controller.guard import __main__ as guard
from export import config as export_config
from export.fleets import export_fleet
from rollout.__main__ import parser as rollout_parser
from serving.tf_serving.__main__ import _parse as parse_serve_config
from serving.tf_serving.config_files import GRPC_PORT, REST_PORT
from serving.verify_command import parser as verify_parser
from tests.conftest import GRID, ROOT
from tests.k8s.test_manifests import words_of

CITY_MOUNT = "${CITY:-./examples/grid}:/city:ro"


COMPOSE, SIGNED, ROLLOUTS = (
    yaml.safe_load((ROOT / name).read_text())
    for name in ("compose.yaml", "compose.signed.yaml", "compose.rollout.yaml")
)
SERVICES = COMPOSE["services"]


def test_compose_files_match_the_specifications_schema():
    schema = importlib.resources.files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    loaded = json.loads(schema.read_text())
    validator = jsonschema.validators.validator_for(loaded)(loaded)
    for document in (COMPOSE, SIGNED, ROLLOUTS):
        validator.validate(document)
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({**COMPOSE, "services": {"sumo": {"imgae": "x"}}})


def test_everything_of_a_city_starts_after_its_models_are_exported():
    assert SERVICES.keys() == {"export", "tf-serving", "sumo", "guard", "controller", "prometheus", "grafana"}
    for name, service in SERVICES.items():
        for other in service.get("depends_on", ()):
            assert other in SERVICES, name
    for name in ("tf-serving", "sumo"):
        assert SERVICES[name]["depends_on"] == {"export": {"condition": "service_completed_successfully"}}
    assert SERVICES["guard"]["depends_on"] == ["sumo"] and SERVICES["controller"]["depends_on"] == {
        "guard": {"condition": "service_started"},
        "tf-serving": {"condition": "service_healthy"},
    }


def test_every_service_is_bounded_and_every_lasting_one_has_a_health_check():
    assert all("mem_limit" in service for service in SERVICES.values())
    # SUMO would count the connection of a check as a client
    assert {name for name, service in SERVICES.items() if "healthcheck" not in service} == {"export", "sumo"}
    assert "http://127.0.0.1:9108/livez" in SERVICES["controller"]["healthcheck"]["test"][-1]


def test_ports_are_on_loopback_and_inputs_are_read_only():
    for name, service in SERVICES.items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        for volume in service["volumes"]:
            may_write = (
                name in ("export", "prometheus", "controller") and volume.partition(":")[0] in COMPOSE["volumes"]
            )
            assert volume.endswith(":ro") or may_write, (name, volume)
            source = volume.partition(":")[0]
            assert source in COMPOSE["volumes"] or source.startswith("${CITY") or (ROOT / source).exists()
    assert CITY_MOUNT in SERVICES["controller"]["volumes"]


def test_images_are_built_from_this_checkout():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for name in ("export", "sumo", "guard"):
        build = SERVICES[name]["build"]
        dockerfile = (ROOT / build["context"] / build["dockerfile"]).read_text()
        image = SERVICES[name]["image"]
        assert f"-t {image.removesuffix('-sumo')} ." in dockerfile and f":{version}" in image
        assert set(build.get("args", {})) <= set(re.findall(r"^ARG (\w+)", dockerfile, re.M))
    assert SERVICES["controller"]["image"] == SERVICES["guard"]["image"]


def with_city(arguments):
    return [argument.replace("/city/city.toml", str(GRID / "city.toml")) for argument in arguments]


def test_programs_accept_their_arguments():
    parsed = controller_config.parse(with_city(SERVICES["controller"]["command"]))
    guard_args = guard.parse(with_city(SERVICES["guard"]["command"]))
    assert (
        parsed.sumo.attach == ("127.0.0.1", guard_args.port) and not parsed.guard and parsed.models.version == "stable"
    )
    assert (
        parsed.models.server == f"tf-serving:{GRPC_PORT}" and SERVICES["controller"]["network_mode"] == "service:guard"
    )
    sumo = dict(argument.removeprefix("--").partition("=")[::2] for argument in SERVICES["sumo"]["command"])
    assert guard_args.sumo.attach == ("sumo", int(sumo["remote-port"])) and guard_args.is_only_client
    assert sumo["num-clients"] == "1"
    assert sumo["configuration-file"] == "/city/${SUMOCFG:-grid.sumocfg}"
    script = SERVICES["export"]["command"][0].strip()
    first = r"greenserve export (.*) \$\{EXPORT_FLAGS:-\} \$\$SIGN_FLAGS && greenserve fleet (.*) \$\$SIGN_FLAGS && "
    export, fleet, serve = re.fullmatch(
        first + r"\{ \[ -f /config/models.config \] \|\| greenserve serve config (.*); \} && chmod a\+w /config", script
    ).groups()
    exported = export_config.parse(with_city(export.split()))
    assert str(exported.models_dir) == "/models" and exported.skip_existing
    assert export_config.parse(with_city([*export.split(), "--pretrained"])).pretrained
    built = export_fleet.parse(with_city(fleet.split()))
    assert str(built.models_dir) == "/models" and built.skip_existing and built.name is None
    files = parse_serve_config(with_city(serve.split()), "serve config")
    assert (str(files.models_dir), str(files.out), files.mounted_at, files.config_at) == (
        "/models",
        "/config",
        "/models",
        "/config",
    )


def test_servers_start_after_their_models_are_verified():
    verify, flags = SIGNED["services"]["verify"], SIGNED["services"]["export"]["environment"]["SIGN_FLAGS"].split()
    done = {"condition": "service_completed_successfully"}
    assert SIGNED["services"]["tf-serving"]["depends_on"] == {"verify": done} and verify["depends_on"] == {
        "export": done
    }
    assert verify["image"] == SERVICES["controller"]["image"] and verify["entrypoint"] == ["greenserve", "verify"]
    args = verify_parser("greenserve verify").parse_args(verify["command"])
    mounts = {
        volume.rsplit(":", 2)[1]
        for service in ("export", "verify")
        for volume in SIGNED["services"][service]["volumes"]
    }
    key = export_config.parser("export").parse_args(["--tl=all", *flags]).sign
    assert {str(key), str(args.signed_by), "/models", str(args.model_config_file.parent)} == mounts
    assert all(volume.endswith(":ro") for volume in verify["volumes"]) and verify["read_only"] and "mem_limit" in verify


def test_modes_of_operators_outlive_the_controllers_container():
    """Its /tmp is in memory, and empty after a restart."""
    controller = SERVICES["controller"]
    assert "state:/state" in controller["volumes"] and controller["environment"]["TMPDIR"] == "/state"
    assert "/state" in own_folders("controller")


def own_folders(image):
    """Folders of an image that belong to its user: a new volume elsewhere would belong to root."""
    (line,) = re.findall(
        r"^RUN install -d -m 700 -o 65534 -g 65534 (.*)$", (ROOT / image / "Dockerfile").read_text(), re.M
    )
    return line.split()


def test_rollouts_add_record_and_control_api_to_the_controller():
    command = ROLLOUTS["services"]["controller"]["command"]
    assert command == [*SERVICES["controller"]["command"], "--record=/records", "--control-address=127.0.0.1:9110"]
    parsed = controller_config.parse(with_city(command))
    assert parsed.control.address == ("127.0.0.1", 9110)
    assert ROLLOUTS["services"]["controller"]["volumes"] == ["records:/records"] and "/records" in own_folders(
        "controller"
    )


def test_rollout_uses_the_volumes_of_server_controller_and_ledger():
    rollout = ROLLOUTS["services"]["rollout"]
    folders = dict(volume.split(":")[:2] for volume in rollout["volumes"] if volume[0] != "$")
    assert folders.keys() <= COMPOSE["volumes"].keys() | ROLLOUTS["volumes"].keys()
    for name, folder in (("models", "/models"), ("config", "/config")):
        assert folders[name] == folder and f"{name}:{folder}:ro" in SERVICES["tf-serving"]["volumes"]
    assert folders["records"] == "/records" and folders["ledger"] == "/ledger" and "/ledger" in own_folders("export")
    assert folders["state"] == rollout["environment"]["TMPDIR"] == SERVICES["controller"]["environment"]["TMPDIR"]
    assert rollout["network_mode"] == SERVICES["controller"]["network_mode"], "the control API is on loopback"
    written = {volume for volume in rollout["volumes"] if not volume.endswith(":ro")}
    assert written == {"config:/config", "state:/state", "ledger:/ledger"}


def test_command_of_the_rollout_is_accepted_with_further_flags(tmp_path):
    rollout = ROLLOUTS["services"]["rollout"]
    entrypoint = [each.replace("$$", "$").replace("${ROLLOUT_FLAGS:-}", "--again 17") for each in rollout["entrypoint"]]
    name, *words = words_of([*entrypoint, *rollout["command"]], tmp_path)
    parsed = rollout_parser(name).parse_args(words)
    assert name == "rollout" and (str(parsed.desired), parsed.again, parsed.author) == ("/numbers.toml", 17, "rollout")
    assert str(parsed.ledger) == "/ledger/ledger.jsonl" and str(parsed.config) == "/config"
    assert rollout["restart"].startswith("on-failure:") and "mem_limit" in rollout and rollout["read_only"] is True


def test_temporary_folders_are_bounded():
    assert all("size=" in each for service in SERVICES.values() for each in service.get("tmpfs", ()))


def test_server_is_that_of_the_manifests():
    manifest = next(yaml.safe_load_all((ROOT / "k8s" / "base" / "server" / "tf-serving.yaml").read_text()))
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    service = SERVICES["tf-serving"]
    assert service["image"] == container["image"]
    assert [word.replace("$$", "$") for word in service["entrypoint"]] == container["command"]
    assert service["ports"] == [f"127.0.0.1:{port}:{port}" for port in (GRPC_PORT, REST_PORT)]


def test_prometheus_scrapes_services_at_the_ports_they_have():
    scrape = yaml.safe_load((ROOT / "k8s" / "monitoring" / "prometheus.yaml").read_text())["scrape_configs"]
    assert {job["job_name"]: job["static_configs"][0]["targets"] for job in scrape} == {
        "controller": ["controller:9108"],
        "guard": ["guard:9109"],
        "tf-serving": [f"tf-serving:{REST_PORT}"],
    }
    assert SERVICES["guard"]["networks"]["default"]["aliases"] == ["controller"], "its network is the controller's"
    assert (
        SERVICES["guard"]["ports"] == ["127.0.0.1:9108:9108"]
        and "--http=0.0.0.0:9108" in SERVICES["controller"]["command"]
    )
