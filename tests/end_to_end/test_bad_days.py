"""Days on which the clock jumps, or one district's server is lost."""

import contextlib
import json
import sys
import time

from controller.__main__ import main
from tests.end_to_end.programs import CITY, ModelServer, program, sumo
from tests.sample_city import DISTRICTS, districts, write_city

DAY_S = 86_400.0


def test_wall_clock_that_jumps_by_days_changes_nothing(grid_server, tmp_path, monkeypatch):
    """gRPC keeps the real clock: its core compares deadlines with it."""
    real, calls = time.time, []

    def jumping():
        if sys._getframe(1).f_globals["__name__"].partition(".")[0] == "grpc":
            return real()
        calls.append(None)
        return real() + DAY_S * (-1) ** len(calls)

    monkeypatch.setattr(time, "time", jumping)
    assert abs(time.time() - time.time()) > DAY_S
    flags = ("--server", grid_server, "--deadline-ms", "5000", "--summary", str(tmp_path / "summary"))
    assert main(["--city", CITY, "--libsumo", "--end", "120", *flags]) == 0
    summary = json.loads((tmp_path / "summary").read_text())
    assert summary["decisions"] > 120 and summary["missing_answers"] == summary["alarms"] == summary["fallbacks"] == 0


def test_district_whose_server_is_lost_leaves_the_other_untouched(grid_server, grid_models, tmp_path):
    lost = ModelServer(grid_models, tmp_path / "socket")
    city, controllers = write_city(tmp_path, more=districts(grid_server, lost.address)), []
    with sumo(2) as (port, _), contextlib.ExitStack() as closing:
        for order, name in enumerate(DISTRICTS, 1):
            arguments = ["--city", city, "--district", name, "--sumo", f"127.0.0.1:{port}", "--order", order]
            # answers may be late if other tests run beside this one
            arguments += ["--summary", tmp_path / name, "--end", 150, "--deadline-ms", 4000, "--no-guard"]
            controllers.append(closing.enter_context(program("controller", *arguments)))
        for controller in controllers:
            # SUMO begins when both clients are there
            assert any("controlling" in line for line in controller.stderr)
        lost.stop()
        for controller in controllers:
            log = controller.stderr.read()
            assert controller.wait(120) == 0, log
    north, south = (json.loads((tmp_path / name).read_text()) for name in DISTRICTS)
    assert north["missing_answers"] == 0 and north["decisions"] > 75 and north["alarms"] == 0
    assert south["missing_answers"] > 0 and south["fallbacks"] > 0 and south["alarms"] == 0
