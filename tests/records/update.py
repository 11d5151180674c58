"""`python -m tests.records.update`: decide the committed records again, write them anew, print what
changed.

The readings and answers stay; observations, states, modes and alarms are those of this code. With --simulate the runs
are simulated again under SUMO, which a change of the decisions' moments or of the record's format needs.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from city import config
from city.config import City
from controller.recording.record_writer import RecordWriter
from records.record_reader import RecordReader
from records.recorded_run import RecordedRun
from records.replay import Replay
from tests.conftest import GRID
from tests.records.replayed_city import record_run

FOLDER = Path(__file__).parent / "records"


def sample_city() -> City:
    return config.load(GRID / "city.toml")


def street_city() -> City:
    """TLs of the street dialect, with max-pressure as the fallback."""
    city = sample_city()
    kept = {name: tl for name, tl in city.tls.items() if name in ("SA101", "SA104", "SA105")}
    tls = {name: replace(tl, dialect="street", state=None, action=None) for name, tl in kept.items()}
    return replace(city, tls=tls, controller=replace(city.controller, fallback="max-pressure"))


RECORDS: dict[str, tuple[Callable[[], City], float]] = {
    "sample-city": (sample_city, 300.0),
    "street": (street_city, 150.0),
}
"""By name: its city, and the second at which control ends."""


def path(name: str) -> Path:
    return FOLDER / f"{name}.mcap"


def main() -> None:
    """Write the records anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulate", action="store_true", help="simulate the runs again under SUMO")
    simulates = parser.parse_args().simulate
    for name, (city, end_s) in RECORDS.items():
        file = path(name)
        if simulates:
            record_run(file, city(), end_s)
            print(f"{name}: simulated again, {file.stat().st_size} bytes")
            continue
        draft = file.with_suffix(".draft")
        with RecordReader(file) as reader, draft.open("wb") as stream:
            head = reader.city
            writer = RecordWriter(stream, head, reader.attachments, head.begin_unix_ns, state=reader.state)
            replay = Replay(RecordedRun([file]), on_step=writer.add)
            replay.run()
            writer.finish()
        print(f"{name}: {replay.differences.first or 'the same'}")
        if replay.differences.first is None or replay.not_recorded is not None:
            draft.unlink()
        else:
            draft.replace(file)
        if replay.not_recorded is not None:
            raise SystemExit("the record has no readings there; run again with --simulate")
        for (tl, field), count in replay.differences.counts.most_common():
            print(f"    {tl or '-'} {field}: {count} differences")


if __name__ == "__main__":
    main()
