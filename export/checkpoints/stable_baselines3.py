"""stable-baselines3 and sb3-contrib zips: `data` (JSON) describes the policy, `policy.pth` has its weights.

Reads PPO, A2C, TRPO and MaskablePPO (`mlp_extractor.policy_net`, `action_net`), DQN
(`q_net.q_net`), SAC and TQC (`actor.latent_pi`, `actor.mu`), TD3 and DDPG (`actor.mu`). Of the
pickles in `data` (`:serialized:`), it reads the spaces and the last observation.
Continuous actions are those of `predict(deterministic=True)`: clipped to the action space,
or squashed by tanh and scaled to it.

Observations that VecNormalize normalised are normalised in the exported graph, with the
statistics of the .pkl file beside the zip (`vec_normalize`). Source: stable_baselines3/common/policies.py.
"""

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from city.errors import InputError, first_line
from export.actors import Actor
from export.actors.steps import Activation, Affine, Clip, Step, activated, mlp
from export.checkpoints import pickles, torch_tensors, vec_normalize
from export.checkpoints.checkpoint import Checkpoint
from export.checkpoints.helper_process import Helper
from export.checkpoints.linear_layers import StateDict, activation, check_network, checkpoint_of
from export.checkpoints.pickles import CONTINUOUS, Space
from export.checkpoints.source import ActorRequest, RebuiltActor, Source
from serving.contract import CATEGORICAL, PROBABILITIES, Q_VALUES

MAX_DATA_BYTES = 1 << 28
"""Limit for `data`, which holds the last observations beside the settings."""
SPACE_TOLERANCE = 1e-4
NORMALISED = 10.0
"""VecNormalize's default clip_obs."""
UNSEEN = "whether it was trained in a VecNormalize environment cannot be seen in it"
KEPT_SETTINGS = ("policy_class", "policy_kwargs", "_last_original_obs", "use_sde", "n_epochs")
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
    """KEPT_SETTINGS of `data`."""
    arrays: Mapping[str, NDArray[Any]]
    observation: Space
    action: Space
    last_observation: NDArray[Any] | None
    """The last observation of training, after normalisation. `None` if it cannot be read."""


def contents(path: Path) -> SavedPolicy:
    """Read a zip; called in a helper process. Raises ValueError, OSError."""
    with torch_tensors.open_archive(path.read_bytes()) as archive:
        members = torch_tensors.members_of(archive)
        if missing := [name for name in ("data", "policy.pth") if name not in members]:
            raise ValueError(
                f"it has no member {missing[0]}; write it with model.save(path), or name a file of torch.save .pt, a "
                "Keras model .keras; of stable-baselines 2, save numpy.savez('actor.npz', **model.get_parameters())"
            )
        data = torch_tensors.member_bytes(archive, members["data"], MAX_DATA_BYTES)
        try:
            settings = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"its member data cannot be read ({first_line(error)})") from None
        if not isinstance(settings, dict):
            raise ValueError("its member data holds no settings")
        tensors = torch_tensors.read(torch_tensors.member_bytes(archive, members["policy.pth"]))
    observation = pickles.space_of(_unpickled(settings, "observation_space"), "observation", CONTINUOUS)
    if settings["observation_space"].get("_shape") != [observation.size]:
        raise ValueError("its observation space has two sizes; the file is damaged")
    try:
        last_observation = pickles.numbers(_unpickled(settings, "_last_obs"))
    except ValueError:
        last_observation = None
    return SavedPolicy(
        {key: settings[key] for key in KEPT_SETTINGS if key in settings},
        tensors.arrays,
        observation,
        pickles.space_of(_unpickled(settings, "action_space"), "action", CATEGORICAL, CONTINUOUS),
        last_observation,
    )


def _unpickled(settings: Mapping[str, Any], key: str) -> Any:
    """The object in a setting's pickle, read without running it. Raises ValueError."""
    try:
        pickled = base64.b64decode(settings[key][":serialized:"])
    except (TypeError, LookupError):
        raise ValueError(f"its {key} was not saved; save it without exclude") from None
    return pickles.load(pickled, pickles.REBUILDERS, pickles.LIBRARIES)


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

    def actor(self, path: Path, request: ActorRequest) -> RebuiltActor:
        saved = _HELPER.read(path)
        steps, unread, scores = _steps(saved)
        check_network(steps, saved.observation.size, saved.action.size)
        normalising_steps, note = _normalising_steps(path, saved)
        return RebuiltActor(Actor("mlp", (*normalising_steps, *steps), unread, scores), "", note, saved.action.kind)


def _steps(saved: SavedPolicy) -> tuple[list[Step], tuple[str, ...], str]:
    """(the actor's steps, the unread tensors, the kind of its scores). Raises InputError."""
    kwargs = saved.settings.get("policy_kwargs")
    if not isinstance(kwargs, dict):
        raise InputError("its policy_kwargs, which contain the activations, were not saved; save it without exclude")
    extractor = kwargs.get("features_extractor_class")
    if extractor is not None and not FLATTEN_EXTRACTOR.fullmatch(str(extractor)):
        raise InputError(f"its features extractor {str(extractor)[:60]} is not MlpPolicy's; train with MlpPolicy")
    module = _module(saved)
    if not module.startswith(POLICY_MODULES) or not UNSUPPORTED.isdisjoint(module.split(".")):
        raise _unsupported(saved)
    state = StateDict(saved.arrays)
    steps, is_squashed, scores = _network(saved, state, kwargs)
    if saved.action.kind == CONTINUOUS:
        steps += _bounded(saved.action, is_squashed)
    unknown = [name for name in state.unread_beside(TRAINING) if name not in TRAINING_TENSORS]
    if unknown:
        raise InputError(
            f"{unknown[0]} is not a tensor of a supported policy, but may be part of the actor; train with MlpPolicy"
        )
    return steps, state.unread, scores


def _module(saved: SavedPolicy) -> str:
    policy = saved.settings.get("policy_class")
    return str(policy.get("__module__")) if isinstance(policy, dict) else "unknown"


def _network(saved: SavedPolicy, state: StateDict, kwargs: Mapping[str, Any]) -> tuple[list[Step], bool, str]:
    """(the steps of a policy's network, whether a tanh bounds its actions, the kind of its scores).

    Raises InputError if the policy is not supported.
    """
    relu = _hidden_activation(kwargs, "relu")
    if "action_net/weight" in saved.arrays:
        # a sequence that the policy lacks is empty
        hidden = [*state.sequential("mlp_extractor/shared_net"), *state.sequential("mlp_extractor/policy_net")]
        steps = mlp([*hidden, state.linear("action_net")], _hidden_activation(kwargs, "tanh"))
        return steps, bool(kwargs.get("squash_output")), PROBABILITIES
    if state.holds("q_net/q_net"):
        return mlp(state.sequential("q_net/q_net"), relu), False, Q_VALUES
    if saved.settings.get("use_sde") is True and "actor/mu/0/weight" in saved.arrays:
        # mu is Sequential(Linear, Hardtanh)
        bound = kwargs.get("clip_mean", CLIP_MEAN)
        if not isinstance(bound, int | float) or not 0 < bound < np.inf:
            raise InputError(f"its policy_kwargs have clip_mean {bound}, not a positive number")
        steps = activated(state.sequential("actor/latent_pi"), relu)
        return [*steps, state.linear("actor/mu/0"), Clip((-bound,), (bound,))], True, PROBABILITIES
    if state.holds("actor/latent_pi") or "actor/mu/weight" in saved.arrays:
        return mlp([*state.sequential("actor/latent_pi"), state.linear("actor/mu")], relu), True, PROBABILITIES
    if state.holds("actor/mu/0"):
        return mlp(state.sequential("actor/mu"), relu), True, PROBABILITIES
    raise _unsupported(saved)


def _unsupported(saved: SavedPolicy) -> InputError:
    policy = saved.settings.get("policy_class")
    found = str(policy.get("__init__", policy)) if isinstance(policy, dict) else "unknown"
    return InputError(
        f"its policy ({found.removeprefix('<function ').split(' ')[0]}, of module {_module(saved)}) is not supported: "
        "only MlpPolicy of stable-baselines3's and sb3-contrib's PPO, A2C, TRPO, MaskablePPO, DQN, SAC, TQC, TD3, DDPG"
    )


def _hidden_activation(kwargs: Mapping[str, Any], default: str) -> str:
    """The activation of hidden layers. policy_kwargs have its class if it is not the algorithm's default. Raises
    InputError."""
    activation_class = kwargs.get("activation_fn")
    if activation_class is None:
        return default
    match = re.fullmatch(r"<class '(torch\.nn\.modules\.(?:activation|linear)\.)?([\w.]+)'>", str(activation_class))
    return activation(match[2] if match and match[1] else activation_class)


def _bounded(action: Space, is_squashed: bool) -> list[Step]:
    """A clip to the action space, or tanh and the scale from [-1, 1] to it. Raises InputError."""
    if not np.isfinite((*action.low, *action.high)).all():
        raise InputError("its action space is not bounded; only bounded actions can be exported")
    if not is_squashed:
        return [Clip(action.low, action.high)]
    low, high = np.array(action.low, np.float32), np.array(action.high, np.float32)
    if (low == -1).all() and (high == 1).all():
        return [Activation("tanh")]
    half, middle = (high - low) / np.float32(2), (high + low) / np.float32(2)
    return [Activation("tanh"), Affine("action_space", half, middle)]


def _normalising_steps(path: Path, saved: SavedPolicy) -> tuple[list[Step], str]:
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
    return vec_normalize.steps(file, saved.observation.size)


def _is_on_policy(saved: SavedPolicy) -> bool:
    return saved.settings.get("n_epochs") is not None or "value_net/weight" in saved.arrays


def _was_normalised(saved: SavedPolicy) -> bool | None:
    """Tell whether the last observation of training was normalised; `None` if the file does not show it."""
    if _is_on_policy(saved):
        # these algorithms save the unnormalised observation only if the environment normalises, others always
        key = "_last_original_obs"
        return saved.settings[key] is not None if key in saved.settings else None
    last, low, high = saved.last_observation, np.array(saved.observation.low), np.array(saved.observation.high)
    if last is None or last.shape[-1:] != low.shape:
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


SOURCE = StableBaselines3()
