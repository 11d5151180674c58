"""Settings of an export, from flags and city.toml."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from city import config as city_config
from city import names, network
from city.arguments import CITY_FILE, Parser
from city.config import TL, City
from city.errors import InputError, errors_about
from city.network import StreetNetwork
from export import locate, pretrained
from export.actors import activations
from export.locate import Candidate, Search
from export.saved_model import sign
from serving.contract import PROBABILITIES, Q_VALUES
from signals import dialects

OVERRIDES = ("scope", "output_tensor", "actor", "hidden_activation", "layers", "scores")
"""Flags with the names of keys of [tl.NAME]."""
MAX_FILE_NAME_SETTING = 1000
_BOUNDS = {"actionp": (0, 1), "add_time_s": (0, MAX_FILE_NAME_SETTING)}
"""Bounds of numbers in file names; others lie between 1 and MAX_FILE_NAME_SETTING."""
MAX_OBSERVATIONS = 10_000
"""Limit for a TL: the evaluation in float64 takes some milliseconds for each 1,000."""
WRITE_AGAIN = "write it again (greenserve record export --observations DIR)"


@dataclass(frozen=True)
class Job:
    """Resolved settings of an export."""

    city: City | None
    street: StreetNetwork | None
    """Without it, contracts stay incomplete."""
    tls: tuple[str, ...]
    search: Search
    """The checkpoints by TL."""
    model_number: int | None
    """`None` means the newest."""
    models_dir: Path
    target_tls: tuple[str, ...] = ()
    """In training's order."""
    action: str | None = None
    """Kind of the action, if neither a city nor the file name defines it."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Keys of [tl.NAME] that flags set, such as `scope`; they take precedence over city.toml."""
    overwrite: bool = False
    skip_existing: bool = False
    """Leave a version that exists as it is."""
    keep: int | None = None
    """Versions of a TL to keep. `None` means all."""
    observations: Path | None = None
    """Folder of recorded observations for the parity check, TL.npy each."""
    signer: sign.Signer | None = None


def parser(prog: str) -> Parser:
    """The flags of the command line."""
    parser = Parser(
        prog=prog,
        description="Turn trained actors into SavedModels that TensorFlow Serving can host.",
        epilog="See also greenserve inspect, greenserve describe and greenserve fleet.",
    )
    parser.add_city(is_optional=True)
    parser.add_argument(
        "--tl", action="append", required=True, metavar="TL", help="a TL, several with commas, or all; may be repeated"
    )
    parser.add_argument(
        "--model-path",
        type=Path,
        metavar="PATH",
        help="folder of checkpoints, searched with its subfolders, or one checkpoint (default: [training] model_path)",
    )
    parser.add_argument(
        "--pretrained",
        action="store_true",
        help="the policy for any junction that greenserve ships, instead of checkpoints",
    )
    parser.add_argument(
        "--model-number",
        type=int,
        metavar="N",
        help="trial or round to export (default: [training] model_number, else the newest); with --pretrained the "
        "version",
    )
    parser.add_argument(
        "--models-dir", type=Path, metavar="DIR", help="folder for models (default: [serving] models_dir)"
    )
    add_actor_flags(parser)
    parser.add_argument(
        "--observations",
        type=Path,
        metavar="DIR",
        help="compare actions on the recorded observations in DIR/TL.npy too (greenserve record export --observations "
        "DIR)",
    )
    existing = parser.add_mutually_exclusive_group()
    existing.add_argument("--overwrite", action="store_true", help="replace a version that exists")
    existing.add_argument(
        "--skip-existing",
        action="store_true",
        help="leave a version that exists as it is, for an export that is repeated",
    )
    parser.add_argument("--keep", type=int, metavar="N", help="versions of a TL to keep, the newest (default: all)")
    sign.add_flags(parser)
    return parser


def add_actor_flags(parser: Parser) -> None:
    """Add the flags that choose an actor in a checkpoint, and say what the file does not."""
    parser.add_argument(
        "--scope",
        metavar="NAME",
        help="the actor's scope in a checkpoint of several agents, such as Actor_0 (default: found by name)",
    )
    parser.add_argument(
        "--target-tls",
        action="append",
        metavar="TL",
        help="training's target TLs in order: the TLs of Actor_0, Actor_1, ... (default: [training] target_tls)",
    )
    parser.add_argument(
        "--actor",
        metavar="NAME",
        help="architecture, such as mlp, or module:function; PYTHONPATH=. for a module in this folder (default: "
        "recognised)",
    )
    parser.add_argument(
        "--hidden-activation",
        type=activations.argument,
        metavar="NAME",
        help="activation of hidden layers, if the file does not hold it: " + activations.NAMES,
    )
    parser.add_argument(
        "--layers", metavar="A,B,...", help="names of an actor's layers in call order (default: by their numbers)"
    )
    parser.add_argument(
        "--output-tensor", metavar="NAME", help="the actor's output in a training graph (default: the only candidate)"
    )
    parser.add_argument(
        "--action",
        choices=dialects.action_kinds(),
        help="kind of the action, without a city.toml (default: by the file's name)",
    )
    parser.add_argument(
        "--scores",
        choices=(PROBABILITIES, Q_VALUES),
        help="meaning of a categorical policy's outputs: logits of probabilities, or Q-values (default: by the library "
        "that wrote the file, its names or the file's own, else q_values: the outputs as they are)",
    )


def split_layers(args: argparse.Namespace) -> tuple[str, ...] | None:
    """The names of `--layers`, if there are any."""
    return tuple(split_commas([args.layers or ""])) or None


def parse(argv: list[str] | None = None, prog: str = "python -m export") -> argparse.Namespace:
    """Parse and check the command line; read no files. Raises InputError."""
    args = parser(prog).parse_args(argv)
    check_versions(args)
    args.layers = split_layers(args)
    for flag in (*OVERRIDES, "model_path", "action", "target_tls"):
        if args.pretrained and getattr(args, flag) is not None:
            raise InputError(f"--pretrained takes no checkpoint; leave --{flag.replace('_', '-')} out")
    return args


def check_versions(args: argparse.Namespace) -> None:
    """Check the values of `--model-number` and `--keep`. Raises InputError."""
    if args.model_number is not None and not 0 <= args.model_number < 1 << 63:
        raise InputError(f"--model-number {args.model_number} must be a version number, such as 3")
    if args.keep is not None and args.keep < 1:
        raise InputError(f"--keep {args.keep} must be at least 1: the newest version is never removed")


def city_job(
    city: City,
    tls: Sequence[str],
    model_path: Path,
    models_dir: Path,
    model_number: int | None,
    flag: str = "--model-path",
) -> Job:
    """The export of a city's TLs with the settings of city.toml; `flag`: names the model path. Raises InputError."""
    target_tls = city.training.target_tls or ()
    return Job(
        city=city,
        street=network.of_city(city),
        tls=tuple(tls),
        search=replace(_search(city, (*tls, *target_tls), model_path, locate.find_candidates(model_path)), flag=flag),
        model_number=model_number,
        models_dir=models_dir,
        target_tls=target_tls,
    )


def _search(city: City | None, tls: Sequence[str], folder: Path, candidates: Sequence[Candidate]) -> Search:
    city_tls = city.tls if city else {}
    # `city init` does not name a TL after a signal whose id is too long
    signal_of = {
        name: tl.signals[0]
        for name, tl in city_tls.items()
        if len(tl.signals) == 1 and len(tl.signals[0]) > names.MAX_SIGNAL_NAME
    }
    return Search(folder if folder.is_dir() else folder.parent, candidates, [*tls, *city_tls], signal_of)


def prepare(args: argparse.Namespace) -> Job:
    """Read the city and its network, and find the checkpoints. Raises InputError."""
    city = _city(args.city, args.model_path)
    if args.pretrained and _street(city) is None:
        raise InputError(
            "--pretrained needs a city.toml with a [network]; write one with greenserve city init --dialect street, "
            "or pass --city FILE"
        )
    training, serving = (city.training, city.serving) if city else (city_config.Training(), city_config.Serving())
    model_path = pretrained.FOLDER if args.pretrained else args.model_path or training.model_path
    if model_path is None:
        raise InputError("no folder of checkpoints: pass --model-path DIR, or set [training] model_path in city.toml")
    candidates = locate.find_candidates(model_path)
    if args.pretrained and args.model_number is not None:
        # the number of the policy's file is not the version of the TLs' models
        candidates = [replace(candidate, number=args.model_number) for candidate in candidates]
    tls, target_tls = _tls(args, city, candidates)
    _check_flags(args, city, tls)
    return Job(
        city=city,
        street=_street(city),
        tls=tuple(tls),
        search=_search(city, (*tls, *target_tls), model_path, candidates),
        model_number=training.model_number if args.model_number is None and not args.pretrained else args.model_number,
        models_dir=args.models_dir or serving.models_dir,
        target_tls=target_tls,
        keep=args.keep,
        action=args.action,
        overrides={key: getattr(args, key) for key in OVERRIDES if getattr(args, key)},
        overwrite=args.overwrite,
        skip_existing=args.skip_existing,
        observations=observations_folder(args.observations, tls) if args.observations is not None else None,
        signer=sign.signer(args),
    )


def _street(city: City | None) -> StreetNetwork | None:
    if city is None or not (city.network.sumocfg or city.network.net):
        return None
    return network.of_city(city)


def _tls(
    args: argparse.Namespace, city: City | None, candidates: Sequence[Candidate]
) -> tuple[list[str], tuple[str, ...]]:
    """(TLs to export, the target TLs of their training). Raises InputError."""
    city_tls = list(city.tls) if city else []
    index = names.Index(city_tls)
    given_tls = [index.find(name) or names.canonical(name) for name in split_commas(args.target_tls or ())]
    target_tls = tuple(given_tls) or (city.training.target_tls if city else None) or ()
    if not city_tls:
        # `all` means the TLs of file names, of training and of --tl
        requested = [names.canonical(name) for name in split_commas(args.tl) if name != "all"]
        city_tls = list(dict.fromkeys([*locate.tls_in_names(candidates), *target_tls, *requested]))
    return names.select(args.tl, city_tls, "--tl", city.tl_of_signal if city else None), target_tls


def _check_flags(args: argparse.Namespace, city: City | None, tls: Sequence[str]) -> None:
    for key in ("scope", "output_tensor"):
        if getattr(args, key) and len(tls) > 1:
            raise InputError(
                f"--{key.replace('_', '-')} applies to one actor, but --tl has {len(tls)} TLs; export them one by one, "
                f"or set {key} in city.toml"
            )
    if args.action and city is not None and any(tl in city.tls for tl in tls):
        raise InputError(
            f"--action {args.action} is for checkpoints without a city; {city.path} defines the action; leave --action "
            "out"
        )


def split_commas(values: Sequence[str]) -> list[str]:
    """The names in values that may each hold several, separated by commas."""
    return [name.strip() for value in values for name in value.split(",") if name.strip()]


def _city(path: Path | None, model_path: Path | None) -> City | None:
    """Load the city; without --city and ./city.toml, a folder of checkpoints is enough."""
    if path is None and model_path is not None and not CITY_FILE.exists():
        return None
    city = city_config.load(path or CITY_FILE)
    dialects.check_city_settings(city)
    return city


def settings_of(city: City | None, name: str, candidate: Candidate) -> TL | None:
    """A TL's settings in city.toml, completed by the checkpoint's file name, or `None` without a city.

    Raises InputError if the two contradict each other.
    """
    if city is None or name not in city.tls:
        return None
    tl = city.tls[name]
    dialect = dialects.find(tl.dialect, f"{city.path}: [tl.{name}]")
    with errors_about(f"{name}: {candidate.label}"):
        from_file_name: dict[str, Any] = {}
        for key, text in candidate.settings.items():
            if key not in dialect.file_name_settings:
                raise InputError(
                    f"has {key} {text}, which is not a setting of dialect {tl.dialect} in {city.path}; "
                    "fix the one that is wrong"
                )
            from_file_name[key] = _value(key, text)
        if candidate.hidden_sizes is not None:
            from_file_name["hidden_sizes"] = candidate.hidden_sizes
        for key, value in from_file_name.items():
            in_city = getattr(tl, key)
            if in_city is not None and in_city != value:
                texts = [", ".join(map(str, v)) if isinstance(v, tuple) else str(v) for v in (value, in_city)]
                raise InputError(f"has {key} {texts[0]}, but {city.path} has {texts[1]}; fix the one that is wrong")
        settings = replace(tl, **from_file_name)
        dialect.check_settings(settings)
    return settings


def _value(key: str, text: str) -> str | float:
    if key in ("state", "action"):
        return text
    value = float(text) if key == "actionp" else int(text)
    low, high = _BOUNDS.get(key, (1, MAX_FILE_NAME_SETTING))
    if not low <= value <= high:
        raise InputError(f"has {key} {text}; it must lie between {low} and {high}")
    return value


def observations_folder(folder: Path, tls: Sequence[str]) -> Path:
    """The folder. Raises InputError if it has no observations of these TLs."""
    if not any((folder / f"{tl}.npy").is_file() for tl in tls):
        raise InputError(
            f"--observations {folder}: holds no observations of {', '.join(tls)}, such as {tls[0]}.npy; {WRITE_AGAIN}"
        )
    return folder


def read_observations(folder: Path, tl: str) -> NDArray[np.float32] | None:
    """[n, O] observations of a TL, None if the folder has none. Raises InputError."""
    path = folder / f"{tl}.npy"
    if not path.is_file():
        return None
    with errors_about(path):
        try:
            values = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise InputError(f"is not an array of NumPy ({error}); {WRITE_AGAIN}") from None
        if not isinstance(values, np.ndarray) or values.dtype != np.float32 or values.ndim != 2:
            raise InputError(f"is not an array float32 [n, O]; {WRITE_AGAIN}")
        if not 0 < len(values) <= MAX_OBSERVATIONS:
            raise InputError(f"holds {len(values)} observations, not 1 to {MAX_OBSERVATIONS}; {WRITE_AGAIN}")
        if not np.isfinite(values).all():
            raise InputError(f"holds values that are not finite; {WRITE_AGAIN}")
        return np.array(values)
