"""Recorded observations as warm-up records and arrays."""

import numpy as np
import pytest

from records import observation_files
from records.export import main as export
from records.recorded_run import RecordedRun
from tests.records.test_replay import rewrite
from tests.records.update import path


def main(arguments):
    return export(arguments, "greenserve record export")


def recorded(tl):
    """[n, O], the recorded observations of a TL."""
    steps = RecordedRun([path("sample-city")]).steps()
    return np.array(
        [s.tls[tl].decision.observation for s in steps if tl in s.tls and s.tls[tl].HasField("decision")], np.float32
    )


def test_warm_up_records_are_those_of_tensorflow_serving(tmp_path):
    from export.saved_model import write

    assert main([str(path("sample-city")), "--warmup", str(tmp_path)]) == 0
    assert len(list(tmp_path.iterdir())) == 8
    for tl in ("SA101", "SA107"):
        (tmp_path / tl / "assets.extra").mkdir()
        (tmp_path / tl / "tf_serving_warmup_requests").rename(tmp_path / tl / write.WARMUP_FILE)
        records = write.read_warmup(tmp_path / tl)  # TensorFlow's reader verifies the checksums
        assert {signature for signature, _ in records} == {"serving_default"}
        assert np.array_equal(np.concatenate([inputs["observation"] for _, inputs in records]), recorded(tl))


def test_observations_are_written_as_arrays_by_tl(tmp_path):
    assert main([str(path("sample-city")), "--observations", str(tmp_path)]) == 0
    written = np.load(tmp_path / "SA105.npy", allow_pickle=False)
    assert written.dtype == np.float32
    assert np.array_equal(written, recorded("SA105"))


def test_observations_beyond_the_limit_are_spread_over_the_time(monkeypatch, tmp_path):
    monkeypatch.setattr(observation_files, "MAX_OBSERVATIONS", 10)
    assert main([str(path("sample-city")), "--observations", str(tmp_path)]) == 0
    written, of_run = np.load(tmp_path / "SA105.npy"), recorded("SA105")
    assert 5 <= len(written) <= 10
    kept = [int(np.flatnonzero((of_run == each).all(1))[0]) for each in written]
    assert np.all(np.diff(kept) > 0)
    assert kept[-1] >= len(of_run) / 2


@pytest.mark.parametrize("flag", ["--warmup", "--observations"])
def test_tl_with_a_name_that_leads_out_of_the_folder_is_refused(flag, tmp_path, capsys):
    def renamed(city):
        city.contracts[0].tl = "../SA101"

    def moved(step):
        if "SA101" in step.tls:
            step.tls["../SA101"] = step.tls.pop("SA101")
        return step

    changed = rewrite(path("sample-city"), tmp_path / "run.mcap", moved, renamed)
    assert main([str(changed), flag, str(tmp_path / "out")]) in (2, 3)
    assert "error" in capsys.readouterr().err
    assert not list(tmp_path.glob("SA101*"))
