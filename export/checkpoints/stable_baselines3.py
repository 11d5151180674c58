"""stable-baselines3 and sb3-contrib zips: `data` (JSON) describes the policy, `policy.pth` has its weights.

Reads PPO, A2C, TRPO and MaskablePPO (`mlp_extractor.policy_net`, `action_net`), DQN
(`q_net.q_net`), SAC and TQC (`actor.latent_pi`, `actor.mu`), TD3 and DDPG (`actor.mu`). Of the
pickles in `data` (`:serialized:`), it reads the last observation and the bounds of the action space.
Continuous actions are those of `predict(deterministic=True)`: clipped to the action space,
or squashed by tanh and scaled to it.

Observations that VecNormalize normalised are normalised in the exported graph, with the
statistics of the .pkl file beside the zip (`vec_normalize`). Source: stable_baselines3/common/policies.py.
"""

import base64
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from city.errors import InputError
from export.actors import Actor
from export.actors.steps import Activation, Affine, Clip, Step
from export.checkpoints import pickled_arrays, torch_tensors, vec_normalize
from export.checkpoints.checkpoint import Checkpoint
from export.checkpoints.helper_process import Helper
from export.checkpoints.linear_layers import StateDict, activated, activation, check_network, checkpoint_of
from export.checkpoints.pickled_values import Opaque, load
from export.checkpoints.source import ActorRequest, Source, StoredActor
from serving.contract import PROBABILITIES, Q_VALUES

MAX_DATA_BYTES = 1 << 28
"""Limit for `data`, which holds the last observations beside the settings."""
SPACE_TOLERANCE = 1e-4
NORMALISED = 10.0
"""VecNormalize's default clip_obs."""
UNSEEN = "whether it was trained in a VecNormalize environment cannot be seen in it"
KEPT_SETTINGS = (
    "policy_class", "policy_kwargs", "observation_space", "action_space", "_last_original_obs", "use_sde", "n_epochs",
)  # fmt: skip
POLICY_MODULES = ("stable_baselines3.", "sb3_contrib.")
"""Modules of the libraries' own policies; a user's class may compute anything."""
UNSUPPORTED = {"crossq", "qrdqn", "ars"}
"""Modules of policies that have other layers."""
FLATTEN_EXTRACTOR = re.compile(r"<class 'stable_baselines3\.common\.(torch_layers|policies)\.FlattenExtractor'>")
"""The features extractor of MlpPolicy, which does not change values."""
CLIP_MEAN = 2.0
"""Default bound of SAC's mean action with use_sde."""
TRAINING = (
    *("value_net", "mlp_extractor/value_net", "critic", "critic_target", "actor_target", "q_net_target"),
    "actor/log_std",
)
"""Modules that only training uses."""
TRAINING_TENSORS = ("log_std", "actor/log_std", "log_ent_coef")


@dataclass(frozen=True)
class SavedPolicy:
    """The policy of a zip."""

    settings: Mapping[str, Any]
    """KEPT_SETTINGS of `data`, without the serialized pickles."""
    arrays: Mapping[str, NDArray[Any]]
    version: str
    last_observation: NDArray[Any] | None
    """The last observation of training, after normalisation. `None` if it cannot be read."""
    observation_bounds: tuple[tuple[float, ...], tuple[float, ...]] | None
    """(low, high) of a Box, exact. `None` if the space is not a Box, or they cannot be read."""
    action_bounds: tuple[tuple[float, ...], tuple[float, ...]] | None
    """The same of the actions."""


def contents(path: Path) -> SavedPolicy:
    """Read a zip; called in a helper process. Raises ValueError, OSError."""
    with torch_tensors.open_archive(path.read_bytes()) as archive:
        members = torch_tensors.members_of(archive)
        _check_members(members)
        try:
            settings = json.loads(torch_tensors.member_bytes(archive, members["data"], MAX_DATA_BYTES))
        except RecursionError:
            raise ValueError("its member data is nested too deeply") from None
        except (UnicodeDecodeError, json.JSONDecodeError):
            raise ValueError("its member data is not JSON") from None
        if not isinstance(settings, dict):
            raise ValueError("its member data holds no settings")
        version = ""
        if "_stable_baselines3_version" in members:
            text = torch_tensors.member_bytes(archive, members["_stable_baselines3_version"], 1000)
            version = text.decode("ascii", "replace").strip()
        tensors = torch_tensors.read(torch_tensors.member_bytes(archive, members["policy.pth"]))
    kept = {key: _without_pickles(settings[key]) for key in KEPT_SETTINGS if key in settings}
    return SavedPolicy(
        kept,
        tensors.arrays,
        version,
        pickled_arrays.numbers(_unpickled(settings.get("_last_obs"))),
        _bounds(_unpickled(settings.get("observation_space"))),
        _bounds(_unpickled(settings.get("action_space"))),
    )


def _check_members(members: Collection[str]) -> None:
    """Raise ValueError unless the zip is one of `model.save`."""
    missing = [name for name in ("data", "policy.pth") if name not in members]
    if missing and "parameters" in members:
        raise ValueError(
            "it was written by stable-baselines 2, which is not read; save its weights by name: "
            "numpy.savez('actor.npz', **model.get_parameters())"
        )
    if missing and any(name.endswith("/data.pkl") for name in members):
        raise ValueError(
            "it was written by policy.save or torch.save; write it with model.save(path), or save "
            "model.policy.state_dict() as .pt"
        )
    if missing and "model.weights.h5" in members:
        raise ValueError("it is a Keras model; name it .keras")
    if missing:
        raise ValueError(
            f"it has no member {missing[0]}, or is cut off; copy it again, or write it with model.save(path)"
        )


def _bounds(space: Any) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    state = space.state if isinstance(space, Opaque) else None
    if not isinstance(state, dict):
        return None
    low, high = pickled_arrays.numbers(state.get("low")), pickled_arrays.numbers(state.get("high"))
    if low is None or high is None:
        return None
    return tuple(np.ravel(low).astype(float).tolist()), tuple(np.ravel(high).astype(float).tolist())


def _unpickled(setting: Any) -> Any:
    """The object in a setting's pickle, read without running it. `None` if it cannot be read."""
    try:
        return load(base64.b64decode(setting[":serialized:"]), pickled_arrays.REBUILDERS, vec_normalize.LIBRARIES)
    except (ValueError, TypeError, LookupError):
        return None  # the printed values beside the pickle are checked instead


def _without_pickles(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_pickles(item) for key, item in value.items() if key not in (":serialized:", "__doc__")}
    return value


_HELPER = Helper(contents, "a stable-baselines3 file")


class StableBaselines3(Source):
    format = "stable-baselines3"
    suffixes = (".zip",)
    has_scopes = False

    def files(self, path: Path) -> list[Path]:
        statistics = _statistics_file(path, _HELPER.read(path))
        return [path] if statistics is None else [path, statistics]

    def open(self, path: Path) -> Checkpoint:
        return checkpoint_of(_HELPER.read(path).arrays, ordered=True)

    def actor(self, path: Path, request: ActorRequest) -> StoredActor:
        self.refuse_scope(request)
        self.refuse_tensor(request)
        saved = _HELPER.read(path)
        inputs, action = _observation_size(saved), _action_space(saved)
        steps, unread, scores = _steps(saved, action)
        check_network(steps, inputs, action.size)
        normalising_steps, note = _normalising_steps(path, saved, inputs)
        return StoredActor(Actor("mlp", (*normalising_steps, *steps), unread, scores), "", note, action.kind)


@dataclass(frozen=True)
class SavedActionSpace:
    kind: str
    """`categorical` or `continuous`."""
    size: int
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


def _observation_size(saved: SavedPolicy) -> int:
    space: Any = saved.settings.get("observation_space")
    kind = str(space.get(":type:")) if isinstance(space, dict) else str(space)
    shape = space.get("_shape") if isinstance(space, dict) else None
    if not kind.endswith("box.Box'>"):
        raise InputError(
            f"its observation space is {_class_name(kind)}; "
            "only a Box of one dimension, such as sumo-rl's, can be exported"
        )
    if not isinstance(shape, list) or len(shape) != 1 or type(shape[0]) is not int:
        raise InputError(
            f"its observation has shape {shape}; only a Box of one dimension, such as sumo-rl's, can be exported"
        )
    return shape[0]


def _action_space(saved: SavedPolicy) -> SavedActionSpace:
    space: Any = saved.settings.get("action_space")
    kind = str(space.get(":type:")) if isinstance(space, dict) else str(space)
    if kind.endswith("discrete.Discrete'>"):
        start, size = str(space.get("start", "0")), str(space.get("n"))
        if not (size.isascii() and size.isdigit()) or int(size) < 1 or start != "0":
            raise InputError(
                f"its action space has {size} choices from {start} on; only choices from 0 on can be exported"
            )
        return SavedActionSpace("categorical", int(size))
    if kind.endswith("box.Box'>") and isinstance(space.get("_shape"), list):
        if len(space["_shape"]) != 1:
            raise InputError(
                f"its actions have shape {tuple(space['_shape'])}; only a Box of one dimension can be exported"
            )
        # the printed bounds are the second choice: NumPy rounds them as the user's print options say
        try:
            low, high = saved.action_bounds or _printed_bounds(space)
        except ValueError:
            low, high = (), ()
        if not np.isfinite((*low, *high)).all():
            raise InputError(
                f"its action space is not bounded ({space.get('low')} to {space.get('high')}); "
                "only bounded actions can be exported"
            )
        if len(low) == len(high) == space["_shape"][0] and all(a < b for a, b in zip(low, high, strict=True)):
            return SavedActionSpace("continuous", len(low), low, high)
        raise InputError(f"the bounds of its action space cannot be read ({space.get('low')} to {space.get('high')})")
    advice = "; train one policy for each signal" if "MultiDiscrete" in kind else ""
    raise InputError(f"its action space is {_class_name(kind)}; only Discrete and Box can be exported{advice}")


def _printed_bounds(space: Mapping[str, Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(low, high) of a Box as NumPy printed them. Raises ValueError: NumPy does not print all of more than 1,000."""
    low, high = (tuple(map(float, str(space.get(key)).strip("[]").split())) for key in ("low", "high"))
    return low, high


def _steps(saved: SavedPolicy, action: SavedActionSpace) -> tuple[list[Step], tuple[str, ...], str]:
    """(the actor's steps, the unread tensors, the kind of its scores). Raises InputError."""
    kwargs = saved.settings.get("policy_kwargs")
    if not isinstance(kwargs, dict):
        raise InputError("its policy_kwargs, which contain the activations, were not saved; save it without exclude")
    _check_extractor(saved, kwargs)
    policy = saved.settings.get("policy_class")
    module = str(policy.get("__module__")) if isinstance(policy, dict) else "unknown"
    if not module.startswith(POLICY_MODULES):
        raise InputError(
            f"its policy ({_policy_name(saved)}, of module {module}) is not one of stable-baselines3's or "
            "sb3-contrib's: it may act differently; train with MlpPolicy"
        )
    if any(part in UNSUPPORTED for part in module.split(".")):
        raise _unsupported(saved)
    state = StateDict(saved.arrays)
    steps, is_squashed, scores = _network(saved, state, kwargs)
    if action.kind == "continuous":
        steps += _bounded(action) if is_squashed else [Clip(action.low, action.high)]
    unknown = [name for name in state.unread_beside(TRAINING) if name not in TRAINING_TENSORS]
    if unknown:
        raise InputError(
            f"{unknown[0]} is not a tensor of a supported policy, but may be part of the actor; train with MlpPolicy"
        )
    return steps, state.unread, scores


def _check_extractor(saved: SavedPolicy, kwargs: Mapping[str, Any]) -> None:
    """Raise InputError if a policy has an LSTM, or features extracted from its observation."""
    for name in saved.arrays:
        if "lstm" in name:
            raise InputError(
                f"{name} is part of an LSTM: its actions depend on earlier observations; train a policy without an LSTM"
            )
        if "features_extractor" in name:
            raise InputError(f"{name} is part of a features extractor (a CNN or a user's class); train with MlpPolicy")
    extractor = kwargs.get("features_extractor_class")
    if extractor is not None and not FLATTEN_EXTRACTOR.fullmatch(str(extractor)):
        raise InputError(
            f"its features extractor {_class_name(str(extractor))} is not MlpPolicy's; train with MlpPolicy"
        )


def _network(saved: SavedPolicy, state: StateDict, kwargs: Mapping[str, Any]) -> tuple[list[Step], bool, str]:
    """(the steps of a policy's network, whether a tanh bounds its actions, the kind of its scores).

    Raises InputError if the policy is not supported.
    """
    relu = _hidden_activation(kwargs, "relu")
    if "action_net/weight" in saved.arrays:
        # a sequence that the policy lacks is empty
        hidden = [*state.sequential("mlp_extractor/shared_net"), *state.sequential("mlp_extractor/policy_net")]
        steps = activated(hidden, _hidden_activation(kwargs, "tanh"))
        return [*steps, state.linear("action_net")], bool(kwargs.get("squash_output")), PROBABILITIES
    if state.holds("q_net/q_net"):
        *hidden, last = state.sequential("q_net/q_net")
        return [*activated(hidden, relu), last], False, Q_VALUES
    if saved.settings.get("use_sde") is True and "actor/mu/0/weight" in saved.arrays:
        # mu is Sequential(Linear, Hardtanh)
        bound = kwargs.get("clip_mean", CLIP_MEAN)
        if not isinstance(bound, int | float) or not 0 < bound < np.inf:
            raise InputError(f"its policy_kwargs have clip_mean {bound}, not a positive number")
        steps = activated(state.sequential("actor/latent_pi"), relu)
        return [*steps, state.linear("actor/mu/0"), Clip((-bound,), (bound,))], True, PROBABILITIES
    if state.holds("actor/latent_pi") or "actor/mu/weight" in saved.arrays:
        steps = activated(state.sequential("actor/latent_pi"), relu)
        return [*steps, state.linear("actor/mu")], True, PROBABILITIES
    if state.holds("actor/mu/0"):
        *hidden, last = state.sequential("actor/mu")
        return [*activated(hidden, relu), last], True, PROBABILITIES
    raise _unsupported(saved)


def _unsupported(saved: SavedPolicy) -> InputError:
    return InputError(
        f"{_policy_name(saved).removesuffix('Policy')} is not supported; "
        "supported is MlpPolicy of PPO, A2C, TRPO, MaskablePPO, DQN, SAC, TQC, TD3 and DDPG"
    )


def _policy_name(saved: SavedPolicy) -> str:
    policy = saved.settings.get("policy_class")
    match = re.match(r"<function (\w+)", str(policy.get("__init__"))) if isinstance(policy, dict) else None
    return match[1] if match else "a policy of unknown class"


def _hidden_activation(kwargs: Mapping[str, Any], default: str) -> str:
    """The activation of hidden layers. policy_kwargs have its class if it is not the algorithm's default. Raises
    InputError."""
    activation_class = kwargs.get("activation_fn")
    if activation_class is None:
        return default
    match = re.fullmatch(r"<class '(torch\.nn\.modules\.(?:activation|linear)\.)?([\w.]+)'>", str(activation_class))
    return activation(match[2] if match and match[1] else activation_class)


def _bounded(action: SavedActionSpace) -> list[Step]:
    """tanh, then the scale from [-1, 1] to the action space."""
    low, high = np.array(action.low, np.float32), np.array(action.high, np.float32)
    if (low == -1).all() and (high == 1).all():
        return [Activation("tanh")]
    half, middle = (high - low) / np.float32(2), (high + low) / np.float32(2)
    return [Activation("tanh"), Affine("action_space", half, middle)]


def _normalising_steps(path: Path, saved: SavedPolicy, inputs: int) -> tuple[list[Step], str]:
    """(VecNormalize as steps before the network, a note for the user). Raises InputError if its statistics are
    missing."""
    file = _statistics_file(path, saved)
    if file is None:
        was_normalised = _was_normalised(saved)
        if was_normalised:
            raise InputError(
                f"was trained in a VecNormalize environment, and its statistics are not beside it; "
                f"save them there: env.save({str(path.with_name(path.stem + '_vecnormalize.pkl'))!r})"
            )
        return [], UNSEEN if was_normalised is None else ""
    return vec_normalize.steps(file, inputs)


def _is_on_policy(saved: SavedPolicy) -> bool:
    return saved.settings.get("n_epochs") is not None or "value_net/weight" in saved.arrays


def _was_normalised(saved: SavedPolicy) -> bool | None:
    """Tell whether the last observation of training was normalised; `None` if the file does not show it."""
    if _is_on_policy(saved):
        # these algorithms save the unnormalised observation only if the environment normalises, others always
        key = "_last_original_obs"
        return saved.settings[key] is not None if key in saved.settings else None
    last = saved.last_observation
    try:
        bounds = saved.observation_bounds or _printed_bounds(saved.settings.get("observation_space") or {})
    except ValueError:
        return None
    low, high = map(np.array, bounds)
    if last is None or not low.shape == high.shape == last.shape[-1:]:
        return None
    if ((last < low - SPACE_TOLERANCE) | (last > high + SPACE_TOLERANCE)).any():
        return True
    # a normalised value lies within [-NORMALISED, NORMALISED]; in a wider space it is never outside
    return False if ((low > -NORMALISED) | (high < NORMALISED)).any() else None


def _statistics_file(path: Path, saved: SavedPolicy) -> Path | None:
    """The file with a zip's VecNormalize statistics, if there is one beside it.

    Raises InputError if it is not clear whether a file belongs to the zip: with another model's statistics the exported
    actor would give other actions.
    """
    matching, unassigned = vec_normalize.files_beside(path)
    is_unnormalised = _is_on_policy(saved) and saved.settings.get("_last_original_obs", "") is None
    if is_unnormalised and matching:
        raise InputError(
            f"was not trained in a VecNormalize environment, but {matching[0].name} is beside it; "
            "move that file elsewhere"
        )
    if is_unnormalised or (not matching and not unassigned):
        return None
    if len(matching) == 1:
        return matching[0]
    candidates = ", ".join(file.name for file in matching or unassigned)
    unseen = f"; {UNSEEN}" if _was_normalised(saved) is None else ""
    raise InputError(
        f"it is not clear which statistics of VecNormalize belong to it ({candidates} beside it{unseen}); "
        f"name them {path.stem}_vecnormalize.pkl, and move the others elsewhere"
    )


def _class_name(kind: str) -> str:
    match = re.search(r"(\w+)'>$", kind)
    return match[1] if match else kind[:60]


SOURCE = StableBaselines3()
