"""Random access to a record: the same steps as read from the beginning, from few chunks, whatever is damaged."""

import contextlib
import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from city.errors import InputError
from records.playback.timeline import Timeline
from records.record_reader import RecordReader
from tests.records import mcap_bytes

MILLISECONDS = st.integers(-5_000, 340_000)
ENDS = (0, 40, 41, 90, None)
"""Steps at which the files of the run end."""


@pytest.fixture(scope="module")
def files(recorded_city, tmp_path_factory):
    """By form, the files of one run: whole, cut off, and several with one step in one of them."""
    folder = tmp_path_factory.mktemp("played")
    return {
        "whole": [recorded_city.write(folder / "whole.mcap")],
        "cut off": [recorded_city.write(folder / "cut.mcap", is_finished=False)],
        "several": [
            recorded_city.write(folder / f"{number}.mcap", begin, end, number, is_finished=number != 3)
            for number, (begin, end) in enumerate(itertools.pairwise(ENDS))
        ],
    }


class Run:
    """What was recorded, and the timelines of its files by form."""

    def __init__(self, recorded_city, files):
        self.steps = recorded_city.steps
        self.tls = [contract.tl for contract in recorded_city.start.contracts]
        self.files, self.timelines = files, {form: Timeline(paths) for form, paths in files.items()}


@pytest.fixture(scope="module")
def run(recorded_city, files):
    return Run(recorded_city, files)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(form=st.sampled_from(["whole", "cut off", "several"]), first=MILLISECONDS, length=st.integers(0, 60_000))
def test_any_time_has_the_steps_of_a_reader_from_the_beginning(run, form, first, length):
    timeline, first, last = run.timelines[form], first / 1000, (first + length) / 1000
    expected = [step for step, _, _ in run.steps if first <= step.at_s <= last]
    assert timeline.steps(first, last) == expected
    tls = [tls["SA102"] for step, tls, _ in run.steps if "SA102" in tls and first <= step.at_s <= last]
    assert timeline.tl_steps("SA102", first, last) == tls


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(form=st.sampled_from(["whole", "cut off", "several"]), at_s=MILLISECONDS.map(lambda ms: ms / 1000))
def test_the_steps_around_a_second_and_the_newest_of_each_tl(run, form, at_s):
    timeline, steps = run.timelines[form], run.steps
    before = [(step, ns) for step, _, ns in steps if step.at_s <= at_s]
    assert timeline.step_before(at_s) == (before[-1] if before else None)
    assert timeline.step_since(at_s) == next((step for step, _, _ in steps if step.at_s >= at_s), None)
    newest = {tl: tl_step for step, tls, _ in steps if at_s - 30 <= step.at_s <= at_s for tl, tl_step in tls.items()}
    assert timeline.newest_tl_steps(run.tls, at_s, 30.0) == newest
    assert list(timeline.steps_back(at_s, 30.0)) == timeline.steps(at_s - 30.0, at_s)[::-1]


@pytest.mark.parametrize("form", ["whole", "several"])
def test_a_second_of_a_record_is_read_from_few_of_its_chunks(files, form):
    timeline = Timeline(files[form])
    reads = timeline.reads
    assert len(timeline.places) > 20 and reads <= 3 * len(files[form])
    timeline.steps(200, 210)
    timeline.step_before(205)
    timeline.newest_tl_steps(["SA101", "not of this run"], 205, 10)
    list(timeline.steps_back(205, 10))
    assert 0 < (newly_read := timeline.reads - reads) <= 5
    timeline.steps(200, 210)
    assert timeline.reads - reads == newly_read, "a chunk is read once while it is kept"


def test_memory_is_bounded_by_chunks_that_are_dropped(files, monkeypatch):
    monkeypatch.setattr("records.playback.timeline.MAX_CACHED_BYTES", 1)
    timeline = Timeline(files["whole"])
    timeline.steps(0, 300)
    assert len(timeline._cache) == 1
    assert timeline.reads > 20


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=80)
@given(data=st.data())
def test_any_damage_is_an_input_error_or_leaves_other_steps(run, tmp_path, data):
    original = run.files[data.draw(st.sampled_from(["whole", "cut off"]))][0].read_bytes()
    damaged = bytearray(original[: data.draw(st.integers(0, len(original)))])
    for _ in range(data.draw(st.integers(0, 3))):
        if damaged:
            at = data.draw(st.integers(0, len(damaged) - 1))
            damaged[at : at + 8] = data.draw(st.binary(min_size=8, max_size=8))
    path = tmp_path / "damaged.mcap"
    path.write_bytes(damaged)
    known = {step.number for step, _, _ in run.steps}
    with contextlib.suppress(InputError):
        timeline = Timeline([path])
        steps = timeline.steps(timeline.first_s, timeline.last_s)
        assert {step.number for step in steps} <= known
        timeline.step_before(150)
        timeline.step_since(150)


def test_a_file_that_has_gone_is_named_and_the_others_are_read(recorded_city, tmp_path):
    paths = [
        recorded_city.write(tmp_path / f"{k}.mcap", begin, end, k)
        for k, (begin, end) in enumerate([(0, 40), (40, None)])
    ]
    timeline = Timeline(paths)
    paths[0].unlink()
    # what was read before is still there
    assert timeline.steps(30, 1000)[0].number == 40
    assert "0.mcap" in str(timeline.losses) and "No such file" in str(timeline.losses)


def test_a_history_is_shorter_where_chunks_are_larger(run):
    timeline = run.timelines["whole"]
    sizes = [place.end - place.begin for place, _ in timeline.places]
    assert timeline.history_s(300, 100, 1 << 30) == 200
    begins = [timeline.history_s(300, 400, size) for size in (1, 5 * max(sizes), 10 * max(sizes), sum(sizes))]
    assert begins == sorted(begins, reverse=True) and len(set(begins)) == 4
    assert 280 <= begins[0] <= 300 and begins[-1] == -0.001


@pytest.mark.parametrize("content", [b"", b"nothing of a record", b"\x89MCAP0\r\n"])
def test_a_file_without_steps_is_an_input_error(tmp_path, content):
    path = tmp_path / "empty.mcap"
    path.write_bytes(content)
    with pytest.raises(InputError, match="has no step that can be read; name another record"):
        Timeline([path])


def test_topics_of_another_program_are_not_read(run):
    timeline = run.timelines["whole"]
    assert {topic for place in timeline.places for topic in timeline._chunk(*place)} == {
        "/step",
        *(f"/tl/{tl}" for tl in run.tls),
    }


@pytest.mark.parametrize("is_finished", [True, False])
def test_zeros_over_several_chunks_lose_what_a_reader_from_the_beginning_loses(recorded_city, tmp_path, is_finished):
    path = recorded_city.write(tmp_path / "zeros.mcap", is_finished=is_finished)
    data = bytearray(path.read_bytes())
    begin, end = mcap_bytes.chunks(bytes(data))[5].begin - 3, mcap_bytes.chunks(bytes(data))[8].content + 20
    data[begin:end] = bytes(end - begin)
    path.write_bytes(data)
    with RecordReader(path) as reader:
        expected = [recorded.step.number for recorded in reader.steps()]
    timeline = Timeline([path])
    assert [step.number for step in timeline.steps(0, 1000)] == expected
    kept = range(len(recorded_city.steps) - 25, len(recorded_city.steps))
    assert len(expected) in kept and "damaged" in str(timeline.losses)
