"""Many streets as cities: times drawn by a street's name, the max red that `city init` writes, and streets that are
left out."""

import shutil
import xml.etree.ElementTree as ET
from collections import Counter

import pytest

from city import config
from city.errors import InputError
from greenserve.__main__ import main
from pretraining.streets import INTERVALS_S, MIN_GREENS_S, SUMOCFG, city_of, of_folder
from pretraining.synthetic import streets

SEED, SEED_WITH_CROSSINGS = 0, 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("streets")
    streets.generate(folder, SEED)
    return folder


@pytest.fixture
def street(folder):
    return folder / f"street_{SEED}"


def test_streets_have_all_intervals_and_min_greens_and_the_same_times_again(street, tmp_path):
    copies = [shutil.copytree(street, tmp_path / f"copy_{k}") for k in range(150)]
    cities = [city_of(copy) for copy in copies]
    tls = [next(iter(city.tls.values())) for city in cities]
    intervals = Counter(tl.delta_time_s for tl in tls)
    assert set(intervals) == set(INTERVALS_S) and intervals.most_common(1)[0][0] == 5
    assert {tl.min_green_s for tl in tls} == set(MIN_GREENS_S)
    assert Counter(city.safety.all_red_s for city in cities).keys() == {None, "computed"}
    assert 30 < sum(city.safety.all_red_s == "computed" for city in cities) < 90
    assert city_of(copies[0]) == cities[0]


@pytest.mark.parametrize("seed", [SEED, SEED_WITH_CROSSINGS])
def test_a_street_has_the_max_red_that_city_init_writes(seed, folder, tmp_path):
    street, city = streets.generate(folder, seed), tmp_path / "city.toml"
    assert main(["city", "init", "--sumocfg", str(street / SUMOCFG), "--dialect", "street", "--out", str(city)]) == 0
    assert city_of(street).safety.max_red_s == config.load(city).safety.max_red_s == 300


def test_a_city_toml_of_any_dialect_gives_tls_and_times_of_the_street_dialect(street, tmp_path):
    copy = shutil.copytree(street, tmp_path / "copy")
    signals = list(city_of(street).tls)
    (copy / "city.toml").write_text(
        f'[network]\nsumocfg = "{SUMOCFG}"\n[safety]\nmax_red_s = 77\n'
        f'[tl.X]\nsignals = ["{signals[0]}"]\ndialect = "sumo-rl"\n'
    )
    city = city_of(copy)
    assert {name: (tl.signals, tl.dialect) for name, tl in city.tls.items()} == {"X": ((signals[0],), "street")}
    assert city.safety.max_red_s == 77
    _show_always(copy / "street.net.xml", "r")
    with pytest.raises(InputError, match="has no signal that can be controlled"):
        city_of(copy)


@pytest.mark.parametrize("state", ["G", "r"])
def test_a_street_whose_programs_have_one_green_or_none_is_left_out(street, tmp_path, state):
    shutil.copytree(street, tmp_path / "good")
    damaged = shutil.copytree(street, tmp_path / "poor")
    _show_always(damaged / "street.net.xml", state)
    lines = []
    assert of_folder(tmp_path, lines.append) == [tmp_path / "good"]
    (reason,) = lines
    assert "poor" in reason and "\n" not in reason
    shutil.rmtree(tmp_path / "good")
    with pytest.raises(
        InputError, match=r"--streets .*: none of its folders has a street\.sumocfg with a signal to control"
    ):
        of_folder(tmp_path, print)


def _show_always(net_file, state):
    tree = ET.parse(net_file)
    for logic in tree.getroot().iter("tlLogic"):
        first, *others = logic.findall("phase")
        first.set("state", state * len(first.get("state")))
        for phase in others:
            logic.remove(phase)
    tree.write(net_file)
