"""Pages about movements: their examples are of the sample city, and do what the pages say."""

import re

import pytest

from city import config, network
from city.errors import InputError
from controller.check import main
from signals import movement_names
from signals.change_times import signal_safeties
from signals.contract import build
from tests.conftest import GRID, ROOT

NAMES = (ROOT / "docs" / "signal-engineers.md").read_text().partition("## Names of movements")[2]
LONGEST_RED = (ROOT / "docs" / "explanation" / "safety.md").read_text().partition("## Longest red")[2]


@pytest.fixture
def city_of(tmp_path):
    """Writes a city.toml with the first example of a page."""

    def write(page):
        path = tmp_path / "city.toml"
        example = re.search(r"^```toml\n(.*?)^```", page, re.M | re.S)[1]
        path.write_text(f'[network]\nsumocfg = "{GRID}/grid.sumocfg"\n{example}')
        return path

    return write


def test_documented_greens_are_those_of_the_command(tmp_path, capsys):
    path = tmp_path / "city.toml"
    path.write_text(f'[network]\nsumocfg = "{GRID}/grid.sumocfg"\n[tl.SA101]\nsignals = ["A0"]\ndialect = "sumo-rl"\n')
    main(["--city", str(path), "--greens"])
    table = re.search(r"--greens\n(.*?)^```", NAMES, re.M | re.S)[1]
    assert table in capsys.readouterr().out


def test_documented_names_are_those_of_the_example(city_of, grid_street):
    names = movement_names.of_city(config.load(city_of(NAMES)), grid_street)["A0"]
    assert names.of_state("rrrGGgrrrGGg") == "market green"
    assert {"inbound through", "to the station"} <= {group.name for group in names.groups}


def test_documented_max_red_is_that_of_two_left_turns(city_of):
    city = config.load(city_of(LONGEST_RED))
    street = network.of_city(city)
    (safety,) = signal_safeties(build(city, city.tls["SA101"], street), street, city.safety)
    names = movement_names.of_city(city, street)["A0"]
    own_s = {group.name: {safety.times.movement_max_red_s[link] for link in group.links} for group in names.groups}
    lefts = {name: bound_s for name, bound_s in own_s.items() if "left" in name}
    assert len(lefts) == 4 and lefts.pop("southbound left") == {60.0}
    assert list(lefts.values()) == [{90.0}] * 3
    protected_s = {group.name: {safety.times.max_unprotected_s[link] for link in group.links} for group in names.groups}
    assert [name for name, bounds_s in protected_s.items() if bounds_s == {150.0}] == [
        name for name in protected_s if "left" in name
    ]


def test_documented_key_of_another_tl_is_refused(city_of, grid_street):
    path = city_of(NAMES)
    path.write_text(path.read_text().replace("A1A0.70.00:left", "B1B0.70.00:left"))
    with pytest.raises(InputError, match=r"movement_names: B1B0\.70\.00:left is not a movement"):
        movement_names.of_city(config.load(path), grid_street)
