"""Random streets: safe programs, the same files for the same seed, every kind, and simulations that run."""

import functools
import shutil
import subprocess
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from city import network
from city.errors import InputError, ProgramFailed
from controller.sumo.programs import sumo_program
from pretraining.synthetic import junction_movements, signal_programs, street_kinds, streets
from pretraining.synthetic.demand import RandomDemand
from pretraining.synthetic.signal_programs import PROGRAM_ID, ProgramKind
from pretraining.synthetic.street_kinds import Shape
from signals import contract, policy_signals
from signals.policy_signals import PolicySignal
from signals.safety.conflicts import GREEN, ConflictRules, check_phases
from tests.networks import netgenerate

SEEDS = range(12)
MORE_SEEDS = range(12, 80)
SEEDS_WITH_BLOCKED_TURNS = (15, 44)
"""Streets on which turns would yield to each other, unless netconvert ignores vehicles that are still inside the
junction."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("streets")


@functools.cache
def read(folder, seed):
    return network.of_sumocfg(streets.generate(folder, seed) / streets.CONFIGURATION)


@pytest.mark.parametrize("seeds", [*([seed] for seed in SEEDS), pytest.param(MORE_SEEDS, marks=pytest.mark.slow)])
def test_every_state_of_every_program_is_safe_and_a_policy_can_control_the_signals(folder, seeds):
    for street in (read(folder, seed) for seed in seeds):
        assert street.begin_s == 0 and street.end_s == streets.END_S
        for signal in street.signals.values():
            for program in signal.programs:
                check_phases(signal.id, signal, program.id, [phase.state for phase in program.phases])
                if program.id == PROGRAM_ID:
                    assert signal.active_program == PROGRAM_ID
                    assert_runs_as_a_fixed_plan(signal, program)
            program = policy_signals.running_program(signal)
            greens = policy_signals.distinct_greens(signal, program)
            if len(greens) > 1:
                contract.check_controllable(signal.id, PolicySignal(signal, program, tuple(greens)))


def assert_runs_as_a_fixed_plan(signal, program):
    """Every link has green, and no green ends without yellow."""
    states = [phase.state for phase in program.phases]
    assert all(any(state[k] in GREEN for state in states) for k, link in enumerate(signal.links) if link), signal.id
    for pair in zip(states, [*states[1:], states[0]], strict=True):
        assert not any(a in GREEN and b == "r" for a, b in zip(*pair, strict=True)), (signal.id, pair)
    assert all(phase.duration_s >= 3 for phase in program.phases if "y" in phase.state)
    assert all(15 <= phase.duration_s <= 45 for phase in program.phases if network.is_green(phase.state))


def test_no_two_links_wait_for_each_other(folder):
    """A vehicle of either link would wait until the other one leaves."""
    for seed in (*SEEDS, *SEEDS_WITH_BLOCKED_TURNS):
        for signal in read(folder, seed).signals.values():
            for program in signal.programs:
                for state in {phase.state for phase in program.phases if program.id == PROGRAM_ID}:
                    green = np.array([c in GREEN for c in state])
                    assert not (signal.yields & signal.yields.T & np.outer(green, green)).any(), (seed, state)


def test_left_only_greens_serve_a_part_of_a_shared_lane(tmp_path_factory):
    """The phases that a policy must have seen: a vehicle that goes straight on blocks them."""
    shared_lanes = junction_of(tmp_path_factory)
    greens = signal_programs.draw_greens(ProgramKind.LEFT_ONLY, shared_lanes, np.random.default_rng(0))
    lefts = {link for approach in shared_lanes.movements.approaches for link in approach.left}
    assert any({k for k, c in enumerate(green) if c in GREEN} <= lefts for green in greens)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_sumo_runs_a_street_with_demand(folder, seed):
    street = streets.generate(folder, seed)
    demand = RandomDemand(street / streets.NETWORK)
    vehicles = demand.write(street / streets.DEMAND, np.random.default_rng(seed), vehicles_per_lane_h=100, seconds=300)
    options = ["--end", "300", "--no-step-log", "--xml-validation", "never", "--statistic-output", "statistics.xml"]
    command = [sumo_program(), "-c", streets.CONFIGURATION, *options]
    result = subprocess.run(command, cwd=street, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "incompatible" not in result.stderr and "missing" not in result.stderr, result.stderr
    counted = ET.parse(street / "statistics.xml").getroot().find("vehicles")
    assert vehicles > 0 and int(counted.get("inserted")) > 0.8 * vehicles


def test_the_same_seed_gives_the_same_bytes(folder, tmp_path):
    for seed in SEEDS[:3]:
        first, second = (streets.generate(each, seed) for each in (folder, tmp_path))
        names = {path.name for path in second.iterdir()}
        assert names - {streets.PROGRAMS} == {streets.NETWORK, streets.CONFIGURATION}
        assert [name for name in names if (first / name).read_bytes() != (second / name).read_bytes()] == []


def test_an_existing_street_is_kept(tmp_path):
    target = tmp_path / "street_3"
    target.mkdir()
    assert streets.generate(tmp_path, 3) == target and list(target.iterdir()) == []


def test_a_street_that_another_process_wrote_meanwhile_is_kept(tmp_path, monkeypatch):
    check = streets._check

    def check_and_write(street):
        check(street)
        (tmp_path / "street_1").mkdir()
        (tmp_path / "street_1" / "other").touch()

    monkeypatch.setattr(streets, "_check", check_and_write)
    assert [path.name for path in streets.generate(tmp_path, 1).iterdir()] == ["other"]


def test_a_draw_that_cannot_be_used_is_drawn_again(tmp_path, monkeypatch):
    check, draws = streets._check, []

    def refuse_first(street):
        draws.append(street)
        if len(draws) == 1:
            raise streets.NotUsable("no signal has two greens")
        check(street)

    monkeypatch.setattr(streets, "_check", refuse_first)
    read(tmp_path, 4)
    assert len(draws) == 2


def test_a_seed_without_a_usable_draw_is_an_error_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(streets, "sumo_program", lambda tool: shutil.which("false"))
    with pytest.raises(ProgramFailed, match=r"^street of seed 7: none of 10 draws .*netconvert failed.*another seed$"):
        streets.generate(tmp_path, 7)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_wrong_input(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"street_1: cannot be written: Not a directory; name another folder$"):
        streets.generate(tmp_path / "file", 1)


def test_every_kind_of_street_is_drawn():
    kinds = [street_kinds.draw(np.random.default_rng([5, k])) for k in range(3000)]

    def share(name, *values):
        return pytest.approx(np.mean([getattr(kind, name) in values for kind in kinds]), abs=0.03)

    assert [share("shape", shape) for shape in street_kinds.SHAPES] == list(street_kinds.SHAPES.values())
    assert [share("lanes", lanes) for lanes in street_kinds.LANES] == list(street_kinds.LANES.values())
    assert share("turn_lane_m", 0.0) == 0.4 and share("own_program_share", 0.0) == 0.15
    assert share("has_crossings", True) == 1 / 3 and share("has_short_blocks", True) == 0.25
    assert {kind.speed_kmh for kind in kinds} == {30, 40, 50, 60, 70, 80}
    assert {kind.left_green_s for kind in kinds} == {0, 6, 8}
    assert {(kind.columns, kind.rows) for kind in kinds if kind.shape is Shape.GRID} == {
        (c, r) for c in (2, 3, 4) for r in (2, 3)
    }
    assert any(kind.merges for kind in kinds) and any(kind.lane_drop_share for kind in kinds)


@pytest.mark.parametrize("kind", ProgramKind)
def test_greens_of_every_kind_are_safe_and_serve_all_links(folder, kind):
    for seed in SEEDS:
        street = streets.generate(folder, seed)
        movements = junction_movements.read(street / streets.NETWORK)
        for name, signal in network.read(street / streets.NETWORK).signals.items():
            junction = signal_programs.SignalSite.of_layouts(signal, signal, movements[name])
            greens = signal_programs.draw_greens(kind, junction, np.random.default_rng(seed))
            rules = ConflictRules(signal)
            assert len(greens) > 1 and len(set(greens)) == len(greens), (seed, name, greens)
            assert all(any(green[k] in GREEN for green in greens) for k, link in enumerate(signal.links) if link)
            assert [rules.violation(green) for green in greens] == [None] * len(greens)
            assert len(greens) <= signal_programs.MAX_GREENS


def test_a_large_junction_has_many_greens(crossroads_junction):
    greens = signal_programs.draw_greens(ProgramKind.MANY, crossroads_junction, np.random.default_rng(2))
    assert signal_programs.MIN_MANY_GREENS <= len(greens) <= signal_programs.MAX_GREENS


def test_split_phasing_serves_one_approach_at_a_time(crossroads_junction):
    greens = signal_programs.draw_greens(ProgramKind.SPLIT, crossroads_junction, np.random.default_rng(0))
    straight_or_left = [{*approach.straight, *approach.left} for approach in crossroads_junction.movements.approaches]
    served = [{k for k, c in enumerate(green) if c == "G"} & set().union(*straight_or_left) for green in greens]
    assert sorted(map(sorted, served)) == sorted(map(sorted, straight_or_left))


def test_a_dual_ring_has_a_green_of_both_lefts(crossroads_junction):
    lefts = [{link for approach in axis for link in approach.left} for axis in crossroads_junction.movements.axes()]
    found = set()
    for seed in range(5):
        rng = np.random.default_rng(seed)
        for green in signal_programs.draw_greens(ProgramKind.DUAL_RING, crossroads_junction, rng):
            served = {k for k, c in enumerate(green) if c == "G"}
            found |= {k for k, axis in enumerate(lefts) if axis <= served}
    assert found == {0, 1}


@pytest.fixture(scope="module")
def crossroads_junction(tmp_path_factory):
    """Four arms of three lanes, the left one for left turns."""
    return junction_of(tmp_path_factory, "--default.lanenumber", "2", "--turn-lanes", "1", "--tls.left-green.time", "6")


def junction_of(tmp_path_factory, *options):
    """The only junction of a grid of one: without options, four arms of one lane."""
    path = tmp_path_factory.mktemp("junction") / "a.net.xml"
    net_file = netgenerate(
        path, "--grid", "--grid.number", "1", "--grid.attach-length", "150", "--no-turnarounds", *options
    )
    signal = network.read(net_file).signals["A0"]
    return signal_programs.SignalSite.of_layouts(signal, signal, junction_movements.read(net_file)["A0"])
