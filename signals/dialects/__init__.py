"""Dialects: an observation and an action, exactly as one family of trainers has them.

An included dialect is one file in this folder, with its name (`sumo-rl` is sumo_rl.py) and
a DIALECT object that implements the protocol below. Others are the user's own (`user_dialects`).
The exporter, the controller and the trainers find a dialect by its name.
"""

import functools
import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Protocol

from city.config import TL, City, Safety
from city.errors import InputError
from protos import policy_pb2 as pb
from serving.contract import ContractError
from signals import user_dialects
from signals.observation import Floats, Observer, PhaseState
from signals.policy_signals import PolicySignal

ActionValues = Sequence[float]
"""The values of an action: one index of a categorical policy, or A values in [-1, 1]."""


class PhaseSequencer(Protocol):
    """Turns the decisions of one TL into the states that its signals should show, second by second.

    The states are only requested: the safety rules have the last word. Moments
    are rounded to the millisecond (`simulation_time`).
    """

    def enter(self, now: float, shown: Sequence[str], start: bool = False) -> None:
        """Take over from the states that are shown; `start`: at the beginning of the run."""

    def apply_action(self, now: float, action: ActionValues) -> None:
        """Start the change that the policy's action requests."""

    def requested_states(self, now: float) -> tuple[str, ...]:
        """The state that each signal should show at second `now`."""

    def note_shown(self, now: float, signal: int) -> None:
        """Record that signal number `signal` shows its requested state at second `now`: safety rules may have delayed
        it."""

    def phase_state(self, now: float) -> PhaseState:
        """The TL's own phases at second `now`, for its observation."""

    def next_change_s(self, now: float) -> float:
        """When the requested states next change without a decision, in s; inf if they do not."""

    def note_asked(self, now: float) -> None:
        """Record that the policy was asked at `now`, with or without an answer: its next decision is a later one."""

    def next_decision_s(self, now: float) -> float:
        """The first decision moment after `now`."""

    def decides_at(self, now: float) -> bool:
        """True if a decision may be taken at `now`; if not, an answer only shows that the policy is available."""


class Dialect(Protocol):
    name: str
    action_kinds: tuple[str, ...]
    file_name_settings: tuple[str, ...]
    """Keys of [tl.NAME] that checkpoint file names of this dialect may set."""

    def check_settings(self, tl: TL) -> None:
        """Raise InputError if settings of a [tl.NAME] table do not fit this dialect; missing keys are None."""

    def action_kind(self, tl: TL) -> str:
        """The contract's kind of action: `categorical`, or a kind of this dialect alone."""

    takes_first_program: bool
    """True if the family's own trainer takes each signal's first program and all its green phases, whichever runs."""

    def build_contract(self, tl: TL, signals: Sequence[PolicySignal], safety: Safety) -> pb.PolicyContract:
        """The contract of a TL without its origin. Raises InputError."""

    def check_contract(self, contract: pb.PolicyContract) -> None:
        """Raise ContractError if a contract contradicts itself; `serving.contract.check` has passed."""

    def runs_plan(self, contract: pb.PolicyContract) -> bool:
        """True if actions modify the plan of the program, so that its durations must be those of training."""

    def counts_outflow(self, contract: pb.PolicyContract) -> bool:
        """True if the observation counts vehicles that left a lane, which must be sampled every second."""

    def vehicle_lanes(self, contract: pb.PolicyContract) -> Sequence[str]:
        """The lanes whose single vehicles the observation needs (`Readings.by_vehicle`); mostly none."""

    def observer(self, contract: pb.PolicyContract, lane_row: Mapping[str, int], length_m: Floats) -> Observer:
        """The observer of a contract. `lane_row`: a lane's row in the readings and in `length_m`."""

    def sequencer(self, contract: pb.PolicyContract) -> PhaseSequencer:
        """The phase sequencer of a contract, with the times of training; SignalSafety applies the street's floors."""


_of_cities: dict[str, Dialect] = {}
"""Dialects that a city.toml of this process has named as module:Class, by their own names, which contracts contain. A
contract may be untrusted, so it can select among these, and never have a module imported."""


def included_names() -> tuple[str, ...]:
    """The names of the dialects in this folder."""
    return _names_in(tuple(__path__))


@functools.cache
def _names_in(folders: tuple[str, ...]) -> tuple[str, ...]:
    """Read once: a city asks for each of its TLs."""
    return tuple(sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(folders)))


def names() -> list[str]:
    """The names of the included dialects, and of those that installed distributions declare."""
    return sorted({*included_names(), *user_dialects.installed()})


def find(name: str, where: str) -> Dialect:
    """The dialect that the user names: by its name, or module:Class. Raises InputError; its text begins with `where`.

    Imports the module, so `name` must come from city.toml or a flag, never from a contract.
    """
    if ":" not in name:
        return _by_name(name, where)
    dialect: Dialect = user_dialects.load(name, f"{where} dialect {name!r}", Dialect)
    if dialect.name in names() or type(_of_cities.get(dialect.name, dialect)) is not type(dialect):
        raise InputError(f"{where} dialect {name!r}: its name {dialect.name!r} belongs to another dialect; rename it")
    return _of_cities.setdefault(dialect.name, dialect)


def _by_name(name: str, where: str) -> Dialect:
    """The dialect of a name, without a module:Class. Raises InputError."""
    if name in included_names():
        dialect: Dialect = importlib.import_module(f"{__name__}.{name.replace('-', '_')}").DIALECT
        return dialect
    if name in user_dialects.installed():
        declared = f"{where} dialect {name!r}"
        dialect = user_dialects.load_installed(name, declared, Dialect)
        if dialect.name != name:
            raise InputError(f"{declared} has the name {dialect.name!r}; give both the same name")
        return dialect
    raise InputError(
        f"{where} dialect {name!r} is not one of {', '.join(names())}; for one of your own write module:Class in "
        "city.toml (docs/reference/dialects.md)"
    )


def contradiction(contract: pb.PolicyContract, reason: str) -> ContractError:
    """The error for a contract that contradicts itself. `reason`: continues "the contract of SA101 "."""
    return ContractError(
        f"the contract of {contract.tl} {reason}; export it again (greenserve export --tl {contract.tl})"
    )


def action_kinds() -> list[str]:
    """The kinds of action of the included dialects."""
    return sorted({kind for name in included_names() for kind in find(name, "").action_kinds})


def of(contract: pb.PolicyContract) -> Dialect:
    """The dialect of a contract, which never causes the import of a module:Class. Raises InputError."""
    name = contract.observation.dialect
    return _of_cities.get(name) or _by_name(name, f"the contract of {contract.tl}:")


def check_city_settings(city: City) -> None:
    """Raise InputError unless every [tl.NAME] table fits its dialect."""
    for name, tl in city.tls.items():
        where = f"{city.path}: [tl.{name}]"
        dialect = find(tl.dialect, where)
        try:
            dialect.check_settings(tl)
        except InputError as error:
            raise InputError(f"{where} {error}") from None
