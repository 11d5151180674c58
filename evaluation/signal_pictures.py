"""The pictures by which signal engineers judge a controller (ATSPM), of one simulation of an arm.

    an arm that the controller runs   its decision events
    fixed, actuated                   SUMO is read after each of its steps, and every 5 s of the lanes

SUMO gets detectors for it, which change no traffic. docs/atspm.md explains the pictures.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from city.config import City
from city.network import StreetNetwork
from controller.assembly import ControlledTls, Start, checked_start
from controller.events import DecisionEvent
from controller.policies.no_policies import contracts_of_city
from controller.recording import run_start
from controller.recording.detectors import track_detectors
from controller.recording.messages import Encoder
from controller.sumo.connection import SumoConnection
from controller.sumo.network import running_signals
from controller.sumo.tracked_detectors import step_ends
from evaluation.actuated import PROGRAM
from protos import record_pb2 as record
from records.atspm import corridor, detectors
from records.atspm.analysis_period import ProgramChange, SignalReadings
from records.atspm.from_record import EventCollector, RecordSelection
from records.atspm.pictures import coordination, page, time_space
from records.atspm.pictures.phase_pictures import split_failure
from records.atspm.pictures.signal_view import SignalView, views
from records.record_reader import RecordedStep
from signals import phase_numbers
from simulation.controlled_simulation import Control

MAX_TLS = 10
"""TLs of which pictures are drawn: those with the most incoming lanes."""
READING_INTERVAL_S = 5.0
"""Simulated seconds between two readings of the lanes of signals that SUMO itself controls."""
MAIN_PHASE = 2
"""A direction of the main street, by the rule of the phases' numbers."""
ZERO = datetime(2000, 1, 1)
"""Date of simulated second 0; pictures show times of day alone."""


@dataclass(frozen=True)
class SignalPictures:
    """The pictures of an arm's simulation."""

    page: str
    by_tl: Mapping[str, SignalView]
    """By TL, its first signal, which `compared` draws."""


class PicturedTls:
    """The TLs of an evaluation of which pictures are drawn, and their detectors."""

    def __init__(self, city: City, street: StreetNetwork, tls: Sequence[str]) -> None:
        """Choose them among `tls`. Raises InputError if phases cannot be numbered, or a TL has nothing to control."""
        lanes = {tl: sum(len(street.signals[signal].lanes) for signal in city.tls[tl].signals) for tl in tls}
        largest = sorted(tls, key=lambda tl: -lanes[tl])[:MAX_TLS]
        self.city, self.street = city, street
        self.tls = tuple(tl for tl in tls if tl in largest)
        self.tl_of = {signal: tl for tl in self.tls for signal in city.tls[tl].signals}
        """Signal -> its TL."""
        self.phases = phase_numbers.of_city(city, street)
        self.contracts = tuple(contracts_of_city(city, self.tls, street).values())

    def write_detectors(self, path: Path, additional: Sequence[Path]) -> list[Path]:
        """Write a file with their detectors, and return it, unless one of SUMO's additional files has detectors
        already."""
        if any(detectors.read(file) for file in additional):
            return []
        detectors.write(path, [each for each in detectors.place(self.street) if each.signal in self.tl_of])
        return [path]


class _PicturedSignals:
    """The steps of the pictured TLs in one simulation."""

    def __init__(
        self, pictured: PicturedTls, connection: SumoConnection, control: Control, start: Start, tls: Sequence[str]
    ) -> None:
        """Begin to read the detectors of `tls`, which are among those of `control`."""
        signals = {signal for each in control.contracts if each.tl in tls for signal in each.signal_ids}
        found = track_detectors(connection, signals, start.sumo_step_s)
        safety, controller = pictured.city.safety, pictured.city.controller
        controlled = ControlledTls(pictured.street, tuple(control.contracts), safety, controller, control.driver)
        self._run = run_start.of_tls(controlled, start, found)
        self._encoder = Encoder(self._run)
        self._steps = EventCollector(
            self._run, pictured.phases, RecordSelection(frozenset(tls), vehicles_s=time_space.MAX_S)
        )
        self._tl_of = pictured.tl_of
        self._programs: dict[str, list[ProgramChange]] = {}
        """By signal that SUMO itself controls, its programs."""

    def pictures(self, title: str) -> SignalPictures:
        """The pictures, after the simulation has ended."""
        recorded = self._steps.recorded(ZERO)
        if self._programs:
            # the program of arm actuated is in none of the network's files, which say what is coordinated
            programs = {
                name: tuple(replace(each, is_coordinated=each.is_coordinated and each.id != PROGRAM) for each in own)
                for name, own in recorded.programs.items()
            }
            recorded = replace(recorded, programs=programs)
            own = [
                replace(each, modes=(), programs=tuple(self._programs[each.signal])) for each in recorded.period.signals
            ]
            recorded = replace(recorded, period=replace(recorded.period, signals=tuple(own)))
        drawn = views(recorded)
        corridors = corridor.find(recorded.street, recorded.phases, set(recorded.programs))
        about = ["Bands above the pictures are control modes, or programs if there was no controller."]
        by_tl: dict[str, SignalView] = {}
        for view in drawn:
            # without what its own diagrams do not need: simulators may send it from other machines
            period = replace(view.period, signals=(), detections=())
            lanes = SignalReadings(view.readings.lanes)
            by_tl.setdefault(self._tl_of[view.own.signal], replace(view, period=period, readings=lanes))
        return SignalPictures(page.page(title, about, drawn, corridors, recorded.notes), by_tl)


class ControlledSignals(_PicturedSignals):
    """A subscriber that collects the pictured TLs of an arm that the controller runs."""

    def __init__(self, pictured: PicturedTls, connection: SumoConnection, control: Control) -> None:
        """Begin to read the detectors. Raises InputError if a contract does not fit the running simulation."""
        start = checked_start(connection, pictured.street, control.contracts)
        # by signal: under a policy for any junction, a TL of several signals has several contracts
        own = [each.tl for each in control.contracts if not pictured.tl_of.keys().isdisjoint(each.signal_ids)]
        super().__init__(pictured, connection, control, start, own)

    def add(self, event: DecisionEvent) -> None:
        step, tl_steps = self._encoder.encode(event)
        self._steps.add(RecordedStep(step, 0, tl_steps))

    def close(self) -> None:
        """Do nothing: `pictures` is called after the end."""


class UncontrolledSignals(_PicturedSignals):
    """Simulates an arm that SUMO itself controls, and collects the pictured TLs meanwhile."""

    def __init__(self, pictured: PicturedTls, connection: SumoConnection) -> None:
        """Begin to read detectors, signals and lanes. Raises InputError if SUMO runs another network."""
        api, contracts = connection.api, pictured.contracts
        running = running_signals(api, pictured.street, [s for contract in contracts for s in contract.signal_ids])
        self._now = self._read_s = float(api.simulation.getTime())
        self._sumo_step_s = float(api.simulation.getDeltaT())
        self._tls = tuple(contract.tl for contract in contracts)
        start = Start(self._now, self._sumo_step_s, False, running)
        super().__init__(pictured, connection, Control(contracts), start, self._tls)
        links = {signal: len(pictured.street.signals[signal].links) for signal in running}
        connection.track(self._run.to_read, links)
        self._connection = connection
        self._number = 0
        self._programs = {signal: [] for signal in running}

    def advance(self, until_s: float) -> None:
        """Simulate to second until_s."""
        for end_s in step_ends(self._now, until_s, self._sumo_step_s):
            self._connection.advance(end_s)
            is_due = end_s >= self._read_s + READING_INTERVAL_S
            due = self._tls if is_due else ()
            result = self._connection.read(due)
            step = record.Step(number=self._number, at_s=end_s, due=range(len(due)))
            if is_due:
                self._read_s = end_s
                step.readings.CopyFrom(record.Readings(**self._encoder.readings(due, self._connection.readings)))
            step.shown.add(begin_s=self._now, end_s=end_s, states=self._connection.shown().values())
            for detector, time_s, is_entry in result.detector_changes:
                step.detectors.detector.append(detector)
                step.detectors.time_s.append(time_s)
                step.detectors.is_entry.append(is_entry)
            self._steps.add(RecordedStep(step, 0))
            for signal, program in self._connection.programs(list(self._programs)).items():
                changes = self._programs[signal]
                if not changes or changes[-1].program != program:
                    changes.append(ProgramChange(self._now, program))
            self._number, self._now = self._number + 1, end_s


def compared(views: Sequence[SignalView]) -> list[str]:
    """The pictures that compare a signal's control in several simulations, as HTML: arrivals, on the same axes, and
    split failures on its main street."""
    phases = [phase.number for phase in views[0].vehicle_phases] if views else []
    if not phases:
        return [""] * len(views)
    phase = MAIN_PHASE if MAIN_PHASE in phases else phases[0]
    return [coordination.draw(view, phase, views) + split_failure(view, phase) for view in views]
