"""The episodes of an environment: what the PettingZoo and the Gymnasium environment have in common.

Between two steps SUMO waits at a decision of at least one target TL. A step applies the actions of the TLs that decide
there, and ends at the next moment at which a target TL decides, or at the end of the episode.
"""

import contextlib
import csv
import functools
import io
import itertools
import numbers
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.error import ClosedEnvironmentError, InvalidAction, ResetNeeded
from gymnasium.logger import warn
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from city import whole_files
from city.errors import InputError, first_line
from controller.sumo.libsumo_connection import SimulationRunning
from controller.sumo.tripinfo import TABLE_SUFFIXES
from environment.options import Options, completed, demand_of, select, warn_if_moments_differ, warn_of_tensorflow
from environment.spaces import action_space, checked_action, feature_names, observation_space
from environment.street_image import StreetImage
from environment.sumo_rl import SAME, sumo_options
from environment.traffic_signal import TrafficSignal
from signals.dialects.sumo_rl import DIALECT
from signals.observation import Observation
from simulation.demand import MAX_SUMO_SEED, SimulatedDemand
from simulation.model_server import model_server
from simulation.rewards import RewardFunction
from simulation.scratch_folder import scratch_folder
from simulation.street_simulation import LIBSUMO, TRACI
from simulation.target_tls import TargetSimulation, TargetTls
from simulation.tl_readings import AccumulatedWaiting, TlReadings
from simulation.trips import Trips, read_trips

Info = dict[str, Any]
ActionSpace = Discrete[Any] | Box
SUMO_RL = DIALECT.name
HALTING_MPS = 0.1
_numbers = itertools.count()
"""Numbers of this process's environments, for the names of CSV files as sumo-rl counts them."""


def _of_readings(readings: Mapping[str, TlReadings], function: RewardFunction) -> RewardFunction:
    """A reward function that gets the readings of an environment, which have sumo-rl's names too."""

    @functools.wraps(function)
    def reward(measured: TlReadings) -> float:
        own = readings[measured.tl]
        own.now_s, own.decided_s = measured.now_s, measured.decided_s
        return function(own)

    return reward


class Episodes:
    """One episode after another of the target TLs."""

    def __init__(self, given: Options, is_single: bool) -> None:
        """Check the options, and start the server of the infer TLs if none is given. Raises InputError.

        `is_single`: it is the environment of one TL.
        """
        warn_of_tensorflow()
        self._stack = contextlib.ExitStack()
        self._finalizer = weakref.finalize(self, self._stack.close)
        self._readings: dict[str, TlReadings] = {}
        """By target TL, in this episode."""
        try:
            self._options = options = completed(given, is_single, lambda: self._stack.enter_context(scratch_folder()))
            self._sumo_options = sumo_options(options)
            task, versions = select(options, functools.partial(_of_readings, self._readings))
            server = task.server or self._stack.enter_context(model_server(versions))
            self._tls = TargetTls(replace(task, server=server))
            warn_if_moments_differ(self._tls.contracts)
        except BaseException:
            self._finalizer()
            raise
        self.contracts = {contract.tl: contract for contract in self._tls.contracts}
        self.observation_spaces: dict[str, Box] = {tl: observation_space(c) for tl, c in self.contracts.items()}
        self.action_spaces: dict[str, ActionSpace] = {tl: action_space(c) for tl, c in self.contracts.items()}
        self.feature_names = {tl: feature_names(contract) for tl, contract in self.contracts.items()}
        self._observe: dict[str, Callable[[], Observation]] = {}
        """By target TL, the user's observation in this episode."""
        if options["observation_class"] is not None:
            self._use_observation_class(options["observation_class"])
        self._number, self._begun_episodes = next(_numbers), 0
        self.figures: list[Info] = []
        """sumo-rl's figures at each step of the newest episode."""
        seed = options["sumo_seed"]
        self._seed: int | None = None if seed in (None, "random") else int(seed)
        self._is_seeded = self._seed is not None
        self._episode = -1
        """Number of the episode since the seed was set."""
        self._simulation: TargetSimulation | None = None
        self._running = contextlib.ExitStack()
        """Everything that the episode must close."""
        self._stack.push(self._running)
        self._image: StreetImage | None = None
        self._tl_of = {signal: tl for tl, contract in self.contracts.items() for signal in contract.signal_ids}
        self._begun: set[str] = set()
        """TLs that have taken a decision."""
        self.observations: dict[str, Observation] = {}
        """The newest of each target TL."""
        self.decides: dict[str, bool] = {}
        """By target TL, whether it decides now."""
        self.rewards: dict[str, float] = {}
        """By target TL, for the time since its last decision; 0 if it does not decide now."""
        self.infos: dict[str, Info] = {}
        """By target TL, what is known of it beside its observation; docs/environment.md has the keys."""
        self.ended_s: float | None = None
        """The second at which the episode ended; None before its end."""
        self._last_picture: NDArray[np.uint8] | None = None
        """Picture of the end, when SUMO runs no longer."""

    def reset(self, seed: int | None) -> None:
        """Begin an episode: the first one of a seed, or the next one. Raises InputError, SimulationFailed."""
        if not self._finalizer.alive:
            raise ClosedEnvironmentError("the environment is closed; make another one")
        self.end_episode()
        if seed is not None:
            if not isinstance(seed, numbers.Integral) or seed < 0:
                raise InputError(f"seed = {seed!r} must be an integer of 0 or more")
            self._seed, self._episode, self._is_seeded = int(seed), -1, True
        elif self._seed is None or (self._options["demand"] == SAME and not self._is_seeded):
            self._seed = int(np.random.SeedSequence().generate_state(1)[0]) % MAX_SUMO_SEED
        self._episode += 1
        self.ended_s = self._last_picture = None
        with self._ends_if_it_fails():
            folder = self._running.enter_context(scratch_folder())
            given = self._options["tripinfo"] or (folder / "trips.xml" if self._options["episode_summary"] else None)
            self._tripinfo = None if given is None else Path(given).resolve()
            self._simulation = self._started(demand_of(self._options["demand"], self._seed, self._episode), folder)
            self._begun, self._overrides, self.figures = set(), 0, []
            self._begun_episodes += 1
            self._begin_readings(self._simulation)
            self.observations = {tl: np.zeros(space.shape, np.float32) for tl, space in self.observation_spaces.items()}
            self._read(self._simulation)

    def _use_observation_class(self, observation_class: Callable[[Any], Any]) -> None:
        """Take the spaces of the user's observations. Raises InputError."""
        for tl, contract in self.contracts.items():
            if contract.observation.dialect != SUMO_RL:
                raise InputError(
                    f"observation_class: {tl} is of dialect {contract.observation.dialect}; it needs TLs of dialect "
                    f"{SUMO_RL}: write yours as a dialect (docs/reference/dialects.md)"
                )
            space = observation_class(TrafficSignal(contract, self._tls.street)).observation_space()
            if not isinstance(space, Box) or len(space.shape) != 1:
                raise InputError(f"observation_class: its space {space} for {tl} is not a Box of one dimension")
            self.observation_spaces[tl] = Box(space.low, space.high, dtype=np.float32)
            self.feature_names[tl] = [f"value[{k}]" for k in range(space.shape[0])]

    def _begin_readings(self, simulation: TargetSimulation) -> None:
        """Make the readings of the target TLs in an episode that begins."""
        connection, now = simulation.connection, simulation.now
        waiting = AccumulatedWaiting(connection)
        for tl, contract in self.contracts.items():
            if contract.observation.dialect == SUMO_RL:
                intersection = simulation.loop.intersections[tl]
                self._readings[tl] = signal = TrafficSignal(
                    contract, self._tls.street, connection, waiting, intersection, now
                )
                if (observation_class := self._options["observation_class"]) is not None:
                    self._observe[tl] = observation_class(signal)
            else:
                self._readings[tl] = TlReadings(contract, connection, self._tls.street, waiting, now)

    def _started(self, demand: SimulatedDemand, folder: Path) -> TargetSimulation:
        """Start SUMO: without a transport in the options, over libsumo, and over TraCI once libsumo is in use."""
        transport = self._options["transport"]

        def start(transport: str) -> TargetSimulation:
            simulation = self._tls.simulation(
                demand, self._tripinfo, folder=folder, transport=transport, options=self._sumo_options
            )
            self._simulated = self._running.enter_context(contextlib.ExitStack())
            return self._simulated.enter_context(simulation)

        try:
            return start(transport or LIBSUMO)
        except SimulationRunning as error:
            if transport is not None:
                raise InputError(
                    f'{error}: close the other environment, leave transport="{transport}" out, or run each environment '
                    "in a subprocess (SubprocVecEnv, AsyncVectorEnv)"
                ) from None
        self._options["transport"] = TRACI
        warnings.warn(
            "libsumo is in use in this process: this environment runs SUMO as a program of its own, which takes more "
            'time (transport="traci" says so; SubprocVecEnv and AsyncVectorEnv have libsumo in each process)',
            stacklevel=4,
        )
        return start(TRACI)

    def step(self, actions: Mapping[str, Any]) -> None:
        """Apply actions, and simulate to the next decision of a target TL, or to the end.

        `actions`: of all target TLs that decide now; those of others are checked and not used.
        Raises ResetNeeded, InvalidAction, SimulationFailed.
        """
        simulation = self._simulation
        if simulation is None:
            reason = "no episode runs" if self.ended_s is None else f"the episode ended at second {self.ended_s:g}"
            raise ResetNeeded(f"{reason}; call reset() before step()")
        if unknown := [tl for tl in actions if tl not in self.contracts]:
            raise InvalidAction(
                f"{unknown[0]} is not one of the target TLs {', '.join(self.contracts)}; leave its action out"
            )
        if missing := [tl for tl, decides in self.decides.items() if decides and tl not in actions]:
            raise InvalidAction(
                f"the action of {missing[0]} is missing, which decides at second {simulation.now:g}; pass it"
            )
        checked = {tl: checked_action(tl, self.action_spaces[tl], action) for tl, action in actions.items()}
        with self._ends_if_it_fails():
            simulation.act(checked)
            self._read(simulation)
            if simulation.is_over:
                if self._options["render_mode"] == "rgb_array":
                    self._last_picture = self.render()
                self.ended_s = simulation.now
                self._simulated.close()  # so that the trips are complete
                trips = self._tripinfo if self._options["episode_summary"] else None
                # it may be a table, or additional_sumo_cmd names another file
                if trips and TABLE_SUFFIXES.isdisjoint(trips.suffixes) and trips.is_file():
                    last = summary(read_trips(trips, self.ended_s), self._overrides)
                    for info in self.infos.values():
                        info.update(last)
                self.end_episode()  # so that another environment may run

    def _read(self, simulation: TargetSimulation) -> None:
        """Simulate on until a target TL decides, and read its observation and reward."""
        while True:
            observations = simulation.observe()
            deciding = {tl for tl in observations if simulation.decides(tl)}
            if deciding or simulation.is_over:
                break
            simulation.act({})
        for tl in self._observe.keys() & observations.keys():
            observations[tl] = np.asarray(self._observe[tl](), np.float32).reshape(self.observation_spaces[tl].shape)
        self.observations.update(observations)
        self.decides = {tl: tl in deciding for tl in self.contracts}
        self.rewards = dict.fromkeys(self.contracts, 0.0)
        first = [tl for tl in self.contracts if tl in deciding and tl not in self._begun]
        if first and not simulation.is_over:
            simulation.rewards.begin(first, simulation.now)
        rewarded = [tl for tl in self.contracts if tl in self._begun and (self.decides[tl] or simulation.is_over)]
        self.rewards.update(zip(rewarded, simulation.rewards.since_last(rewarded, simulation.now), strict=True))
        self._begun.update(deciding)
        self.infos = self._infos_now(simulation)

    def _infos_now(self, simulation: TargetSimulation) -> dict[str, Info]:
        """By target TL, its info: time, requested and permitted states, and the overrides since the last step."""
        overrides: dict[str, list[Info]] = {tl: [] for tl in self.contracts}
        for sent in simulation.take_overrides():
            for override in sent.overrides:
                if tl := self._tl_of.get(override.signal):
                    self._overrides += 1
                    overrides[tl].append({
                        "at_s": sent.at_s, "signal": override.signal, "reason": override.reason.value,
                        "requested": override.requested, "permitted": override.permitted,
                    })  # fmt: skip
        infos, figures, now = {}, self._figures(simulation), simulation.now
        for tl in self.contracts:
            intersection = simulation.loop.intersections[tl]
            mask = intersection.action_mask(now)
            infos[tl] = {
                **({} if mask is None else {"action_mask": np.array(mask, np.int8)}),
                **figures[tl],
                "time_s": now,
                "decides": self.decides[tl],
                "overrides": overrides[tl],
                "requested_states": dict(zip(self.contracts[tl].signal_ids, intersection.requested, strict=False)),
                "permitted_states": {safety.signal: safety.shown for safety in intersection.safeties},
            }
        return infos

    def _figures(self, simulation: TargetSimulation) -> dict[str, Info]:
        """By target TL, sumo-rl's figures as the options ask for them; those of all TLs are appended to `figures`."""
        options, now = self._options, {"step": simulation.now}
        system = system_info(simulation.connection.api) if options["add_system_info"] else {}
        agents = {tl: agent_info(own) for tl, own in self._readings.items()} if options["add_per_agent_info"] else {}
        total = totals(agents) if agents else {}
        own = {name: value for each in agents.values() for name, value in each.items()}
        self.figures.append({**now, **system, **own, **total})
        every = {**(now if system or agents else {}), **system, **total}
        return {tl: {**every, **agents[tl]} if agents else every for tl in self.contracts}

    def render(self) -> NDArray[np.uint8] | None:
        """The street around the target TLs: uint8 [height, width, 3]; None without a render mode. Raises
        ResetNeeded."""
        if self._options["render_mode"] is None:
            warn('render() needs a render mode; pass render_mode="rgb_array"', stacklevel=3)
        if self._options["render_mode"] != "rgb_array":
            return None  # sumo-gui shows the street
        if self._last_picture is not None:
            return self._last_picture
        if self._simulation is None:
            raise ResetNeeded("no episode runs; call reset() before render()")
        if self._image is None:
            self._image = StreetImage(self._tls.street, self.contracts.values())
        return self._image.draw(self._simulation.connection.api)

    def close(self) -> None:
        """End the episode and the server; nothing is left behind. Safe to repeat."""
        try:
            self.end_episode()
        finally:
            self._finalizer()

    def end_episode(self) -> None:
        """End SUMO, and write the CSV file of an episode that runs. Raises InputError."""
        has_figures = self._simulation is not None and self.figures
        self._simulation = None
        self._running.close()
        if has_figures and self._options["out_csv_name"] is not None:
            self.save_csv(self._options["out_csv_name"], self._begun_episodes)

    def save_csv(self, beginning: str | Path, episode: int) -> None:
        """Write the figures of the newest episode. `beginning`: of the file's path. Raises InputError."""
        write_csv(Path(f"{beginning}_conn{self._number}_ep{episode}.csv"), self.figures)

    @contextlib.contextmanager
    def _ends_if_it_fails(self) -> Iterator[None]:
        """End the episode if the block fails: SUMO must not run on."""
        try:
            yield
        except BaseException:
            self.end_episode()
            raise


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
