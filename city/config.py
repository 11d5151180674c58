"""Read city.toml, the file that describes a city for the exporter, server and controller.

Paths in the file are relative to the file. Unknown tables and keys are errors:
a misspelt safety value must not be silently ignored.
"""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from city import names
from city.arguments import host_and_port
from city.errors import InputError

FALLBACKS = ("plan", "max-pressure")
PADDINGS = ("supersuit",)
FLOORS = ("street", "dialect")
RENAMED_KEYS = {
    ("[safety]", "walking_mps"): "walking_speed_mps",
    ("[controller]", "probes"): "recovery_answers",
    ("[tl]", "sizes"): "hidden_sizes",
}
"""(table, old key) -> the key's name since 0.2."""
SUMO_RL_KEYS = {
    "delta_time": "delta_time_s",
    "yellow_time": "yellow_s",
    "min_green": "min_green_s",
    "max_green": "max_green_s",
    "begin_time": "begin_s",
}
"""sumo-rl's name of an option -> the key of [tl.NAME], or of [network], that means the same."""
_TYPES: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (int, float), "Path": (str,)}
_TYPE_NAMES = {"str": "a string", "int": "an integer", "float": "a number", "Path": "a path in quotes"}
MAX_DEADLINE_MS, MAX_WATCHDOG_S = 60_000, 3599


@dataclass(frozen=True)
class Network:
    """[network]: the street."""

    sumocfg: Path | None = None
    """SUMO configuration; gives network, demand and additional files."""
    net: Path | None = None
    """Network file, if there is no sumocfg."""
    begin_s: float | None = None
    """First simulated second of a simulation that is started here. None: the sumocfg's."""


@dataclass(frozen=True)
class Training:
    """[training]: the checkpoints."""

    model_path: Path | None = None
    model_number: int | None = None
    """None: the newest."""
    target_tls: tuple[str, ...] | None = None
    """TLs in training's order, which assigns `Actor_0`, `Actor_1`, ... to them."""
    padding: str | None = None
    """`supersuit`: TLs of several sizes share a policy, whose observations and actions SuperSuit padded. None: no padding."""


@dataclass(frozen=True)
class District:
    """[serving.districts.NAME]: TLs whose models have a server of their own, and are driven by a controller of their own."""

    address: str
    tls: tuple[str, ...]
    fleet: str = ""
    """Fleet of these TLs; empty: the district's name."""


@dataclass(frozen=True)
class Serving:
    """[serving]: the models and their server."""

    models_dir: Path = Path("models")
    address: str = "127.0.0.1:8500"
    grpc_socket_path: Path | None = None
    """Unix socket on which the server also listens, for clients on this machine."""
    fleet: str = "city"
    """Fleet that the controller queries for all TLs at once, if it is served; empty: none."""
    tls_ca: Path | None = None
    """CA bundle (PEM) that verifies the server; with any of the tls_ keys connections use TLS."""
    tls_certificate: Path | None = None
    """Client certificate (PEM), for mTLS."""
    tls_key: Path | None = None
    tls_server_name: str = ""
    """Name in the server's certificate, if it differs from the address."""
    districts: dict[str, District] = field(default_factory=dict)
    """By name; {}: one server has all models."""

    @property
    def local_address(self) -> str:
        """The address for clients on this machine."""
        return self.address if self.grpc_socket_path is None else f"unix:{self.grpc_socket_path}"


@dataclass(frozen=True)
class Safety:
    """[safety]: floors and bounds for every policy, in s."""

    min_yellow_s: float = 3.0
    min_green_s: float = 4.0
    all_red_s: float | None = None
    """None: by link, from its approach speed and its path over the junction (`red_clearance_s`)."""
    max_green_s: float | None = None
    """None: no bound."""
    max_red_s: float | None = None
    """A link that has been red for longer is served next; None: no bound."""
    walking_speed_mps: float = 1.2
    """Walking speed in m/s, for the clearance of pedestrian crossings."""
    floors: str = "street"
    """`street`: the times above, the yellow of the approach speed and the clearance of crossings are minima of every
    policy. `dialect`: yellow, all-red and min green are exactly the contract's, as in training."""


@dataclass(frozen=True)
class Controller:
    """[controller]: the daemon."""

    deadline_ms: float = 500.0
    """Bound on one decision in ms of wall time, from the readings on."""
    hold_s: float = 15.0
    """Simulated seconds for which a TL without an answer holds its state before it falls back."""
    http_address: str | None = None
    """HOST:PORT of /metrics and /healthz. None: off."""
    watchdog_s: float = 10.0
    """Wall time in s for which a controller may be silent until its guard hands its signals back."""
    fallback: str = "plan"
    """What controls a TL in control mode fallback: `plan`, its signals' own programs, or `max-pressure`."""
    recovery_answers: int = 2
    """Valid answers in a row that bring a TL back from its fallback to its policy."""


@dataclass(frozen=True)
class TL:
    """[tl.NAME]: one policy's signals and dialect. Times in s.

    Fields that are None take the dialect's defaults (docs/reference/city-toml.md).
    """

    signals: tuple[str, ...]
    dialect: str
    name: str = ""
    state: str | None = None
    action: str | None = None
    delta_time_s: int | None = None
    yellow_s: float | None = None
    all_red_s: float | None = None
    min_green_s: float | None = None
    max_green_s: float | None = None
    control_cycle: int | None = None
    add_time_s: int | None = None
    offset_range: int | None = None
    action_t_s: int | None = None
    actionp: float | None = None
    actor: str | None = None
    """Architecture of the actor if its checkpoint does not determine it, or module:function."""
    hidden_sizes: tuple[int, ...] | None = None
    """Units of its hidden layers, to check or complete the file name's."""
    hidden_activation: str | None = None
    output_activation: str | None = None
    batch_norm_epsilon: float | None = None
    """Epsilon of its batch norms, which is not part of the weights; None: 1e-5."""
    layers: tuple[str, ...] | None = None
    """Names of a subclassed model's layers, in call order."""
    scope: str | None = None
    """The actor's variable scope in a checkpoint that holds several agents."""
    output_tensor: str | None = None
    """The actor's output in a training graph, if the exporter finds another one."""


@dataclass(frozen=True)
class City:
    path: Path
    network: Network = field(default_factory=Network)
    training: Training = field(default_factory=Training)
    serving: Serving = field(default_factory=Serving)
    safety: Safety = field(default_factory=Safety)
    controller: Controller = field(default_factory=Controller)
    tls: dict[str, TL] = field(default_factory=dict)


def load(path: Path) -> City:
    """Read a city.toml. Raises InputError with the file, table and key."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; run in the city's folder or pass --city FILE") from None
    except RecursionError:
        raise InputError(f"{path}: cannot be read as TOML: its lists or tables are nested too deeply") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path}: cannot be read as TOML: {error}") from None
    here = path.resolve().parent
    sections = {"network": Network, "training": Training, "serving": Serving, "safety": Safety, "controller": Controller}
    unknown = set(raw) - set(sections) - {"tl"}
    if unknown:
        raise InputError(f"{path}: unknown table [{sorted(unknown)[0]}]; the tables are {', '.join([*sections, 'tl.NAME'])}")
    districts = raw["serving"].pop("districts", {}) if isinstance(raw.get("serving"), dict) else {}
    read = {name: _section(path, here, f"[{name}]", kind, raw.get(name, {})) for name, kind in sections.items()}
    tls = _tls(path, here, raw.get("tl", {}))
    read["serving"] = replace(read["serving"], districts=_districts(path, here, districts, list(tls)))
    serving: Serving = read["serving"]
    if serving.fleet:
        read["serving"] = serving = replace(serving, fleet=_fleet_name(f"{path}: [serving] fleet", serving.fleet))
    if not serving.models_dir.is_absolute():
        read["serving"] = replace(serving, models_dir=here / serving.models_dir)
    training: Training = read["training"]
    if training.padding not in (None, *PADDINGS):
        raise InputError(f"{path}: [training] padding = {training.padding!r} must be {', '.join(PADDINGS)}, or left out")
    if training.target_tls is not None:
        known = names.by_key(tls)
        targets = tuple(known.get(names.key(tl)) or names.canonical(tl) for tl in training.target_tls)
        read["training"] = replace(training, target_tls=targets)
    for section, key in (("controller", "deadline_ms"), ("controller", "watchdog_s"), ("safety", "walking_speed_mps")):
        if not getattr(read[section], key) > 0:
            raise InputError(f"{path}: [{section}] {key} must be greater than 0")
    control: Controller = read["controller"]
    for key, value, limit in (
        ("deadline_ms", control.deadline_ms, MAX_DEADLINE_MS),
        ("watchdog_s", control.watchdog_s, MAX_WATCHDOG_S),
    ):
        if value > limit:
            raise InputError(f"{path}: [controller] {key} = {value:g} must be at most {limit}")
    safety: Safety = read["safety"]
    if safety.max_green_s is not None and safety.max_green_s < safety.min_green_s:
        raise InputError(
            f"{path}: [safety] max_green_s = {safety.max_green_s:g} must not be less than min_green_s, {safety.min_green_s:g}"
        )
    if safety.max_red_s is not None and safety.max_red_s < safety.min_green_s + safety.min_yellow_s:
        raise InputError(
            f"{path}: [safety] max_red_s = {safety.max_red_s:g} must not be less than a green and a yellow together, "
            f"{safety.min_green_s + safety.min_yellow_s:g}"
        )
    if safety.floors not in FLOORS:
        raise InputError(f"{path}: [safety] floors = {safety.floors!r} must be one of {', '.join(FLOORS)}")
    if control.recovery_answers < 1:
        raise InputError(f"{path}: [controller] recovery_answers = {control.recovery_answers} must be at least 1")
    if control.http_address is not None:
        host_and_port(control.http_address, f"{path}: [controller] http_address")
    if control.fallback not in FALLBACKS:
        raise InputError(f"{path}: [controller] fallback = {control.fallback!r} must be one of {', '.join(FALLBACKS)}")
    return City(path=path, tls=tls, **read)


def _fleet_name(where: str, name: str) -> str:
    try:
        return names.canonical(name)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _districts(path: Path, here: Path, table: Any, known: Sequence[str]) -> dict[str, District]:
    """The districts: every TL is in one of them. Raises InputError."""
    if not isinstance(table, dict):
        raise InputError(f"{path}: [serving.districts] must contain tables such as [serving.districts.north]")
    districts: dict[str, District] = {}
    owner: dict[str, str] = {}
    for name, body in table.items():
        where = f"[serving.districts.{name}]"
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?", name):
            raise InputError(f"{path}: {where} must be named by lower-case letters, digits and hyphens, such as north")
        district = _section(path, here, where, District, body)
        tls = names.select(list(district.tls), list(known), f"{path}: {where} tls")
        for tl in tls:
            if tl in owner:
                raise InputError(f"{path}: {where} tls: {tl} is in district {owner[tl]} already; remove it from one")
            owner[tl] = name
        host_and_port(district.address, f"{path}: {where} address")
        fleet = _fleet_name(f"{path}: {where} fleet", district.fleet or name)
        if other := next((known for known, each in districts.items() if each.fleet == fleet), None):
            raise InputError(f"{path}: {where} fleet: district {other} has fleet {fleet} too; name another one")
        districts[name] = District(district.address, tuple(tls), fleet)
    if districts and (missing := [tl for tl in known if tl not in owner]):
        raise InputError(f"{path}: [serving.districts]: {', '.join(missing[:10])} is in no district; add it to one")
    return districts


def _tls(path: Path, here: Path, table: Any) -> dict[str, TL]:
    if not isinstance(table, dict):
        raise InputError(f"{path}: 'tl' must contain tables such as [tl.SA101]")
    tls: dict[str, TL] = {}
    keys: dict[str, str] = {}
    owner: dict[str, str] = {}
    for written, body in table.items():
        where = f"[tl.{written}]"
        try:
            name = names.canonical(written)
        except InputError as error:
            raise InputError(f"{path}: {where} {error}") from None
        if (other := keys.setdefault(names.key(name), name)) in tls:
            raise InputError(f"{path}: {where} defines TL {other} a second time; remove one of the tables")
        if not isinstance(body, dict):
            raise InputError(f"{path}: {where} must be a table")
        tl = replace(_section(path, here, where, TL, body), name=name)
        _check_tl(path, where, tl)
        for signal in tl.signals:
            if signal in owner:
                raise InputError(f"{path}: {where} signals: {signal} already belongs to {owner[signal]}; remove it from one")
            owner[signal] = name
        tls[name] = tl
    return tls


def _check_tl(path: Path, where: str, tl: TL) -> None:
    if not tl.signals:
        raise InputError(f"{path}: {where} signals is empty; name at least one SUMO traffic light")
    for key in ("delta_time_s", "control_cycle", "offset_range", "action_t_s"):
        if getattr(tl, key) == 0:
            raise InputError(f"{path}: {where} {key} = 0 must be at least 1")


def _section(path: Path, here: Path, where: str, kind: type, body: Any) -> Any:
    if not isinstance(body, dict):
        raise InputError(f"{path}: {where} must be a table")
    known = {item.name: str(item.type) for item in fields(kind)}
    if kind is TL and "name" in body:
        raise InputError(f"{path}: {where} unknown key name; the table's name is the TL's")
    values: dict[str, Any] = {}
    for key, value in body.items():
        if renamed := RENAMED_KEYS.get(("[tl]" if kind is TL else where, key)):
            raise InputError(f"{path}: {where} {key} is now called {renamed}; rename it")
        if key == "observation_class":
            raise InputError(
                f"{path}: {where} {key}: only sumo-rl's default observation is supported; add another one as a dialect, "
                "a file in signals/dialects (docs/reference/dialects.md)"
            )
        written, key = key, SUMO_RL_KEYS.get(key, key) if kind in (TL, Network) else key
        if key in values:
            raise InputError(f"{path}: {where} has both {key} and sumo-rl's name for it; remove one")
        if key not in known:
            key = written
            raise InputError(f"{path}: {where} unknown key {key}; the keys are {', '.join(k for k in known if k != 'name')}")
        values[key] = _value(path, here, f"{where} {key}", known[key], value)
    required = [item.name for item in fields(kind) if item.default is MISSING and item.default_factory is MISSING]
    missing = [name for name in required if name not in values]
    if missing:
        raise InputError(f"{path}: {where} {missing[0]} is missing; add it")
    return kind(**values)


def _value(path: Path, here: Path, where: str, annotation: str, value: Any) -> Any:
    base = annotation.removeprefix("<class '").removesuffix("'>").removesuffix(" | None").rsplit(".", 1)[-1]
    if "tuple[int" in annotation:
        if not isinstance(value, list) or not value or not all(type(item) is int and 0 < item <= 1_000_000 for item in value):
            raise InputError(f"{path}: {where} must be a list of numbers of at least 1, such as [64, 64]")
        return tuple(value)
    if "tuple" in annotation:
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise InputError(f"{path}: {where} must be a list of names")
        if len(set(value)) != len(value):
            twice = next(item for item in value if value.count(item) > 1)
            raise InputError(f"{path}: {where} lists {twice} twice; remove one")
        return tuple(value)
    number: Any = value
    if isinstance(value, bool) or not isinstance(value, _TYPES[base]):
        raise InputError(f"{path}: {where} = {value!r} must be {_TYPE_NAMES[base]}")
    if base in ("int", "float"):
        if not 0 <= number <= 1e6:
            raise InputError(f"{path}: {where} = {value!r} is out of range; it must lie between 0 and 1e6")
        return float(number) if base == "float" else number
    if base == "Path":
        return here / number
    return value
