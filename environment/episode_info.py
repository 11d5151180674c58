"""Figures of an episode in sumo-rl's names, its CSV file, and the summary of an episode's trips."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from city import whole_files
from city.errors import InputError, first_line
from simulation.tl_readings import TlReadings
from simulation.trips import Trips

HALTING_MPS = 0.1


def system_info(api: Any) -> dict[str, float]:
    """sumo-rl's figures of all vehicles. `api`: traci's connection, or libsumo."""
    vehicles = api.vehicle.getIDList()
    speeds = [api.vehicle.getSpeed(vehicle) for vehicle in vehicles]
    waiting_s = [api.vehicle.getWaitingTime(vehicle) for vehicle in vehicles]
    return {
        "system_total_stopped": sum(speed < HALTING_MPS for speed in speeds),
        "system_total_waiting_time": sum(waiting_s),
        "system_mean_waiting_time": float(np.mean(waiting_s)) if vehicles else 0.0,
        "system_mean_speed": float(np.mean(speeds)) if vehicles else 0.0,
    }


def agent_info(tl: TlReadings) -> dict[str, float]:
    """sumo-rl's figures of a TL."""
    return {
        f"{tl.tl}_stopped": tl.queued(),
        f"{tl.tl}_accumulated_waiting_time": sum(tl.accumulated_waiting_s()),
        f"{tl.tl}_average_speed": tl.average_speed(),
    }


def totals(agents: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """sumo-rl's sums over all TLs. `agents`: `agent_info` by TL."""
    return {
        f"agents_total_{name}": sum(info[f"{tl}_{name}"] for tl, info in agents.items())
        for name in ("stopped", "accumulated_waiting_time")
    }


def summary(trips: Trips, overrides: int) -> dict[str, float]:
    """An episode's trips: means over all vehicles, also those that have not arrived or departed."""
    return {
        "episode_delay_s": trips.delay_s,
        "episode_duration_s": trips.duration_s,
        "episode_stops": trips.stops,
        "episode_arrived": trips.finished,
        "episode_vehicles": trips.total,
        "episode_overrides": overrides,
    }


def write_csv(path: Path, rows: Sequence[Mapping[str, float]]) -> None:
    """Write an episode's figures as sumo-rl does. Raises InputError."""
    text = io.StringIO()
    table = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"out_csv_name: {path.parent}: {first_line(error)}; pass another path") from None
    whole_files.write(path, text.getvalue())
