"""compose.yaml: valid, and in agreement with the programs, files and scrape configuration that it names."""

import importlib.resources
import json
import re
import subprocess
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

CITY_MOUNT = "${CITY:-./examples/grid}:/city:ro"


@pytest.fixture(scope="module")
def compose():
    return yaml.safe_load((ROOT / "compose.yaml").read_text())


@pytest.fixture(scope="module")
def services(compose):
    return compose["services"]


@pytest.fixture(scope="module")
def signed():
    """The additions of compose.signed.yaml."""
    return yaml.safe_load((ROOT / "compose.signed.yaml").read_text())


def test_compose_files_match_the_specifications_schema(compose, signed):
    schema = importlib.resources.files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    loaded = json.loads(schema.read_text())
    validator = jsonschema.validators.validator_for(loaded)(loaded)
    validator.validate(compose)
    validator.validate(signed)
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({**compose, "services": {"sumo": {"imgae": "x"}}})


def test_everything_of_a_city_starts_after_its_models_are_exported(services):
    assert services.keys() == {"export", "tf-serving", "sumo", "guard", "controller", "prometheus", "grafana"}
    for name, service in services.items():
        for other in service.get("depends_on", ()):
            assert other in services, name
    for name in ("tf-serving", "sumo"):
        assert services[name]["depends_on"] == {"export": {"condition": "service_completed_successfully"}}
    assert services["guard"]["depends_on"] == ["sumo"] and services["controller"]["depends_on"] == {
        "guard": {"condition": "service_started"},
        "tf-serving": {"condition": "service_healthy"},
    }


def test_every_service_is_bounded_and_every_lasting_one_has_a_health_check(services):
    assert all("mem_limit" in service for service in services.values())
    # SUMO would count the connection of a check as a client
    assert {name for name, service in services.items() if "healthcheck" not in service} == {"export", "sumo"}
    assert "http://127.0.0.1:9108/livez" in services["controller"]["healthcheck"]["test"][-1]


def test_ports_are_on_loopback_and_inputs_are_read_only(services, compose):
    for name, service in services.items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        for volume in service["volumes"]:
            may_write = (
                name in ("export", "prometheus", "controller") and volume.partition(":")[0] in compose["volumes"]
            )
            assert volume.endswith(":ro") or may_write, (name, volume)
            source = volume.partition(":")[0]
            assert source in compose["volumes"] or source.startswith("${CITY") or (ROOT / source).exists()
    assert CITY_MOUNT in services["controller"]["volumes"]


def test_images_are_built_from_this_checkout(services):
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for name in ("export", "sumo", "guard"):
        build = services[name]["build"]
        dockerfile = (ROOT / build["context"] / build["dockerfile"]).read_text()
        image = services[name]["image"]
        assert f"-t {image.removesuffix('-sumo')} ." in dockerfile and f":{version}" in image
        assert set(build.get("args", {})) <= set(re.findall(r"^ARG (\w+)", dockerfile, re.M))
    assert services["controller"]["image"] == services["guard"]["image"]


def with_city(arguments):
    return [argument.replace("/city/city.toml", str(GRID / "city.toml")) for argument in arguments]


def test_programs_accept_their_arguments(services):
    parsed = controller_config.parse(with_city(services["controller"]["command"]))
    guard_args = guard.parse(with_city(services["guard"]["command"]))
    assert (
        parsed.sumo.attach == ("127.0.0.1", guard_args.port) and not parsed.guard and parsed.models.version == "stable"
    )
    assert (
        parsed.models.server == f"tf-serving:{GRPC_PORT}" and services["controller"]["network_mode"] == "service:guard"
    )
    sumo = dict(argument.removeprefix("--").partition("=")[::2] for argument in services["sumo"]["command"])
    assert guard_args.sumo.attach == ("sumo", int(sumo["remote-port"])) and guard_args.is_only_client
    assert sumo["num-clients"] == "1"
    assert sumo["configuration-file"] == "/city/${SUMOCFG:-grid.sumocfg}"
    script = services["export"]["command"][0].strip()
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


def test_servers_start_after_their_models_are_verified(signed, services):
    verify, flags = signed["services"]["verify"], signed["services"]["export"]["environment"]["SIGN_FLAGS"].split()
    done = {"condition": "service_completed_successfully"}
    assert signed["services"]["tf-serving"]["depends_on"] == {"verify": done} and verify["depends_on"] == {
        "export": done
    }
    assert verify["image"] == services["controller"]["image"] and verify["entrypoint"] == ["greenserve", "verify"]
    args = verify_parser("greenserve verify").parse_args(verify["command"])
    mounts = {
        volume.rsplit(":", 2)[1]
        for service in ("export", "verify")
        for volume in signed["services"][service]["volumes"]
    }
    key = export_config.parser("export").parse_args(["--tl=all", *flags]).sign
    assert {str(key), str(args.signed_by), "/models", str(args.model_config_file.parent)} == mounts
    assert all(volume.endswith(":ro") for volume in verify["volumes"]) and verify["read_only"] and "mem_limit" in verify


def test_modes_of_operators_outlive_the_controllers_container(services):
    """Its /tmp is in memory, and empty after a restart."""
    controller = services["controller"]
    assert "state:/state" in controller["volumes"] and controller["environment"]["TMPDIR"] == "/state"
    assert "/state" in own_folders("controller")


def own_folders(image):
    """Folders of an image that belong to its user: a new volume elsewhere would belong to root."""
    (line,) = re.findall(
        r"^RUN install -d -m 700 -o 65534 -g 65534 (.*)$", (ROOT / image / "Dockerfile").read_text(), re.M
    )
    return line.split()


@pytest.fixture(scope="module")
def rollouts():
    return yaml.safe_load((ROOT / "compose.rollout.yaml").read_text())


def test_rollout_file_matches_the_specifications_schema(rollouts):
    schema = importlib.resources.files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    loaded = json.loads(schema.read_text())
    jsonschema.validators.validator_for(loaded)(loaded).validate(rollouts)


def test_rollouts_add_record_and_control_api_to_the_controller(services, rollouts):
    command = rollouts["services"]["controller"]["command"]
    assert command == [*services["controller"]["command"], "--record=/records", "--control-address=127.0.0.1:9110"]
    parsed = controller_config.parse(with_city(command))
    assert parsed.control.address == ("127.0.0.1", 9110)
    assert rollouts["services"]["controller"]["volumes"] == ["records:/records"] and "/records" in own_folders(
        "controller"
    )


def test_rollout_uses_the_volumes_of_server_controller_and_ledger(services, compose, rollouts):
    rollout = rollouts["services"]["rollout"]
    folders = dict(volume.split(":")[:2] for volume in rollout["volumes"] if volume[0] != "$")
    assert folders.keys() <= compose["volumes"].keys() | rollouts["volumes"].keys()
    for name, folder in (("models", "/models"), ("config", "/config")):
        assert folders[name] == folder and f"{name}:{folder}:ro" in services["tf-serving"]["volumes"]
    assert folders["records"] == "/records" and folders["ledger"] == "/ledger" and "/ledger" in own_folders("export")
    assert folders["state"] == rollout["environment"]["TMPDIR"] == services["controller"]["environment"]["TMPDIR"]
    assert rollout["network_mode"] == services["controller"]["network_mode"], "the control API is on loopback"
    written = {volume for volume in rollout["volumes"] if not volume.endswith(":ro")}
    assert written == {"config:/config", "state:/state", "ledger:/ledger"}


def test_command_of_the_rollout_is_accepted_with_further_flags(rollouts, tmp_path):
    rollout = rollouts["services"]["rollout"]
    fake = tmp_path / "greenserve"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    entrypoint = [each.replace("$$", "$").replace("${ROLLOUT_FLAGS:-}", "--again 17") for each in rollout["entrypoint"]]
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run([*entrypoint, *rollout["command"]], env=variables, capture_output=True, text=True)
    name, *words = done.stdout.splitlines()
    parsed = rollout_parser(name).parse_args(words)
    assert name == "rollout" and (str(parsed.desired), parsed.again, parsed.author) == ("/numbers.toml", 17, "rollout")
    assert str(parsed.ledger) == "/ledger/ledger.jsonl" and str(parsed.config) == "/config"
    assert rollout["restart"].startswith("on-failure:") and "mem_limit" in rollout and rollout["read_only"] is True


def test_temporary_folders_are_bounded(services):
    assert all("size=" in each for service in services.values() for each in service.get("tmpfs", ()))


def test_server_is_that_of_the_manifests(services):
    manifest = next(yaml.safe_load_all((ROOT / "k8s" / "base" / "server" / "tf-serving.yaml").read_text()))
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    service = services["tf-serving"]
    assert service["image"] == container["image"]
    assert [word.replace("$$", "$") for word in service["entrypoint"]] == container["command"]
    assert service["ports"] == [f"127.0.0.1:{port}:{port}" for port in (GRPC_PORT, REST_PORT)]


def test_prometheus_scrapes_services_at_the_ports_they_have(services):
    scrape = yaml.safe_load((ROOT / "k8s" / "monitoring" / "prometheus.yaml").read_text())["scrape_configs"]
    assert {job["job_name"]: job["static_configs"][0]["targets"] for job in scrape} == {
        "controller": ["controller:9108"],
        "guard": ["guard:9109"],
        "tf-serving": [f"tf-serving:{REST_PORT}"],
    }
    assert services["guard"]["networks"]["default"]["aliases"] == ["controller"], "its network is the controller's"
    assert (
        services["guard"]["ports"] == ["127.0.0.1:9108:9108"]
        and "--http=0.0.0.0:9108" in services["controller"]["command"]
    )
