"""RLlib checkpoints of the new API stack: `.../rl_module/<policy>/module_state.pkl` (or .msgpack) holds one policy.

Beside it, `class_and_ctor_args.pkl` names the module's class, its spaces and its model
config. It is a pickle of Ray's classes, from which only plain settings are read. Supported are
RLlib's default PPO modules with MLP encoders and discrete actions: encoder layers,
each followed by the activation, then the policy head. A MeanStdFilter of the env
runner becomes part of the graph: clip((x - mean) / (std + 1e-6), -c, c).

Source: ray/rllib/core/models/torch/{encoder,heads}.py,
ray/rllib/connectors/env_to_module/mean_std_filter.py.
"""

import base64
import io
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from city.errors import InputError, errors_about
from export.actors import Actor
from export.actors.steps import Step, activated, mlp
from export.checkpoints import pickles, regular_files
from export.checkpoints.checkpoint import Checkpoint
from export.checkpoints.helper_process import Helper
from export.checkpoints.linear_layers import StateDict, activation, check_network, checkpoint_of
from export.checkpoints.source import ActorRequest, RebuiltActor, Source
from export.checkpoints.vec_normalize import Normalisation
from serving.contract import CATEGORICAL

OLD_STATE_FILE = "policy_state.pkl"
"""A policy of RLlib's old API stack."""
STATE_FILES = ("module_state.pkl", "module_state.msgpack")
CONFIG_FILE = "class_and_ctor_args.pkl"
CONNECTORS = {
    "AddObservationsFromEpisodesToBatch", "AddTimeDimToBatchAndZeroPad", "AddStatesFromEpisodesToBatch",
    "AgentToModuleMapping", "BatchIndividualItems", "NumpyToTensor",
}  # fmt: skip
"""RLlib's default connectors, which do not change the values of an observation."""
FILTER = "MeanStdFilter"
FILTER_EPSILON = 1e-6
TRAINING = ("vf", "encoder/critic_encoder")
"""Modules that only training uses."""
MAX_ARRAY_BYTES = 1 << 26


@dataclass(frozen=True)
class Module:
    """One policy of a checkpoint."""

    arrays: Mapping[str, NDArray[Any]]
    class_name: str
    config: Mapping[str, Any]
    inputs: int
    """Size of the observation space."""
    choices: int
    """Size of the action space."""


def _bytes(path: Path) -> bytes:
    regular_files.check(path, pickles.MAX_PICKLE_BYTES)
    return path.read_bytes()


def _plain(path: Path) -> Any:
    return pickles.load(_bytes(path), pickles.REBUILDERS, ("ray", *pickles.LIBRARIES))


def contents(path: Path) -> Module:
    """Read one policy; called in a helper process. Raises ValueError, OSError."""
    stored = _msgpack(_bytes(path)) if path.suffix == ".msgpack" else _plain(path)
    if not isinstance(stored, dict):
        raise ValueError("it is not a table of weights by name")
    arrays = {}
    for name, values in stored.items():
        array = values.values if isinstance(values, pickles.Array) else values
        if not isinstance(name, str) or not isinstance(array, np.ndarray):
            raise ValueError(f"its entry {name!r} is not an array")
        arrays[name.replace(".", "/")] = array
    constructor = _plain(path.with_name(CONFIG_FILE))
    try:
        module_class, (_, arguments) = constructor["class"], constructor["ctor_args_and_kwargs"]
        observation, action = arguments["observation_space"], arguments["action_space"]
        config = arguments["model_config"]
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{CONFIG_FILE} beside it does not describe a module") from None
    if not isinstance(config, dict):
        raise ValueError(f"{CONFIG_FILE} beside it holds no model config")
    settings = {key: value for key, value in config.items() if isinstance(value, str | int | float | bool | None)}
    class_name = getattr(module_class, "global_name", "unknown")
    inputs = pickles.space_of(observation, "observation", pickles.CONTINUOUS).size
    return Module(arrays, class_name, settings, inputs, pickles.space_of(action, "action", CATEGORICAL).size)


def _msgpack(data: bytes) -> Any:
    """Read a state that RLlib wrote with use_msgpack: arrays are maps of type, shape and bytes (msgpack_numpy)."""
    import msgpack

    def array(entry: dict[Any, Any]) -> Any:
        if b"nd" not in entry:
            return entry
        shape, code, raw = entry.get(b"shape"), entry.get(b"type"), entry.get(b"data") or b""
        if not isinstance(code, str) or not re.fullmatch(r"[<>|=]?[fiu][1248]", code) or not isinstance(shape, list):
            raise ValueError(f"an array has type {code!r}, not numbers")
        return np.frombuffer(raw, code).reshape(shape)

    return msgpack.unpackb(data, object_hook=array, raw=False, strict_map_key=False)


def filter_contents(path: Path) -> Normalisation:
    """Read a filter's statistics; called in a helper process. Raises ValueError, OSError."""
    state = _plain(path)
    if not isinstance(state, dict) or set(state) != {None} or not isinstance(state[None], dict):
        raise ValueError("it has statistics for each agent, which is not supported; train without MeanStdFilter")
    entry = state[None]
    running = entry.get("running_stats")
    if not (isinstance(running, list) and len(running) == 1 and isinstance(running[0], dict)):
        raise ValueError("it has statistics of several parts of an observation, which is not supported")
    if not (entry.get("de_mean_to_zero") and entry.get("de_std_to_one")):
        raise ValueError("it does not normalise by both mean and standard deviation, which is not supported")
    count = int(running[0]["num_pushes"])
    mean, squares = (_decoded(running[0][key]) for key in ("mean_array", "sum_sq_diff_array"))
    variance = squares / (count - 1) if count > 1 else np.square(mean)
    clip = entry.get("clip_by_value")
    variance = np.square(np.sqrt(variance) + FILTER_EPSILON)
    return Normalisation(mean, variance, None if clip is None else float(clip))


def _decoded(text: Any) -> NDArray[np.float64]:
    """Decode an array of RLlib's: base64 of zlib of the .npy format."""
    raw = zlib.decompressobj().decompress(base64.b64decode(str(text), validate=True), MAX_ARRAY_BYTES)
    return np.asarray(npy.read_array(io.BytesIO(raw), allow_pickle=False), np.float64)


_HELPER, _FILTERS = Helper(contents, "an RLlib checkpoint"), Helper(filter_contents, "an RLlib checkpoint")


def _read(path: Path) -> Module:
    if path.name == OLD_STATE_FILE:
        raise InputError(
            "was written by RLlib's old API stack, which is not read; train with config.api_stack(enable_rl_module_and_"
            "learner=True, enable_env_runner_and_connector_v2=True), or save the weights of a PyTorch policy: "
            "torch.save(algorithm.get_policy().model.state_dict(), 'actor.pt')"
        )
    return _HELPER.read(path)


class RLlib(Source):
    format = "rllib"
    has_scopes = False

    def checkpoint_of(self, file: Path) -> Path | None:
        if file.name == OLD_STATE_FILE:
            return file
        # the env runner keeps a copy of the learner's modules
        is_policy = (
            file.name in STATE_FILES and file.parent.parent.name == "rl_module" and "env_runner" not in file.parts
        )
        return file if is_policy else None

    def model_number(self, path: Path) -> int | None:
        """The number of the checkpoint's folder, such as checkpoint_000010."""
        pattern = re.compile(r"(?:checkpoint|trial|round|iteration)[_-]?(\d+)$", re.I)
        return next((int(match[1]) for folder in path.parents if (match := pattern.search(folder.name))), None)

    def files(self, path: Path) -> list[Path]:
        statistics = _connectors(path) / FILTER / "state.pkl"
        return [path, path.with_name(CONFIG_FILE), *([statistics] if statistics.is_file() else [])]

    def open(self, path: Path) -> Checkpoint:
        return checkpoint_of(_read(path).arrays, ordered=True)

    def actor(self, path: Path, request: ActorRequest) -> RebuiltActor:
        module = _read(path)
        steps, unread = _steps(module)
        check_network(steps, module.inputs, module.choices)
        normalising_steps, note = _normalising_steps(path, module.inputs)
        return RebuiltActor(Actor("mlp", (*normalising_steps, *steps), unread), "", note, CATEGORICAL)


def _steps(module: Module) -> tuple[list[Step], tuple[str, ...]]:
    """(the actor's steps, the unread tensors). Raises InputError."""
    config, state = module.config, StateDict(module.arrays)
    for key in ("use_lstm", "fcnet_use_layernorm", "head_fcnet_use_layernorm"):
        if config.get(key):
            raise InputError(f"its model has {key}; only MLPs can be exported")
    if not module.class_name.startswith("ray.rllib.algorithms.") or not module.class_name.endswith("TorchRLModule"):
        raise InputError(f"its module is {module.class_name}; only RLlib's default PPO modules can be exported")
    encoder = next(
        (name for name in ("encoder/actor_encoder", "encoder/encoder") if state.holds(f"{name}/net/mlp")), None
    )
    if not state.holds("pi/net/mlp") or (encoder is None and state.holds("encoder")):
        raise InputError(
            "has no MLP encoder and policy head (encoder.*.net.mlp, pi.net.mlp); only PPO's MLPs can be exported"
        )
    # an activation follows the encoder's last layer too
    steps: list[Step] = []
    if encoder is not None:
        steps = activated(state.sequential(f"{encoder}/net/mlp"), activation(config.get("fcnet_activation", "tanh")))
    head = state.sequential("pi/net/mlp")
    steps += mlp(head, activation(config.get("head_fcnet_activation", "relu")) if len(head) > 1 else "")
    unknown = [name for name in state.unread_beside(TRAINING) if not name.endswith("log_std_clip_param_const")]
    if unknown:
        raise InputError(
            f"{unknown[0]} may be part of the policy, but RLlib's default PPO module does not have it; "
            "train with the default module"
        )
    return steps, state.unread


def _connectors(path: Path) -> Path:
    # <checkpoint>/learner_group/learner/rl_module/<policy>/module_state.pkl
    root = path.parents[4] if len(path.parents) > 4 else path.parent
    return root / "env_runner" / "env_to_module_connector"


def _normalising_steps(path: Path, inputs: int) -> tuple[list[Step], str]:
    """(a MeanStdFilter as steps before the network, a note for the user). Raises InputError for unknown connectors."""
    folder = _connectors(path)
    if not folder.is_dir():
        return [], f"whether a {FILTER} normalised its observations cannot be seen without {folder}"
    connectors = {entry.name for entry in folder.iterdir() if entry.is_dir()}
    if unknown := sorted(connectors - CONNECTORS - {FILTER}):
        raise InputError(
            f"its env runner has the connector {unknown[0]}, which may change observations; train without it"
        )
    if FILTER not in connectors:
        return [], ""
    file = folder / FILTER / "state.pkl"
    if not file.is_file():
        raise InputError(f"its observations are filtered, and {file} is missing; copy the whole checkpoint")
    stored_as = {"mean": f"{FILTER}: mean", "variance": f"{FILTER}: (std + {FILTER_EPSILON:g}) squared"}
    with errors_about(file):
        steps = _FILTERS.read(file).steps("mean_std_filter", inputs, stored_as)
    return steps, f"observations are normalised by its {FILTER}"


SOURCE = RLlib()
