"""Read city.toml, the file that describes a city for the exporter, server and controller.

Paths in the file are relative to the file. Unknown tables and keys are errors:
a misspelt safety value must not be silently ignored.
"""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from city import names, toml_table
from city.arguments import CITY_FILE, host_and_port
from city.errors import InputError, errors_about
from city.ppo_settings import PpoSettings
from city.toml_table import NOT_A_KEY, SimulationTime, requires

FALLBACKS = ("plan", "max-pressure")
PADDINGS = ("supersuit",)
COMPUTED = "computed"
"""`all_red_s` by the junction's size."""
FLOORS = ("street", "dialect")
MAX_DEADLINE_MS = 60_000
MAX_WATCHDOG_S = 3599
MAX_SPEED = 1000
MAX_PHASE = 16
"""Number of phases of a signal controller."""
STREET_MAX_RED_S = 300.0
"""`max_red_s` of a new city for the street dialect: a lane whose detector fails seems to be empty, and might never be
served. A smaller one takes decisions from a policy that serves all within its own 120 s where it can."""
AT_LEAST_1 = requires("be at least 1", lambda x: x >= 1)
T = TypeVar("T")
DIALECT = "dialect"
"""Key in a TL field's metadata: the included dialects that read the field. A user's own dialect may read all fields."""


@dataclass(frozen=True)
class Network:
    """[network]: the street."""

    sumocfg: Path | None = None
    """SUMO configuration; gives network, demand and additional files."""
    net: Path | None = None
    """Network file, if there is no sumocfg."""
    begin_s: SimulationTime | None = None
    """First simulated second of a simulation that a program starts (default: the sumocfg's begin)."""


@dataclass(frozen=True)
class Training(PpoSettings):
    """[training]: the checkpoints, and the settings of greenserve train."""

    model_path: Path | None = None
    model_number: int | None = None
    """`None` means the newest."""
    target_tls: tuple[str, ...] | None = None
    """TLs in training's order, which assigns `Actor_0`, `Actor_1`, ... to them."""
    scope: str | None = None
    """The actor's variable scope for TLs that have none of their own."""
    output_tensor: str | None = None
    """The actor's output, in full or within its scope, for TLs that have none of their own."""
    padding: str | None = field(
        default=None, metadata=requires(f"be one of {', '.join(PADDINGS)}, or left out", PADDINGS.__contains__)
    )
    """`supersuit` if TLs of several sizes share one policy, with observations and actions padded by SuperSuit."""


@dataclass(frozen=True)
class TrainingTimes:
    """A TL's entry in [training.times]: the times of a training that has the street's changes of greens, in s.

    They take precedence over the TL's own table, so that the lines that `greenserve check` prints can be appended.
    """

    yellow_s: float
    all_red_s: float


@dataclass(frozen=True)
class District:
    """[serving.districts.NAME]: TLs with a model server and a controller of their own."""

    address: str
    tls: tuple[str, ...]
    fleet: str = ""
    """Fleet of these TLs (default: the district's name)."""


@dataclass(frozen=True)
class Serving:
    """[serving]: the models and their server."""

    models_dir: Path = Path("models")
    address: str = "127.0.0.1:8500"
    grpc_socket_path: Path | None = None
    """Unix socket on which the server also listens, for clients on this machine."""
    fleet: str = "city"
    """Fleet that the controller queries for all TLs at once, if it is served; empty for no fleet."""
    tls_ca: Path | None = None
    """CA bundle (PEM) that verifies the server; with any of the tls_ keys connections use TLS."""
    tls_certificate: Path | None = None
    """Client certificate (PEM), for mTLS."""
    tls_key: Path | None = None
    tls_server_name: str = ""
    """Name in the server's certificate, if it differs from the address."""
    districts: dict[str, District] = field(default_factory=dict)
    """By name; without districts one server has all models."""

    @property
    def local_address(self) -> str:
        """The address for clients on this machine."""
        return self.address if self.grpc_socket_path is None else f"unix:{self.grpc_socket_path}"


@dataclass(frozen=True)
class Safety:
    """[safety]: floors and bounds for every policy, in s."""

    min_yellow_s: float = 3.0
    min_green_s: float = 4.0
    all_red_s: float | str | None = field(
        default=None,
        metadata=requires(f'be a number or "{COMPUTED}"', lambda x: x == COMPUTED or not isinstance(x, str)),
    )
    """Red of a link before a foe's green: COMPUTED from its approach speed and path over the junction
    (`red_clearance_s`), or a number. By default that of the signal's own program, and its yellow too."""
    max_green_s: float | None = None
    """`None` means no bound."""
    max_red_s: float | None = None
    """A link that has been red for longer is served next; `None` means no bound."""
    max_red_s_of_signal: dict[str, dict[str, float]] = field(default_factory=dict, hash=False, metadata=NOT_A_KEY)
    """By signal, `max_red_s` of its TL, which bounds single movements."""
    walking_speed_mps: float = field(default=1.2, metadata=requires("be greater than 0", lambda x: x > 0))
    """Walking speed in m/s, for the clearance of pedestrian crossings."""
    floors: str = field(default="street", metadata=requires(f"be one of {', '.join(FLOORS)}", FLOORS.__contains__))
    """`street`: the times above, the yellow of the approach speed and the clearance of crossings are minima of every
    policy. `dialect`: yellow, all-red and min green are exactly the contract's, as in training."""


@dataclass(frozen=True)
class Controller:
    """[controller]: the daemon."""

    deadline_ms: float = field(
        default=500.0,
        metadata=requires(f"be greater than 0 and at most {MAX_DEADLINE_MS}", lambda x: 0 < x <= MAX_DEADLINE_MS),
    )
    """Bound on one decision in ms of wall time, from the readings on."""
    hold_s: float = 15.0
    """Simulated seconds for which a TL without an answer holds its state before it falls back."""
    http_address: str | None = None
    """HOST:PORT of /metrics, /healthz and /livez, which are off without it."""
    watchdog_s: float = field(
        default=10.0,
        metadata=requires(f"be greater than 0 and at most {MAX_WATCHDOG_S}", lambda x: 0 < x <= MAX_WATCHDOG_S),
    )
    """Wall time in s after which the guard of a silent controller hands its signals back."""
    fallback: str = field(
        default="plan", metadata=requires(f"be one of {', '.join(FALLBACKS)}", FALLBACKS.__contains__)
    )
    """The control of a TL in mode fallback: `plan`, its signals' own programs, or `max-pressure`."""
    recovery_answers: int = field(default=2, metadata=AT_LEAST_1)
    """Valid answers in a row that bring a TL back from its fallback to its policy."""
    record: Path | None = None
    """Folder of the record; without it, runs are not recorded."""
    record_max_gb: float = field(default=20.0, metadata=AT_LEAST_1)
    """Limit of the record's files in this folder in GB (1e9 bytes); the oldest are deleted first."""
    speed: float = field(
        default=0.0, metadata=requires(f"lie between 0 and {MAX_SPEED}", lambda x: 0 <= x <= MAX_SPEED)
    )
    """Simulated seconds per wall second; 0: as fast as possible."""
    control_address: str | None = None
    """HOST:PORT of the control API, which is off without it."""
    control_tls_ca: Path | None = None
    """CA bundle (PEM) that verifies the control API's clients; with the two below, the API has TLS."""
    control_tls_certificate: Path | None = None
    """The control API's certificate (PEM)."""
    control_tls_key: Path | None = None


@dataclass(frozen=True)
class TL:
    """[tl.NAME]: one policy's signals and dialect. Times in s.

    Fields that are None take the dialect's defaults (docs/reference/city-toml.md).
    """

    signals: tuple[str, ...]
    dialect: str
    """Name of an included or installed dialect, or module:Class."""
    name: str = ""
    program: str | None = None
    """Program of the signals with the policy's phases (default: the one that runs at the begin time; for policies that
    sumo-rl trained, the first one)."""
    state: str | None = field(default=None, metadata={DIALECT: ("sappo",)})
    action: str | None = field(default=None, metadata={DIALECT: ("sappo",)})
    delta_time_s: int | None = field(default=None, metadata={DIALECT: ("sumo-rl", "street"), **AT_LEAST_1})
    yellow_s: float | None = None
    all_red_s: float | None = None
    min_green_s: float | None = None
    max_green_s: float | None = None
    control_cycle: int | None = field(default=None, metadata={DIALECT: ("sappo",), **AT_LEAST_1})
    add_time_s: int | None = field(default=None, metadata={DIALECT: ("sappo",)})
    offset_range: int | None = field(default=None, metadata={DIALECT: ("sappo",), **AT_LEAST_1})
    action_t_s: int | None = field(default=None, metadata={DIALECT: ("sappo",), **AT_LEAST_1})
    actionp: float | None = field(default=None, metadata={DIALECT: ("sappo",)})
    actor: str | None = None
    """Architecture of the actor if its checkpoint does not determine it, or module:function."""
    hidden_sizes: tuple[int, ...] | None = None
    """Units of its hidden layers, to check or complete the file name's."""
    hidden_activation: str | None = None
    output_activation: str | None = None
    scores: str | None = None
    """Meaning of a categorical policy's outputs, if its file does not show it: `probabilities` or `q_values`."""
    batch_norm_epsilon: float | None = None
    """Epsilon of its batch norms, which the weights do not contain (default: 1e-5)."""
    layers: tuple[str, ...] | None = None
    """Names of a subclassed model's layers, in call order."""
    scope: str | None = None
    """The actor's variable scope in a checkpoint that holds several agents."""
    output_tensor: str | None = None
    """The actor's output in a training graph that has several candidates."""
    phases: dict[str, int] = field(default_factory=dict, hash=False)
    """Phase numbers in exports of signal events, by `ROAD`, `ROAD:left`, `ROAD:right` or `ROAD:crossing`
    (docs/atspm.md)."""
    max_red_s: dict[str, float] = field(default_factory=dict, hash=False)
    """Longest red of movements by kind (through, left, right, crossing), or by `ROAD` (its through movement),
    `ROAD:left`, `ROAD:right` or `ROAD:crossing`; `protected left` and so on count protected greens alone."""
    movement_names: dict[str, str] = field(default_factory=dict, hash=False)
    """Names that people read, by `ROAD` (the approach), `ROAD:left`, `ROAD:right`, `ROAD:crossing`, or by a state of
    the program."""


@dataclass(frozen=True)
class City:
    """A city.toml."""

    path: Path
    network: Network = field(default_factory=Network)
    training: Training = field(default_factory=Training)
    serving: Serving = field(default_factory=Serving)
    safety: Safety = field(default_factory=Safety)
    controller: Controller = field(default_factory=Controller)
    tls: dict[str, TL] = field(default_factory=dict)

    @property
    def tl_of_signal(self) -> dict[str, str]:
        """Signal -> the TL that it belongs to."""
        return {signal: name for name, tl in self.tls.items() for signal in tl.signals}


RENAMED_KEYS: dict[tuple[type, str], str] = {
    (Safety, "walking_mps"): "walking_speed_mps",
    (Controller, "probes"): "recovery_answers",
    (TL, "sizes"): "hidden_sizes",
    (Training, "clip"): "clip_range",
    (Training, "entropy"): "ent_coef",
    (Training, "epochs"): "n_epochs",
}
"""(table, old key) -> the key's name now."""
SUMO_RL_KEYS: dict[type, dict[str, str]] = {
    TL: {
        "delta_time": "delta_time_s", "yellow_time": "yellow_s", "min_green": "min_green_s", "max_green": "max_green_s",
    },
    Network: {"begin_time": "begin_s"},
}  # fmt: skip
"""By table: sumo-rl's name of an option -> our key."""
TABLES = ("network", "training", "serving", "safety", "controller")


def load(path: Path) -> City:
    """Read a city.toml. Raises InputError with the file, table and key."""
    raw = _parse(path)
    unknown = sorted(set(raw) - {*TABLES, "tl"})
    if unknown:
        raise InputError(f"{path}: unknown table [{unknown[0]}]; the tables are {', '.join([*TABLES, 'tl.NAME'])}")
    folder = path.resolve().parent
    times = raw["training"].pop("times", {}) if isinstance(raw.get("training"), dict) else {}
    districts = raw["serving"].pop("districts", {}) if isinstance(raw.get("serving"), dict) else {}

    def section(kind: type[T], name: str) -> T:
        return _table(kind, f"{path}: [{name}]", raw.get(name, {}), folder)

    safety, control = section(Safety, "safety"), section(Controller, "controller")
    _check_safety(f"{path}: [safety]", safety)
    if control.http_address is not None:
        host_and_port(control.http_address, f"{path}: [controller] http_address")
    if control.control_address is not None:
        host_and_port(control.control_address, f"{path}: [controller] control_address", "127.0.0.1:9110")
    tls = _with_times(path, folder, _tls(path, folder, raw.get("tl", {})), times)
    for tl in tls.values():
        for key, max_red_s in tl.max_red_s.items():
            _check_max_red(f"{path}: [tl.{tl.name}] max_red_s {key}", max_red_s, safety)
    of_signal = {signal: tl.max_red_s for tl in tls.values() if tl.max_red_s for signal in tl.signals}
    safety = replace(safety, max_red_s_of_signal=of_signal)
    training, serving = section(Training, "training"), section(Serving, "serving")
    if training.target_tls is not None:
        index = names.Index(tls)
        targets = tuple(index.find(tl) or names.canonical(tl) for tl in training.target_tls)
        training = replace(training, target_tls=targets)
    serving = replace(
        serving,
        models_dir=folder / serving.models_dir,
        fleet=_fleet_name(f"{path}: [serving] fleet", serving.fleet) if serving.fleet else "",
        districts=_districts(path, folder, districts, list(tls)),
    )
    return City(path, section(Network, "network"), training, serving, safety, control, tls)


def load_if_exists(path: Path | None) -> City:
    """The city of --city, or of ./city.toml; without both, a city with the defaults of every key. Raises InputError."""
    return load(path or CITY_FILE) if path is not None or CITY_FILE.exists() else City(CITY_FILE)


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; run in the city's folder or pass --city FILE") from None
    except RecursionError:
        raise InputError(f"{path}: cannot be read as TOML: its lists or tables are nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: {toml_table.syntax_error(path.read_text(encoding='utf-8'), str(error))}") from None
    except (OSError, ValueError) as error:
        # ValueError: invalid UTF-8, or an integer of thousands of digits
        raise InputError(f"{path}: cannot be read as TOML: {error}") from None


def _table(kind: type[T], where: str, table: Any, folder: Path, keys: Sequence[str] = ()) -> T:
    """Read a table; a key's old name is an error that names the new one. Raises InputError."""
    for key in table if isinstance(table, dict) else ():
        if renamed := RENAMED_KEYS.get((kind, key)):
            raise InputError(f"{where} {key} is now called {renamed}; rename it")
        if key == "observation_class":
            raise InputError(
                f"{where} {key}: only sumo-rl's default observation is included; write another one as a dialect "
                'of your own, dialect = "module:Class" (docs/reference/dialects.md)'
            )
    return toml_table.read(kind, where, table, folder, SUMO_RL_KEYS.get(kind), keys)


def _keys_of_dialect(body: Any) -> list[str]:
    """The keys of a [tl.NAME] table that its dialect reads; all keys if the dialect is not an included one."""
    dialect = body.get("dialect") if isinstance(body, dict) else None
    included = {name for key in fields(TL) for name in key.metadata.get(DIALECT, ())}
    read_by = {dialect} if isinstance(dialect, str) and dialect in included else included
    keys = [
        key.name
        for key in fields(TL)
        if key.name != "name" and not read_by.isdisjoint(key.metadata.get(DIALECT, read_by))
    ]
    return [*keys, *SUMO_RL_KEYS[TL]] if "sumo-rl" in read_by else keys


def _check_safety(where: str, safety: Safety) -> None:
    if safety.max_green_s is not None and safety.max_green_s < safety.min_green_s:
        raise InputError(
            f"{where} max_green_s = {safety.max_green_s:g} must not be less than min_green_s, {safety.min_green_s:g}"
        )
    if safety.max_red_s is not None:
        _check_max_red(f"{where} max_red_s", safety.max_red_s, safety)


def _check_max_red(where: str, max_red_s: float, safety: Safety) -> None:
    least_s = safety.min_green_s + safety.min_yellow_s
    if max_red_s < least_s:
        raise InputError(f"{where} = {max_red_s:g} must not be less than a green and a yellow together, {least_s:g}")


def _fleet_name(where: str, name: str) -> str:
    with errors_about(where):
        return names.canonical(name)


def _districts(path: Path, folder: Path, table: Any, all_tls: Sequence[str]) -> dict[str, District]:
    """Read the districts; every TL belongs to exactly one. Raises InputError."""
    if not isinstance(table, dict):
        raise InputError(f"{path}: [serving.districts] must contain tables such as [serving.districts.north]")
    districts: dict[str, District] = {}
    district_of: dict[str, str] = {}
    for name, body in table.items():
        where = f"{path}: [serving.districts.{name}]"
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?", name):
            raise InputError(f"{where} must be named by lower-case letters, digits and hyphens, such as north")
        district = _table(District, where, body, folder)
        tls = names.select(list(district.tls), all_tls, f"{where} tls")
        for tl in tls:
            if tl in district_of:
                raise InputError(f"{where} tls: {tl} is in district {district_of[tl]} already; remove it from one")
            district_of[tl] = name
        host_and_port(district.address, f"{where} address")
        fleet = _fleet_name(f"{where} fleet", district.fleet or name)
        if same_fleet := [other for other, district in districts.items() if district.fleet == fleet]:
            raise InputError(f"{where} fleet: district {same_fleet[0]} has fleet {fleet} too; name another one")
        districts[name] = District(district.address, tuple(tls), fleet)
    if districts and (missing := [tl for tl in all_tls if tl not in district_of]):
        raise InputError(
            f"{path}: [serving.districts]: {', '.join(missing[:10])} is not in any district; add it to one"
        )
    return districts


def _tls(path: Path, folder: Path, table: Any) -> dict[str, TL]:
    """Read every [tl.NAME], by canonical name; a signal belongs to one TL. Raises InputError."""
    if not isinstance(table, dict):
        raise InputError(f"{path}: 'tl' must contain tables such as [tl.SA101]")
    tls: dict[str, TL] = {}
    tl_by_key: dict[str, str] = {}
    tl_of: dict[str, str] = {}
    for written, body in table.items():
        where = f"{path}: [tl.{written}]"
        try:
            name = names.canonical(written)
        except InputError as error:
            raise InputError(f"{where} {error}") from None
        if (other := tl_by_key.setdefault(names.key(name), name)) in tls:
            raise InputError(f"{where} defines TL {other} a second time; remove one of the tables")
        if isinstance(body, dict) and "name" in body:
            raise InputError(f"{where} unknown key name; the table's name is the TL's")
        tl = replace(_table(TL, where, body, folder, _keys_of_dialect(body)), name=name)
        _check_tl(where, tl)
        for signal in tl.signals:
            if signal in tl_of:
                raise InputError(f"{where} signals: {signal} already belongs to {tl_of[signal]}; remove it from one")
            tl_of[signal] = name
        tls[name] = tl
    return tls


def _with_times(path: Path, folder: Path, tls: dict[str, TL], times: Any) -> dict[str, TL]:
    """The TLs with the times of [training.times]. Raises InputError."""
    if not isinstance(times, dict):
        raise InputError(
            f"{path}: [training.times] must contain lines such as SA101 = {{ yellow_s = 3, all_red_s = 2 }}"
        )
    result, listed, index = dict(tls), set[str](), names.Index(tls)
    for written, body in times.items():
        where = f"{path}: [training.times] {written}"
        name = index.find(written)
        if name is None:
            raise InputError(f"{where}: there is no [tl.{written}]; correct the name")
        if name in listed:
            raise InputError(f"{where}: TL {name} is listed a second time; remove one of the lines")
        listed.add(name)
        own = _table(TrainingTimes, where, body, folder)
        result[name] = replace(tls[name], yellow_s=own.yellow_s, all_red_s=own.all_red_s)
    return result


def _check_tl(where: str, tl: TL) -> None:
    if not tl.signals:
        raise InputError(f"{where} signals is empty; name at least one SUMO traffic light")
    for name, number in tl.phases.items():
        if not 1 <= number <= MAX_PHASE:
            raise InputError(f"{where} phases {name} = {number} must be a phase number from 1 to {MAX_PHASE}")
