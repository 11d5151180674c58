"""Flags of the controller and of its guard, completed by city.toml."""

import sys
import tempfile
from pathlib import Path
from unittest.mock import Mock

import pytest

from city.errors import InputError
from controller.config import make_record_folder, parse
from controller.guard.__main__ import parse as parse_guard

CITY = """
[controller]
{controller}
[tl.SA101]
signals = ["A0"]
dialect = "sumo-rl"
"""


@pytest.fixture
def write_city(tmp_path):
    def write(controller=""):
        (tmp_path / "city.toml").write_text(CITY.format(controller=controller))
        return str(tmp_path / "city.toml")

    return write


def refused(message, *argv):
    with pytest.raises(InputError, match=message):
        parse(list(argv))


@pytest.mark.parametrize("guard", [[], ["--no-guard"]])
@pytest.mark.parametrize("others", [["--clients", "2"], ["--sumo", "127.0.0.1:1"]])
def test_watchdog_must_be_twice_the_deadline_with_other_clients(write_city, guard, others):
    city = write_city("watchdog_s = 2")
    assert parse(["--city", city, "--deadline-ms", "1000", *others, *guard]).guard is not bool(guard)
    message = r"1001 ms \(deadline_ms\).* silent for 2 s: set watchdog_s to at least twice"
    refused(message, "--city", city, "--deadline-ms", "1001", *others, *guard)
    assert not parse(["--city", city, "--deadline-ms", "1001"]).guard, "a single client has no watchdog"


@pytest.mark.parametrize(
    ("controller", "flags", "watchdog_s"),
    [("", [], 10.0), ("watchdog_s = 3.5", [], 3.5), ("watchdog_s = 3.5", ["--watchdog-s", "7"], 7.0)],
)
def test_guard_takes_watchdog_s_from_city_toml_unless_it_is_passed(
    write_city, monkeypatch, tmp_path, controller, flags, watchdog_s
):
    city = write_city(controller)
    attach = ["--sumo", "127.0.0.1:1"]
    assert parse_guard([*attach, *flags, "--city", city]).watchdog_s == watchdog_s
    monkeypatch.chdir(Path(city).parent)
    assert parse_guard([*attach, *flags]).watchdog_s == watchdog_s, "./city.toml is the default"


def test_guard_works_without_a_city(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert parse_guard(["--sumo", "127.0.0.1:1"]).watchdog_s == 10.0
    with pytest.raises(InputError, match=r"city.toml: no such file"):
        parse_guard(["--sumo", "127.0.0.1:1", "--city", "city.toml"])


def test_controller_of_a_district_has_its_tls_server_and_fleet(write_city, tmp_path):
    city = write_city()
    with Path(city).open("a") as file:
        file.write("[tl.SA102]\nsignals = ['B0']\ndialect = 'sumo-rl'\n")
        file.write("[serving]\nfleet = 'city'\n")
        for name, tl in (("north", "SA101"), ("south", "SA102")):
            file.write(f"[serving.districts.{name}]\naddress = 'tf-serving-{name}:8500'\ntls = ['{tl}']\n")
    config = parse(["--city", city, "--district", "south"])
    assert (config.infer_tls, config.models.server, config.models.fleet) == (
        ("SA102",),
        "tf-serving-south:8500",
        "south",
    )
    assert (
        parse(["--city", city, "--district", "north", "--server", "127.0.0.1:1", "--fleet", ""]).models.server
        == "127.0.0.1:1"
    )
    for flags, message in (
        ([], r"has districts; pass --district \(north, south\)"),
        (["--district", "west"], "--district west: is not in .*; its districts are north, south"),
        (["--district", "south", "--infer-tl", "SA101"], "--infer-tl: SA101 is not one of the TLs SA102"),
    ):
        refused(message, "--city", city, *flags)


def test_record_is_a_flag_or_a_key_of_city_toml(write_city, tmp_path):
    assert parse(["--city", write_city()]).record is None
    assert parse(["--city", write_city('record = "runs"')]).record == tmp_path / "runs"
    config = parse(["--city", write_city('record = "runs"\nrecord_max_gb = 2'), "--record", str(tmp_path / "others")])
    assert (
        config.record == tmp_path / "others"
        and not config.record.exists()
        and config.city.controller.record_max_gb == 2
    )


@pytest.mark.parametrize("folder", ["/proc", "/proc/record"])
def test_record_folder_that_cannot_be_written_is_refused_at_the_start(write_city, folder):
    config = parse(["--city", write_city(), "--record", folder])
    with pytest.raises(InputError, match=rf"record folder {folder}: cannot be written: .*; name another folder"):
        make_record_folder(config.record)


def test_full_disk_is_refused_at_the_start(write_city, tmp_path, monkeypatch):
    full = Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", full)
    config = parse(["--city", write_city('record = "runs"')])
    with pytest.raises(InputError, match=r"record folder .*runs: cannot be written: No space left on device"):
        make_record_folder(config.record)


def test_record_without_its_extra_names_it(write_city, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mcap", None)
    message = r"--record .*: a record needs the extra record: pip install greenserve\[record\]"
    refused(message, "--city", write_city(), "--record", str(tmp_path))


def test_the_live_page_is_off_by_default_and_on_loopback_alone(write_city):
    city = write_city()
    assert parse(["--city", city]).page is None
    for address, expected in (
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("localhost:8080", ("localhost", 8080)),
        ("[::1]:1", ("::1", 1)),
    ):
        assert parse(["--city", city, "--page", address]).page == expected


def test_control_api_and_speed_come_from_city_toml_unless_they_are_passed(write_city):
    config = parse(["--city", write_city()])
    assert config.control is None and config.speed == 0.0
    city = write_city('control_address = "127.0.0.1:9110"\nspeed = 2')
    config = parse(["--city", city])
    assert config.control.address == ("127.0.0.1", 9110) and config.control.tls is None and config.speed == 2.0
    config = parse(["--city", city, "--control-address", "[::1]:9111", "--speed", "0"])
    assert config.control.address == ("::1", 9111) and config.speed == 0.0


def test_control_api_beyond_loopback_needs_client_certificates(write_city, tmp_path):
    city = write_city('control_address = "0.0.0.0:9110"')
    for key in ("ca", "certificate", "key"):
        refused("--control-tls-ca, .* belong together; pass all three", "--city", city, f"--control-tls-{key}", "x")
    files = [part for key in ("ca", "certificate", "key") for part in (f"--control-tls-{key}", str(tmp_path / key))]
    assert parse(["--city", city, *files]).control.tls.ca == tmp_path / "ca"


@pytest.mark.parametrize(
    ("controller", "flags", "message"),
    [
        ("", ["--speed", "-1"], r"--speed -1 must lie between 0 and 1000"),
        ("", ["--speed", "nan"], r"--speed nan must lie"),
        ("", ["--models-dir", "models"], r"--models-dir is for the live page.*; pass --page, or leave it out"),
        ("", ["--control-address", "9110"], r"--control-address '9110' must be HOST:PORT"),
        (
            "",
            ["--control-tls-ca", "ca.pem"],
            r"--control-tls-ca is for the control API; pass --control-address, or leave it out",
        ),
        ("speed = 1001", [], r"\[controller\] speed = 1001 must lie between 0 and 1000$"),
        ("speed = -2", [], r"\[controller\] speed = -2 must lie between 0 and 1000$"),
        ('control_address = "x"', [], r"\[controller\] control_address 'x' must be HOST:PORT"),
        *(
            (f'control_address = "{address}"', [], "control_address .*any client that reaches it could command the sig")
            for address in ("0.0.0.0:9110", "[::]:9110", "10.0.0.1:9110", "controller:9110")
        ),
        *(
            (
                "",
                ["--page", address],
                f"--page {address}: any computer that reaches it .*; listen on 127.0.0.1, and let",
            )
            for address in ("0.0.0.0:8080", "10.0.0.1:8080", "example.org:80")
        ),
        ("", ["--page", "8080"], "--page '8080' must be HOST:PORT"),
        ("record_max_gb = 0.5", [], r"\[controller\] record_max_gb = 0.5 must be at least 1"),
        ("", ["--record", "city.toml"], "--record .*city.toml: is a file; name a folder"),
        ("", ["--record", "a/b"], "--record a/b: there is no folder a; create it"),
        ("", ["--record", ""], "argument --record: the folder has no name; pass one such as records"),
        ("", ["--record", " "], "argument --record: the folder has no name; pass one such as records"),
        ('record = ""', [], r"\[controller\] record is empty; write a path, or leave the key out"),
        ('record = " "', [], r"\[controller\] record is empty; write a path, or leave the key out"),
        (
            '[tl.SA102]\nsignals = ["B0"]\ndialect = "sumo-rl"\nstate = "d"',
            [],
            r"city.toml: \[tl.SA102\] state and action are settings of the sappo dialect",
        ),
    ],
)
def test_wrong_settings_are_refused(write_city, tmp_path, monkeypatch, controller, flags, message):
    city = write_city(controller)
    monkeypatch.chdir(tmp_path)
    refused(message, "--city", city, *flags)
