"""A fleet that is served alone answers in every decision step over a publication and a rollback, at real-time pace.

The servers are embedded ones, which unload a version that is no longer listed as TensorFlow Serving does.
"""

import contextlib
import shutil
import time
from dataclasses import replace

import pytest

from city import config
from export.__main__ import main as export
from serving.client import Client
from serving.embedded import flags as embedded_flags
from serving.tf_serving.__main__ import main as serve_config
from tests.conftest import GRID
from tests.controller.policies.controlled_tls import ControlledTls
from tests.serving.conftest import running

FLEETS = {"city": ("SA101", "SA103", "SA104", "SA108")}
DISTRICTS = {"north": ("SA101", "SA103"), "south": ("SA104", "SA108")}
DECISION_S, PUBLICATION_S, DEADLINE_S = 0.1, 1.5, 0.5
"""Wall time between decision steps, within which every version change is complete, and of a step's deadline."""


class Street(ControlledTls):
    """A controller of one fleet's TLs, with the threads that it has in a run."""

    def __init__(self, closing, port, fleet, tls, version):
        client = closing.enter_context(Client(f"127.0.0.1:{port}", retries=0))
        super().__init__(client, tls, version, fleet, DEADLINE_S)
        self.fleet.update()
        self.fleet.updating.start()
        closing.callback(self.fleet.updating.stop)

    def missing(self):
        return [answer for answer in self.ask().values() if isinstance(answer, Exception)]


def write_city(folder, fleets):
    """A city.toml with a district for each of these fleets if there are several."""
    shutil.copy(GRID / "city.toml", folder)
    with_policies = {tl for tls in fleets.values() for tl in tls}
    # every TL belongs to a district
    others = [tl for tl in config.load(folder / "city.toml").tls if tl not in with_policies]
    tables = [
        f'[serving.districts.{name}]\naddress = "127.0.0.1:8500"\ntls = {list(tls) + others * (name == "south")}\n'.replace(
            "'", '"'
        )
        for name, tls in fleets.items()
    ]
    if len(fleets) > 1:
        with (folder / "city.toml").open("a") as file:
            file.write("\n".join(tables))


def run_decision_steps(streets, seconds, is_done=lambda: False):
    missing = []
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s and not is_done():
        begin_s = time.monotonic()
        missing += [error for street in streets for error in street.missing()]
        time.sleep(max(DECISION_S - (time.monotonic() - begin_s), 0.0))
    return missing


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("version", ["stable", None])
@pytest.mark.parametrize("fleets", [FLEETS, DISTRICTS], ids=["fleet", "districts"])
def test_no_answer_is_missing_over_a_publication_and_a_rollback(grid_models, tmp_path, fleets, version):
    models, out = tmp_path / "models", tmp_path / "config"
    for name, tls in fleets.items():
        for tl in tls:
            shutil.copytree(grid_models / tl, models / tl)
        assert export(["fleet", name, "--tl", ",".join(tls), "--models-dir", str(models)]) == 0
    write_city(tmp_path, fleets)
    flags = ["--city", str(tmp_path / "city.toml"), "--models-dir", str(models), "--out", str(out)]
    flags += ["--mounted-at", str(models), "--config-at", str(out), *(() if version else ("--latest",))]
    assert serve_config(flags) == 0
    with contextlib.ExitStack() as closing:
        streets = []
        for name, tls in fleets.items():
            folder = out / name if len(fleets) > 1 else out
            settings = embedded_flags.parse(
                [line.replace(f"={out}/", f"={folder}/") for line in (folder / "flags").read_text().splitlines()]
            )
            server = closing.enter_context(running(replace(settings, port=0, rest=None, poll_s=0.1, config_poll_s=0.1)))
            streets.append(Street(closing, server.port, name, tls, version))
        assert all(street.fleet.coverage.only_in_fleet == set(street.observations) for street in streets)

        def change(chosen):
            """Publish versions in the steps that an operator takes; return the errors of the answers meanwhile."""
            commands = [[*flags, *chosen], [*flags, *chosen, "--loaded"], [*flags, *chosen]] if version else [flags]
            missing = []
            for command in commands:
                assert serve_config(command) == 0
                missing += run_decision_steps(streets, PUBLICATION_S)
            return missing

        assert run_decision_steps(streets, DECISION_S) == []
        for name in fleets:
            shutil.copytree(models / name / "1", tmp_path / name)
            (tmp_path / name).rename(models / name / "2")
        assert change([]) == [] and {street.fleet.coverage.version for street in streets} == {2}
        if version is None:
            for name in fleets:
                (models / name / "2").rename(tmp_path / f"{name}-2")
        assert change([flag for name in fleets for flag in ("--model", f"{name}=1")]) == []
        assert {street.fleet.coverage.version for street in streets} == {1}
