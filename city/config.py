"""city.toml: one file describes a city for the exporter, server and controller.

Paths in the file are relative to the file. Unknown tables and keys are errors:
a misspelt safety value must not be silently ignored.
"""

import tomllib
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from city import names
from city.errors import InputError

FALLBACKS = ("plan", "max-pressure")
DIALECTS = ("sumo-rl", "sappo")
SAPPO_STATES = ("d", "v", "vd", "vdd")
SAPPO_ACTIONS = ("offset", "gr", "gro", "kc")


@dataclass(frozen=True)
class Network:
    """[network]: the street."""

    sumocfg: Path | None = None
    """SUMO configuration; gives network, demand and additional files."""
    net: Path | None = None
    """Network file, where there is no sumocfg."""


@dataclass(frozen=True)
class Training:
    """[training]: where the checkpoints are."""

    model_path: Path | None = None
    model_number: int | None = None
    """None: the newest."""
    target_tls: tuple[str, ...] | None = None
    """TLs in the order in which training had them: which of `Actor_0`, `Actor_1`, ... is whose."""


@dataclass(frozen=True)
class Serving:
    """[serving]: where the models are and who serves them."""

    models_dir: Path = Path("models")
    address: str = "127.0.0.1:8500"
    grpc_socket_path: Path | None = None
    """Unix socket on which the server listens too, and on which callers of this machine ask: the fastest way."""
    fleet: str = "city"
    """The fleet that the controller asks for all TLs at once, where the server has one of this name. Empty: none."""

    @property
    def nearest(self) -> str:
        """The address at which callers of this machine ask."""
        return self.address if self.grpc_socket_path is None else f"unix:{self.grpc_socket_path}"


@dataclass(frozen=True)
class Safety:
    """[safety]: floors and bounds that no policy may break, in s."""

    min_yellow_s: float = 3.0
    min_green_s: float = 4.0
    all_red_s: float = 0.0
    max_green_s: float | None = None
    """None: no bound."""
    max_red_s: float | None = None
    """A link that has been red for longer is served next. None: no bound."""
    walking_mps: float = 1.2
    """Speed (m/s) at which pedestrians clear their crossing before anyone may cross their way."""


@dataclass(frozen=True)
class Controller:
    """[controller]: the daemon."""

    deadline_ms: float = 500.0
    """Bound on one decision, counted from the moment of observation."""
    hold_s: float = 15.0
    """A TL without its policy holds its state this long (s), then runs its plan."""
    http_address: str | None = None
    """HOST:PORT of /metrics and /healthz. None: neither."""
    watchdog_s: float = 10.0
    """Wall time in s that a controller may be silent for before its guard takes its signals from it."""
    fallback: str = "plan"
    """What controls a TL without its policy once it has held: `plan`, its signals' own program, or `max-pressure`."""
    probes: int = 2
    """Good answers in a row that bring a TL back from its plan to its policy."""


@dataclass(frozen=True)
class TL:
    """[tl.NAME]: one policy's signals and dialect. Times in s.

    Fields that are None follow the dialect's defaults (docs/glossary.md).
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
    """Architecture of the actor, where its checkpoint does not tell, or module:function."""
    sizes: tuple[int, ...] | None = None
    """Units of its hidden layers, where the file name does not tell; what is told is checked."""
    hidden_activation: str | None = None
    output_activation: str | None = None
    batch_norm_epsilon: float | None = None
    """Of an actor's batch norms; weights do not tell it. None: 1e-5."""
    layers: tuple[str, ...] | None = None
    """Names of a subclassed model's layers, in the order in which they are called."""
    scope: str | None = None
    """The actor's variable scope in a checkpoint that holds several agents."""
    output_tensor: str | None = None
    """The actor's output in a training graph, where it is not the one that is guessed."""


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
        raise InputError(f"{path}: no such file; run in a city's folder or name one with --city FILE") from None
    except RecursionError:
        raise InputError(f"{path}: cannot be read as TOML: its lists or tables are nested too deeply") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path}: cannot be read as TOML: {error}") from None
    here = path.resolve().parent
    sections = {"network": Network, "training": Training, "serving": Serving, "safety": Safety, "controller": Controller}
    unknown = set(raw) - set(sections) - {"tl"}
    if unknown:
        raise InputError(f"{path}: unknown table [{sorted(unknown)[0]}]; known are {', '.join([*sections, 'tl.NAME'])}")
    read = {name: _section(path, here, f"[{name}]", kind, raw.get(name, {})) for name, kind in sections.items()}
    serving: Serving = read["serving"]
    if not serving.models_dir.is_absolute():
        read["serving"] = replace(serving, models_dir=here / serving.models_dir)
    training: Training = read["training"]
    if training.target_tls is not None:
        read["training"] = replace(training, target_tls=tuple(map(names.canonical, training.target_tls)))
    for section, key in (("controller", "deadline_ms"), ("controller", "watchdog_s"), ("safety", "walking_mps")):
        if not getattr(read[section], key) > 0:
            raise InputError(f"{path}: [{section}] {key} must be more than 0")
    control: Controller = read["controller"]
    for key, value, most in (("deadline_ms", control.deadline_ms, 60_000), ("watchdog_s", control.watchdog_s, 3599)):
        if value > most:
            raise InputError(f"{path}: [controller] {key} = {value:g} must be at most {most}")
    safety: Safety = read["safety"]
    if safety.max_green_s is not None and safety.max_green_s < safety.min_green_s:
        raise InputError(
            f"{path}: [safety] max_green_s = {safety.max_green_s:g} must not be less than min_green_s, {safety.min_green_s:g}"
        )
    if safety.max_red_s is not None and safety.max_red_s < safety.min_green_s + safety.min_yellow_s:
        raise InputError(
            f"{path}: [safety] max_red_s = {safety.max_red_s:g} must not be less than a green and a yellow take, "
            f"{safety.min_green_s + safety.min_yellow_s:g}"
        )
    if read["controller"].probes < 1:
        raise InputError(f"{path}: [controller] probes = {read['controller'].probes} must be 1 at least")
    if read["controller"].fallback not in FALLBACKS:
        told = read["controller"].fallback
        raise InputError(f"{path}: [controller] fallback = {told!r} must be one of {', '.join(FALLBACKS)}")
    return City(path=path, tls=_tls(path, here, raw.get("tl", {})), **read)


def _tls(path: Path, here: Path, table: Any) -> dict[str, TL]:
    if not isinstance(table, dict):
        raise InputError(f"{path}: 'tl' must hold tables such as [tl.SA101]")
    tls: dict[str, TL] = {}
    owner: dict[str, str] = {}
    for written, body in table.items():
        where = f"[tl.{written}]"
        name = names.canonical(written)
        if name in tls:
            raise InputError(f"{path}: {where} names TL {name} a second time")
        if not isinstance(body, dict):
            raise InputError(f"{path}: {where} must be a table")
        tl = replace(_section(path, here, where, TL, body), name=name)
        _check_tl(path, where, tl)
        for signal in tl.signals:
            if signal in owner:
                raise InputError(f"{path}: {where} signals: {signal} belongs to {owner[signal]} already")
            owner[signal] = name
        tls[name] = tl
    return tls


def _check_tl(path: Path, where: str, tl: TL) -> None:
    if not tl.signals:
        raise InputError(f"{path}: {where} signals is empty; name at least one SUMO traffic light")
    if tl.dialect not in DIALECTS:
        raise InputError(f"{path}: {where} dialect {tl.dialect!r} is not one of {', '.join(DIALECTS)}")
    for key in ("delta_time_s", "control_cycle", "offset_range", "action_t_s"):
        if getattr(tl, key) == 0:
            raise InputError(f"{path}: {where} {key} = 0 must be 1 at least")
    if tl.dialect == "sumo-rl":
        if len(tl.signals) > 1:
            raise InputError(f"{path}: {where} a sumo-rl TL has one signal, not {len(tl.signals)}; a group needs sappo")
        if tl.state or tl.action:
            raise InputError(f"{path}: {where} state and action are settings of the sappo dialect, not of sumo-rl")
        return
    for key, value, known in (("state", tl.state, SAPPO_STATES), ("action", tl.action, SAPPO_ACTIONS)):
        # None: the checkpoint's file name tells it
        if value is not None and value not in known:
            raise InputError(f"{path}: {where} {key} = {value!r} must be one of {', '.join(known)}")


_TYPES: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (int, float), "Path": (str,)}


def _section(path: Path, here: Path, where: str, kind: type, body: Any) -> Any:
    if not isinstance(body, dict):
        raise InputError(f"{path}: {where} must be a table")
    known = {item.name: str(item.type) for item in fields(kind)}
    if kind is TL and "name" in body:
        raise InputError(f"{path}: {where} unknown key name; a TL's name is its table's")
    values: dict[str, Any] = {}
    for key, value in body.items():
        if key not in known:
            raise InputError(f"{path}: {where} unknown key {key}; known are {', '.join(k for k in known if k != 'name')}")
        values[key] = _value(path, here, f"{where} {key}", known[key], value)
    missing = [item.name for item in fields(kind) if item.name in ("signals", "dialect") and item.name not in values]
    if missing:
        raise InputError(f"{path}: {where} lacks {missing[0]}")
    return kind(**values)


def _value(path: Path, here: Path, where: str, annotation: str, value: Any) -> Any:
    base = annotation.removeprefix("<class '").removesuffix("'>").removesuffix(" | None").rsplit(".", 1)[-1]
    if "tuple[int" in annotation:
        if not isinstance(value, list) or not value or not all(type(item) is int and 0 < item <= 1_000_000 for item in value):
            raise InputError(f"{path}: {where} must be a list of numbers of 1 at least, such as [64, 64]")
        return tuple(value)
    if "tuple" in annotation:
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise InputError(f"{path}: {where} must be a list of names")
        if len(set(value)) != len(value):
            raise InputError(f"{path}: {where} names one of them twice")
        return tuple(value)
    number: Any = value
    if isinstance(value, bool) or not isinstance(value, _TYPES[base]):
        raise InputError(f"{path}: {where} = {value!r} must be {'a number' if base == 'float' else f'of type {base}'}")
    if base in ("int", "float"):
        if not 0 <= number <= 1e6:
            raise InputError(f"{path}: {where} = {value!r} is out of range; it must lie between 0 and 1e6")
        return float(number) if base == "float" else number
    if base == "Path":
        return here / number
    return value
