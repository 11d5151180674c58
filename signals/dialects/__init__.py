"""Dialects: an observation and an action, exactly as one family of trainers has them.

An included dialect is one file in this folder, with its name (`sumo-rl` is sumo_rl.py) and
a DIALECT object that implements the protocol below. Others are the user's own: entry points of the group
`greenserve.dialects` of installed distributions, or named in city.toml as `module:Class`. Nothing else is imported:
neither a name in a contract nor a file in the city's folder.
The exporter, the controller and the trainers find a dialect by its name.
"""

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol

from city import user_code
from city.config import TL, City, Safety
from city.errors import InputError
from protos import policy_pb2 as pb
from serving.contract import ContractError
from signals.observation import Floats, Observer, PhaseSequencer
from signals.policy_signals import PolicySignal

GROUP = "greenserve.dialects"
OPTIONAL = ("runs_plan", "counts_outflow", "vehicle_lanes")
"""Methods of a Dialect that a dialect may inherit."""


class Dialect(Protocol):
    """A base class too: its methods with a result are those of most dialects."""

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
        return False

    def counts_outflow(self, contract: pb.PolicyContract) -> bool:
        """True if the observation counts vehicles that left a lane, which must be sampled every second."""
        return False

    def vehicle_lanes(self, contract: pb.PolicyContract) -> Sequence[str]:
        """The lanes whose single vehicles the observation needs (`Readings.by_vehicle`); mostly none."""
        return ()

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


@functools.cache
def installed() -> dict[str, list[EntryPoint]]:
    """By name, the dialects that installed distributions declare; they are not imported."""
    points: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=GROUP):
        points.setdefault(point.name, []).append(point)
    return points


def names() -> list[str]:
    """The names of the included dialects, and of those that installed distributions declare."""
    return sorted({*included_names(), *installed()})


def find(name: str, where: str) -> Dialect:
    """The dialect that the user names: by its name, or module:Class. Raises InputError; its text begins with `where`.

    Imports the module, so `name` must come from city.toml or a flag, never from a contract.
    """
    if ":" not in name:
        return _by_name(name, where)
    where = f"{where} dialect {name!r}"
    module, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), attribute)):
        raise InputError(f"{where} must be module:Class, such as my_package.counts:Counts")
    dialect = _imported(lambda: user_code.named(name), where, where)
    if dialect.name in names() or type(_of_cities.get(dialect.name, dialect)) is not type(dialect):
        raise InputError(f"{where}: its name {dialect.name!r} belongs to another dialect; rename it")
    return _of_cities.setdefault(dialect.name, dialect)


def _by_name(name: str, where: str) -> Dialect:
    if name in included_names():
        included: Dialect = importlib.import_module(f"{__name__}.{name.replace('-', '_')}").DIALECT
        return included
    where = f"{where} dialect {name!r}"
    if name not in installed():
        raise InputError(
            f"{where} is not one of {', '.join(names())}; for one of your own write module:Class in city.toml "
            "(docs/reference/dialects.md)"
        )
    values = sorted({point.value for point in installed()[name]})
    if len(values) > 1:
        raise InputError(f"{where} is declared by several distributions, as {' and as '.join(values)}; uninstall one")
    dialect = _imported(installed()[name][0].load, f"{where}, {values[0]},", where)
    if dialect.name != name:
        raise InputError(f"{where} has the name {dialect.name!r}; give both the same name")
    return dialect


def _imported(read: Callable[[], Any], source: str, where: str) -> Dialect:
    """The dialect that `read` imports, or an instance of the class. Raises InputError that names what is missing."""

    def instance() -> Any:
        found = read()
        return found() if isinstance(found, type) else found

    dialect: Dialect = user_code.imported(instance, f"{source} ")
    methods = [name for name, value in vars(Dialect).items() if callable(value) and not name.startswith("_")]
    missing = [name for name in Dialect.__annotations__ if not hasattr(dialect, name)]
    # what a dialect only inherits from Dialect, without a result, is not there
    missing += [
        f"{name}()"
        for name in methods
        if not callable(method := getattr(dialect, name, None))
        or (getattr(method, "__func__", None) is getattr(Dialect, name) and name not in OPTIONAL)
    ]
    if missing:
        raise InputError(f"{where} lacks {', '.join(missing)}; see the protocol in docs/reference/dialects.md")
    if not isinstance(dialect.name, str) or not dialect.name or ":" in dialect.name:
        raise InputError(f"{where} has the name {dialect.name!r}; it must be text without a colon, such as my-counts")
    return dialect


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
