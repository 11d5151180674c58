"""PyTorch state dicts: files of `torch.save` (.pt, .pth, .cleanrl_model) and .safetensors.

They hold weights by module name, such as CleanRL's `actor.0.weight`. They do not contain
activations or the order in which modules are called.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import safetensors
from numpy.typing import NDArray

from city.errors import InputError
from export.actors import Actor
from export.actors.architectures import Layers
from export.actors.steps import Affine
from export.checkpoints import scopes, torch_tensors
from export.checkpoints.checkpoint import Checkpoint, float32_weights, natural
from export.checkpoints.helper_process import Helper
from export.checkpoints.linear_layers import checkpoint_of
from export.checkpoints.source import ActorRequest, RebuiltActor, Source
from export.checkpoints.torch_tensors import SavedTensors
from serving.contract import PROBABILITIES, Q_VALUES

SAFETENSORS = ".safetensors"
SAFETENSORS_DTYPES = {
    "F64": "f8", "F32": "f4", "F16": "f2", "BF16": "bfloat16", "I64": "i8", "I32": "i4", "I16": "i2", "I8": "i1",
    "U8": "u1", "BOOL": "b1",
}  # fmt: skip
CLEANRL = ".cleanrl_model"
"""Suffix of CleanRL's models, whose Q-networks are called network or q_network, and policies actor."""
NETWORKS = ("network", "net", "q_network", "q_net")
"""CleanRL's names of networks that are not called an actor."""


def contents(path: Path) -> SavedTensors:
    """Read the tensors of a file; called in a helper process. Raises ValueError, OSError."""
    data = path.read_bytes()
    return _safetensors(data) if path.suffix == SAFETENSORS else torch_tensors.read(data)


def _safetensors(data: bytes) -> SavedTensors:
    """Read the tensors of a .safetensors file. Raises ValueError if it cannot be read."""
    try:
        stored = safetensors.deserialize(data)  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        raise ValueError(f"it is not a complete safetensors file ({error}); copy it again") from None
    arrays = {}
    for key, tensor in sorted(stored, key=lambda entry: entry[0]):  # the library's order changes from call to call
        name, dtype = key.replace(".", "/"), tensor["dtype"]
        if dtype not in SAFETENSORS_DTYPES:
            raise ValueError(f"its tensor {key} has dtype {dtype}, not one of {', '.join(SAFETENSORS_DTYPES)}")
        if name in arrays:
            raise ValueError(f"two of its tensors are called {name}")
        arrays[name] = np.frombuffer(tensor["data"], SAFETENSORS_DTYPES[dtype]).reshape(tensor["shape"])
    if not arrays:
        raise ValueError("it holds no tensors")
    return SavedTensors(arrays, ())


_HELPER = Helper(contents, "PyTorch weights")


def _action_scale(checkpoint: Checkpoint, scope: str) -> dict[str, NDArray[np.float32]]:
    """Buffers of CleanRL's SAC, TD3 and DDPG in an actor's scope, if it has both: an action is tanh(y) * action_scale +
    action_bias."""
    names = [f"{scope}/{name}".lstrip("/") for name in ("action_scale", "action_bias")]
    if not set(names) <= set(checkpoint.stored):
        return {}
    return {name: float32_weights(name, checkpoint.value(name)) for name in names}


def _scaling_step(buffers: Mapping[str, NDArray[np.float32]], actions: int) -> Affine:
    for name, values in buffers.items():
        if values.size not in (1, actions):
            raise InputError(f"{name} has {values.size} values for {actions} actions; name other --layers")
    scale, shift = (np.broadcast_to(values.reshape(-1), (actions,)) for values in buffers.values())
    return Affine("action_scale", scale, shift, dict(zip(Affine.parts, ((name,) for name in buffers), strict=True)))


class TorchState(Source):
    format = "pytorch"
    leaky_relu = "leaky_relu:0.01"
    suffixes = (".pt", ".pth", CLEANRL, SAFETENSORS)

    def open(self, path: Path) -> Checkpoint:
        # a state dict lists modules as they were defined; safetensors sorts them
        return checkpoint_of(_HELPER.read(path).arrays, ordered=path.suffix != SAFETENSORS)

    def layers(self, path: Path, checkpoint: Checkpoint, scope: str, strict: bool = False) -> Layers:
        buffers = _action_scale(checkpoint, scope)
        stored = {name: variable for name, variable in checkpoint.stored.items() if name not in buffers}
        checkpoint = replace(checkpoint, stored=stored)
        layers = super().layers(path, checkpoint, scope, strict)
        if strict:
            _check_modules(layers, _HELPER.read(path).modules)
        return layers

    def actor(self, path: Path, request: ActorRequest) -> RebuiltActor:
        request = _with_library_settings(path, request)
        checkpoint = self.open(path)
        buffers = _action_scale(checkpoint, request.scope_in(checkpoint))
        if buffers and request.hints.output_activation is None:
            request = replace(request, hints=replace(request.hints, output_activation="tanh"))
        rebuilt = super().actor(path, request)
        actor = rebuilt.actor
        assert isinstance(actor, Actor), "weights form steps"
        if buffers:
            actor = replace(actor, steps=(*actor.steps, _scaling_step(buffers, actor.outputs)))
            rebuilt = replace(rebuilt, actor=actor, action_kind="continuous")
        names = [layer.name for layer in actor.dense]
        if request.scope is None and request.hints.layer_order is None and request.hints.architecture is None:
            _check_names(names)
        has_hidden_layers = actor.architecture != "mlp" or len(actor.widths) > 2
        if has_hidden_layers and request.hints.hidden_activation is None:
            raise InputError(
                "holds weights without their activation; pass --hidden-activation (tanh for CleanRL's PPO, "
                "relu for its DQN), or set hidden_activation in [tl.NAME]"
            )
        if not request.categorical and request.hints.output_activation is None:
            raise InputError(
                "holds weights without the activation of their output; set output_activation in [tl.NAME]: "
                "tanh, or clip if the environment clips actions to [-1, 1], or pass --action categorical"
            )
        if request.categorical and actor.scores == Q_VALUES:
            _refuse_value_stream(path, names)
        return rebuilt


def _with_library_settings(path: Path, request: ActorRequest) -> ActorRequest:
    """Add to a request what a library's names of modules mean.

    In stable-baselines3's `model.policy.state_dict()` the hidden layers and the last one are in different modules, and
    the outputs are logits; CleanRL's `network` gives Q-values. A request for another file, or with a scope, stays as it
    is.
    """
    names = _HELPER.read(path).arrays
    if path.suffix == CLEANRL and all(name.startswith("network/") for name in names):
        return replace(request, hints=replace(request.hints, scores=request.hints.scores or Q_VALUES))
    hidden = [
        name.removesuffix("/weight")
        for name in sorted(names, key=natural)
        if re.fullmatch(r"mlp_extractor/policy_net/\d+/weight", name)
    ]
    if request.scope is not None or not hidden or "action_net/weight" not in names:
        return request
    order = request.hints.layer_order or (*hidden, "action_net")
    scores = request.hints.scores or PROBABILITIES
    return replace(request, scope=".", hints=replace(request.hints, layer_order=order, scores=scores))


def _refuse_value_stream(path: Path, layers: Sequence[str]) -> None:
    """Raise InputError if a Q-network has a value stream: then the outputs of these layers are advantages, not
    Q-values."""
    for name in _HELPER.read(path).arrays:
        parts = name.split("/")
        if parts[0] == layers[0].split("/")[0] and any(map(scopes.is_training, parts[1:-1])):
            raise InputError(
                f"{name} is the value stream of a dueling Q-network, which is not supported; train without dueling"
            )


def _check_names(layers: Sequence[str]) -> None:
    """Raise InputError unless every layer is in a module called actor or network, or in an unnamed sequence."""
    for layer in layers:
        parts = layer.split("/")
        if not any(scopes.is_actor(part) or part in NETWORKS for part in parts) and not all(
            part.isdigit() for part in parts
        ):
            raise InputError(
                f"the name of its layer {layer} does not show whether it is the actor's; pass the actor's "
                f"layers in the order of calls (--layers {','.join(layers)}), or their module (--scope {parts[0]})"
            )


def _check_modules(layers: Layers, modules: tuple[str, ...]) -> None:
    """Raise InputError if a sequence has other modules than linear layers with one activation between two of them."""
    parents = {layer.name.rpartition("/")[0] for layer in layers.dense}
    numbers = [layer.name.rpartition("/")[2] for layer in layers.dense]
    if len(parents) != 1 or not all(number.isdecimal() for number in numbers):
        return
    parent = parents.pop()
    prefix = f"{parent}/" if parent else ""
    names = [name.removeprefix(prefix) for name in modules if name.startswith(prefix)]
    layer_numbers = list(map(int, numbers))
    last = max([*(int(name) for name in names if name.isdecimal()), *layer_numbers])
    if layer_numbers != list(range(0, last + 1, 2)) or layer_numbers[-1] != last:
        raise InputError(
            f"{parent or 'its sequence'} has modules 0 to {last}, with weights in "
            f"{', '.join(numbers)}; the others are unknown; pass --actor mlp if one activation follows every layer but "
            "the last"
        )


SOURCE = TorchState()
