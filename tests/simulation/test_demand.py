"""Varied and resampled demand: SUMO's options, and the route files of a bootstrap sample."""

import gzip
import tracemalloc
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from city.errors import InputError
from simulation.demand import MAX_SCALE, MAX_SHIFT_S, MIN_SCALE, Demand, varied
from tests.conftest import GRID

ROUTE_FILES = '<route-files value="a.rou.xml"/>'


@pytest.fixture
def options(tmp_path):
    """A function: SUMO's options of a demand, for a configuration with a route file of this text."""

    def options(routes, demand, configuration=ROUTE_FILES):
        if routes is not None:
            (tmp_path / "a.rou.xml").write_text(routes)
        (tmp_path / "a.sumocfg").write_text(f"<configuration>{configuration}</configuration>")
        return demand.options(tmp_path / "a.sumocfg", tmp_path)

    return options


@pytest.fixture
def sample(options):
    """A function: the root of the sampled route file of these routes."""

    def sample(routes, seed=1, scale=1.0, configuration=ROUTE_FILES):
        return ET.parse(options(routes, Demand(seed, scale, resampled=True), configuration)[-1]).getroot()

    return sample


def vehicles(count, edges="a b"):
    return "".join(f'<vehicle id="v{k}" depart="{k}"><route edges="{edges}"/></vehicle>' for k in range(count))


def test_demand_varies_within_its_bounds_and_is_repeated_by_its_seed(tmp_path):
    demands = [varied(np.random.default_rng(k), varies=True) for k in range(50)]
    assert all(MIN_SCALE <= demand.scale <= MAX_SCALE and demand.shift_s == MAX_SHIFT_S for demand in demands)
    assert len({demand.seed for demand in demands}) == 50 and len({demand.scale for demand in demands}) == 50
    assert demands[3] == varied(np.random.default_rng(3), varies=True)
    same = varied(np.random.default_rng(3), varies=False)
    assert same.options(GRID / "grid.sumocfg", tmp_path) == ["--seed", str(same.seed), "--random", "false"]


def test_resampled_demand_is_a_bootstrap_sample_of_the_vehicles(sample):
    flow = '<flow id="f" begin="0" end="9" number="3" from="a" to="b"/>'
    routes = f'<routes><vType id="car"/>{vehicles(1000)}{flow}</routes>'
    root, again, other = (sample(routes, seed, configuration=f"<input>{ROUTE_FILES}</input>") for seed in (1, 1, 2))
    ids = [element.get("id") for element in root.iter("vehicle")]
    times = Counter(name.partition("#")[0] for name in ids)
    assert len(set(ids)) == len(ids) and 900 < len(ids) < 1100
    # of a Poisson number of mean 1: 0 in 37 % of the cases, 1 in 37 %, 2 in 18 %
    assert 0.32 < 1 - len(times) / 1000 < 0.42 and 0.15 < Counter(times.values())[2] / 1000 < 0.22
    assert [element.tag for element in root if element.tag != "vehicle"] == ["vType", "flow"]
    departs = [float(element.get("depart")) for element in root.iter("vehicle")]
    assert departs == sorted(departs) and all(element.find("route") is not None for element in root.iter("vehicle"))
    assert ET.tostring(again) == ET.tostring(root) != ET.tostring(other)


@pytest.mark.parametrize("head", ["", '<?xml version="1.0" encoding="iso-8859-1"?>\n'])
def test_sample_keeps_everything_but_vehicles_as_it_is(options, tmp_path, head):
    around, encoding = '<!-- caf\xe9 --><vType id="caf\xe9"/>', "latin-1" if head else "utf-8"
    trips = "".join(f"""<trip from = 'a' to='b' note=' id="x"' id='v{k}' depart='{k}'/>""" for k in range(50))
    text = f'{head}<routes xmlns:xsi="x">{around}{trips}<flow id="f"/></routes>\n'
    (tmp_path / "a.rou.xml.gz").write_bytes(gzip.compress(text.encode(encoding)))
    name = options(None, Demand(1, resampled=True), '<route-files value="a.rou.xml.gz"/>')[-1]
    sample = Path(name).read_bytes()
    assert sample.decode(encoding).startswith(f'{head}<routes xmlns:xsi="x">{around}<trip')
    ids = [element.get("id") for element in ET.fromstring(sample)]
    assert ids[0] == "caf\xe9" and ids[-1] == "f" and len(set(ids)) == len(ids) and any("#1" in name for name in ids)


@pytest.mark.parametrize("count", [1, 2])
def test_sample_of_few_vehicles_is_never_empty(sample, count):
    routes = f"<routes>{vehicles(count)}</routes>"
    for seed in range(30):
        # SUMO lets one vehicle of two depart with --scale 0.8
        assert len(sample(routes, seed, 1.2)) >= 1 and len(sample(routes, seed, 0.8)) >= 2


def test_text_of_the_routes_is_not_kept_in_memory(options):
    rows = vehicles(5000, "a b c d e f")
    tracemalloc.start()
    options(f"<routes>{rows}</routes>", Demand(1, resampled=True))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 0.25 * len(rows)


@pytest.mark.parametrize("option", [ROUTE_FILES, '<routes v="${HERE}/a.rou.xml"/>', '<r value=" a.rou.xml"/>'])
def test_route_files_are_found_by_all_their_names(option, sample, tmp_path, monkeypatch):
    monkeypatch.setenv("HERE", str(tmp_path))
    routes = '<routes><include href="types.xml"/><vehicle id="v" depart="1"/></routes>'
    include = sample(routes, configuration=option).find("include")
    assert include.get("href") == str(tmp_path / "types.xml"), "the copy lies elsewhere"


@pytest.mark.parametrize(
    ("routes", "demand", "configuration", "message"),
    [
        *((text, Demand(1, resampled=True), ROUTE_FILES, r"a\.rou\.xml: is not a readable route file")
          for text in (None, "<routes>", "nonsense")),
        (None, Demand(1, 0.8), '<processing><scale value="abc"/></processing>', r"a\.sumocfg: its scale 'abc' is not a"),
    ],
)  # fmt: skip
def test_wrong_input_of_a_demand_names_its_file(routes, demand, configuration, message, options):
    with pytest.raises(InputError, match=message):
        options(routes, demand, configuration)


def test_scale_multiplies_that_of_the_configuration_and_vehicles_beside_persons_are_not_resampled(options):
    assert options(None, Demand(1, 0.8), '<processing><scale value="0.5"/></processing>')[-2:] == ["--scale", "0.4"]
    routes = '<routes><vehicle id="bus"/><person id="p"><ride lines="bus"/></person></routes>'
    assert "--route-files" not in options(routes, Demand(1, resampled=True))
