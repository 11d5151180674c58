"""PyTorch state dicts: files of `torch.save` (.pt, .pth, .cleanrl_model) and .safetensors.

They hold weights by module name, such as CleanRL's `actor.0.weight`, and neither
activations nor the order in which modules are called.
"""

import functools
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from city.errors import InputError
from export.actors import Q_VALUES
from export.actors.architectures import Layers
from export.checkpoints import safetensors_file, scopes, torch_tensors
from export.checkpoints.checkpoint import Checkpoint, natural
from export.checkpoints.helper_process import Helper
from export.checkpoints.linear_layers import checkpoint_of
from export.checkpoints.source import ActorRequest, Source, StoredActor
from export.checkpoints.torch_tensors import SavedTensors

SAFETENSORS = ".safetensors"
Q_NETWORKS = ("q_network/", "q_net/", "network/")
"""CleanRL's names of Q-networks; its policies are called actor."""
NETWORKS = ("network", "net", "q_network", "q_net")
"""CleanRL's names of networks that are not called an actor."""


def contents(path: Path) -> SavedTensors:
    """The tensors of a file; called in a helper process. Raises ValueError, OSError."""
    if path.stat().st_size > torch_tensors.MAX_BYTES:
        raise ValueError("it is larger than any actor's")
    data = path.read_bytes()
    return safetensors_file.read(data) if path.suffix == SAFETENSORS else torch_tensors.read(data)


_HELPER = Helper("export.checkpoints.torch_state", "PyTorch weights", libraries=["export.checkpoints.torch_tensors"])


@functools.lru_cache(maxsize=1)
def _read(path: Path, _mtime_ns: int, _size: int) -> SavedTensors:
    """Cached, because several functions read the same file."""
    found: SavedTensors = _HELPER.read(path)
    return found


def saved_tensors(path: Path) -> SavedTensors:
    """The tensors of a file. Raises InputError."""
    try:
        stat = path.stat()
    except OSError as error:
        raise InputError(f"{path}: cannot be read as PyTorch weights: {error.strerror}") from None
    return _read(path, stat.st_mtime_ns, stat.st_size)


class TorchState(Source):
    format = "pytorch"
    suffixes = (".pt", ".pth", ".cleanrl_model", SAFETENSORS)

    def open(self, path: Path) -> Checkpoint:
        # a state dict lists modules as they were defined; safetensors sorts them
        return checkpoint_of(path, saved_tensors(path).arrays, ordered=path.suffix != SAFETENSORS)

    def layers(self, path: Path, checkpoint: Checkpoint, scope: str, whole: bool = False) -> Layers:
        found = super().layers(path, checkpoint, scope, whole)
        if whole:
            _check_modules(path, found, saved_tensors(path).modules)
        return found

    def actor(self, path: Path, label: str, wanted: ActorRequest) -> StoredActor:
        wanted = _layers_of_stable_baselines3(path, wanted)
        stored = super().actor(path, label, wanted)
        names = [layer.name for layer in stored.actor.dense]
        if wanted.scope is None and wanted.hints.layer_order is None and wanted.hints.architecture is None:
            _check_names(path, names)
        hidden = stored.actor.architecture != "mlp" or len(stored.actor.widths) > 2
        if hidden and wanted.hints.hidden_activation is None:
            raise InputError(
                f"{path}: holds weights without their activation; pass --hidden-activation (tanh for CleanRL's PPO, relu for "
                "its DQN), or set hidden_activation in [tl.NAME]"
            )
        if not wanted.categorical and wanted.hints.output_activation is None:
            raise InputError(
                f"{path}: holds weights without the activation of their output; set output_activation in [tl.NAME]: "
                "tanh, or clip if the environment clips actions to [-1, 1], or pass --action categorical"
            )
        if wanted.categorical and all(name.startswith(Q_NETWORKS) for name in names):
            _refuse_value_stream(path, names)
            return replace(stored, actor=replace(stored.actor, scores=Q_VALUES))
        return stored


def _layers_of_stable_baselines3(path: Path, wanted: ActorRequest) -> ActorRequest:
    """The request with the layers of `model.policy.state_dict()` in order: the hidden ones are in another module than the last.

    Of another file, or if the user has named a scope: the request as it is.
    """
    names = saved_tensors(path).arrays
    hidden = [
        name.removesuffix("/weight")
        for name in sorted(names, key=natural)
        if re.fullmatch(r"mlp_extractor/policy_net/\d+/weight", name)
    ]
    if wanted.scope is not None or not hidden or "action_net/weight" not in names:
        return wanted
    order = wanted.hints.layer_order or (*hidden, "action_net")
    return replace(wanted, scope=".", hints=replace(wanted.hints, layer_order=order))


def _refuse_value_stream(path: Path, layers: Sequence[str]) -> None:
    """Raise InputError if a Q-network has a value stream beside these layers: their outputs are advantages then."""
    top = layers[0].split("/")[0]
    for name in saved_tensors(path).arrays:
        inside = name.split("/")
        if inside[0] == top and any(map(scopes.is_training, inside[1:-1])):
            raise InputError(
                f"{path}: {name} is the value stream of a dueling Q-network, which is not supported; train one without streams"
            )


def _check_names(path: Path, layers: Sequence[str]) -> None:
    """Raise InputError unless every layer is in a module that trainers call so, or in a bare sequence."""
    for layer in layers:
        parts = layer.split("/")
        if not any(scopes.is_actor(part) or part in NETWORKS for part in parts) and not all(part.isdigit() for part in parts):
            raise InputError(
                f"{path}: the name of its layer {layer} does not tell that it is the actor's; pass the actor's layers in the "
                f"order of calls (--layers {','.join(layers)}), or their module (--scope {parts[0]})"
            )


def _check_modules(path: Path, found: Layers, modules: tuple[str, ...]) -> None:
    """Raise InputError unless the numbers of a sequence's modules leave exactly one activation between two linear layers."""
    parents = {layer.name.rpartition("/")[0] for layer in found.dense}
    numbers = [layer.name.rpartition("/")[2] for layer in found.dense]
    if len(parents) != 1 or not all(number.isdigit() for number in numbers):
        return
    parent = parents.pop()
    prefix = f"{parent}/" if parent else ""
    inside = {name.removeprefix(prefix) for name in modules if name.startswith(prefix)}
    every = sorted({int(name) for name in inside if name.isdigit()} | {0, *map(int, numbers)})
    last = int(numbers[-1])
    if list(map(int, numbers)) != list(range(0, last + 1, 2)) or every[-1] != last:
        raise InputError(
            f"{path}: {parent or 'its sequence'} has modules {every[0]} to {every[-1]}, with weights in {', '.join(numbers)}: "
            "the file does not say what the others compute; pass --actor mlp if one activation follows every layer but the last"
        )


SOURCE = TorchState()
