"""Streets whose files go with the jobs, because processes share no folder."""

import pytest

from city.errors import InputError
from evaluation.arms import FIXED, Arm
from pretraining import plain_kinds, streets
from pretraining.street_pool import StreetSimulator
from pretraining.street_results import StreetJob, run_job
from pretraining.synthetic.streets import generate
from simulation.executors import ThisProcess, in_order
from simulation.executors.processes import Processes


@pytest.fixture
def street(tmp_path):
    return generate(tmp_path / "streets", 2)


def test_a_packed_street_has_the_name_and_the_input_of_its_folder(street):
    (street / "fcd.xml").write_text("an output")
    with streets.unpacked(streets.pack(street)) as folder:
        assert folder.name == street.name and folder != street
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert files == {path.name: path.read_bytes() for path in street.iterdir() if path.name != "fcd.xml"}
    assert not folder.parent.exists()


def test_a_simulation_of_a_packed_street_is_the_same(street):
    job = ([], 200.0, 7, False, 1.0)
    whole, packed = (StreetSimulator(60.0).run(place, *job) for place in (street, streets.pack(street)))
    assert whole.trips.total > 0 and packed.trips == whole.trips


def test_a_packed_street_with_a_city_keeps_its_own_demand(tmp_path):
    street = plain_kinds.write(tmp_path, plain_kinds.KINDS[:1])[1]
    packed = streets.pack(street)
    results = [run_job(StreetJob("", place, 3, None, 100.0, Arm(FIXED, FIXED))) for place in (street, packed)]
    assert results[0] == results[1] and results[0].total > 10


def test_jobs_have_folders_where_processes_share_them(street):
    assert streets.for_jobs(ThisProcess(), street) == street
    with Processes(1) as processes:
        processes.moves_files = True
        jobs = [streets.for_jobs(processes, street)]
        assert in_order(processes.run(network_bytes, jobs)) == [(street / "street.net.xml").read_bytes()]


def network_bytes(street):
    with streets.unpacked(street) as folder:
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
def test_files_that_cannot_be_packed_are_one_line(street, old, new, reason):
    sumocfg = street / "street.sumocfg"
    sumocfg.write_text(sumocfg.read_text().replace(old, new))
    (street.parent / "street.net.xml").touch()
    with pytest.raises(InputError, match=reason) as error:
        streets.pack(street)
    assert "\n" not in str(error.value)
