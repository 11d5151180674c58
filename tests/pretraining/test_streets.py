"""Many streets as cities: times drawn by a street's name, the max red that `city init` writes, streets that are left
out, and their files for processes that share no folder."""

import shutil
import xml.etree.ElementTree as ET
from collections import Counter

import pytest

from city import config
from city.errors import InputError
from evaluation.arms import FIXED, Arm
from greenserve.__main__ import main
from pretraining import plain_kinds, streets
from pretraining.street_results import StreetJob, StreetSimulator, run_job
from pretraining.streets import INTERVALS_S, MIN_GREENS_S, SUMOCFG, city_of, of_folder, pack, unpacked
from pretraining.synthetic.streets import generate
from simulation.executors import ThisProcess, in_order
from simulation.executors.processes import Processes

SEED, SEED_WITH_CROSSINGS, SEED_WITH_OWN_PROGRAMS = 0, 1, 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("streets")
    generate(folder, SEED)
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
    street, city = generate(folder, seed), tmp_path / "city.toml"
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


def test_a_packed_street_has_the_name_and_the_input_of_its_folder(street, tmp_path):
    street = shutil.copytree(street, tmp_path / "street")
    (street / "fcd.xml").write_text("an output")
    with unpacked(pack(street)) as folder:
        assert folder.name == street.name and folder != street
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert files == {path.name: path.read_bytes() for path in street.iterdir() if path.name != "fcd.xml"}
    assert not folder.parent.exists()


def test_a_simulation_of_a_packed_street_is_the_same(street):
    job = ([], 200.0, 7, False, 1.0)
    whole, packed = (StreetSimulator(60.0).run(place, *job) for place in (street, pack(street)))
    assert whole.trips.total > 0 and packed.trips == whole.trips


def test_a_packed_street_with_a_city_keeps_its_own_demand(tmp_path):
    street = plain_kinds.write(tmp_path, plain_kinds.KINDS[:1])[1]
    packed = pack(street)
    results = [run_job(StreetJob("", place, 3, None, 100.0, Arm(FIXED, FIXED))) for place in (street, packed)]
    assert results[0] == results[1] and results[0].total > 10


def test_jobs_have_folders_where_processes_share_them(street):
    assert streets.for_jobs(ThisProcess(), street) == street
    with Processes(1) as processes:
        processes.moves_files = True
        jobs = [streets.for_jobs(processes, street)]
        assert in_order(processes.run(network_bytes, jobs)) == [(street / "street.net.xml").read_bytes()]


def network_bytes(street):
    with unpacked(street) as folder:
        return (folder / "street.net.xml").read_bytes()


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (
            "street.net.xml",
            "../street.net.xml",
            "names .*/street.net.xml, which other machines do not have; copy it into",
        ),
        (
            "programs.add.xml",
            "missing.add.xml",
            r"missing.add.xml cannot be read: No such file or directory; fix its path",
        ),
    ],
)
def test_files_that_cannot_be_packed_are_one_line(folder, tmp_path, old, new, reason):
    street = shutil.copytree(generate(folder, SEED_WITH_OWN_PROGRAMS), tmp_path / "street")
    sumocfg = street / SUMOCFG
    sumocfg.write_text(sumocfg.read_text().replace(old, new))
    (tmp_path / "street.net.xml").touch()
    with pytest.raises(InputError, match=reason):
        pack(street)
