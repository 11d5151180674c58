"""Checkpoints of trained actors, in the formats that the exporter reads, and the state from which a training resumes.

Everything is written to a temporary file or folder, then renamed, so that a full disk or a
kill leaves the last whole one.
"""

import json
import os
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from city.errors import InputError
from protos import policy_pb2 as pb
from training.actor_critics import Floats

Layers = Sequence[tuple[Floats, Floats]]


def write(kind: str, folder: Path, contract: pb.PolicyContract, layers: Layers, number: int) -> Path:
    """Write an actor ; return the path that the exporter takes. Raises InputError if it cannot be written.

    Args:
        kind: h5, tf1 or tf2.
        folder: of the checkpoints of all TLs.
        contract: of the TL.
        layers: (kernel, bias) of the actor.
        number: the model number.
    """
    scratch = folder / f".{contract.tl}_{number}.partial"
    try:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        name = _WRITERS[kind](scratch, contract, layers, number)
        for part in sorted(scratch.iterdir()):
            target = folder / part.name
            if target.is_dir():
                # a folder that is not empty cannot be replaced by a rename
                target.rename(scratch / f"{part.name}.old")
            part.replace(target)
    except (OSError, tf.errors.OpError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{folder}: the checkpoint of {contract.tl} cannot be written: {reason}; free some space") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder / name


def _actor(layers: Layers) -> tf.keras.Model:
    stack = [tf.keras.Input((layers[0][0].shape[0],))]
    stack += [tf.keras.layers.Dense(kernel.shape[1], "relu") for kernel, _ in layers[:-1]]
    stack.append(tf.keras.layers.Dense(layers[-1][0].shape[1]))
    model = tf.keras.Sequential(stack, name="actor")
    model.set_weights([array for layer in layers for array in layer])
    return model


def _h5(folder: Path, contract: pb.PolicyContract, layers: Layers, number: int) -> str:
    """Keras weights; the file name holds the settings."""
    sizes = ", ".join(str(kernel.shape[1]) for kernel, _ in layers[:-1])
    settings = f"netSz_({sizes})"
    if contract.observation.dialect == "sappo":
        settings = f"state_{contract.observation.state}_action_{contract.action.kind}_{settings}"
    trainer = "SAPPO" if contract.observation.dialect == "sappo" else "PPO"
    name = f"{trainer}-_{settings}-trial_{number}_{contract.tl}_actor.weights.h5"
    _actor(layers).save_weights(folder / name)
    return name


def _tf1(folder: Path, contract: pb.PolicyContract, layers: Layers, number: int) -> str:
    """Variables by name, with the TF1 Saver."""
    name = f"PPO-_{contract.tl}_trial_{number}"
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for k, layer in enumerate(layers):
            for part, array in zip(("kernel", "bias"), layer, strict=True):
                tf.compat.v1.get_variable(f"actor/{'dense' if k == 0 else f'dense_{k}'}/{part}", initializer=array)
        tf.compat.v1.train.get_or_create_global_step()
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver().save(session, str(folder / name), write_state=False)
    return name


def _tf2(folder: Path, contract: pb.PolicyContract, layers: Layers, number: int) -> str:
    """A tf.train.Checkpoint in a folder of its own, as CheckpointManager names it."""
    checkpoint = tf.train.Checkpoint(step=tf.Variable(number), actor=_actor(layers))
    part = folder / contract.tl
    part.mkdir()
    tf.train.CheckpointManager(checkpoint, str(part), max_to_keep=1, checkpoint_name=contract.tl).save(checkpoint_number=number)
    return contract.tl


_WRITERS = {"h5": _h5, "tf1": _tf1, "tf2": _tf2}


class Progress:
    """The state from which an interrupted training resumes to the same numbers: one file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def save(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write JSON values and arrays. Raises InputError."""
        partial = self.path.with_suffix(".partial")
        try:
            with partial.open("wb") as file:
                np.savez(file, **{"values": np.array(json.dumps(values)), **arrays})  # type: ignore[arg-type]
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self.path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise InputError(f"{self.path}: the training's state cannot be written: {error.strerror or error}") from None

    def load(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]] | None:
        """(values, arrays); None: there is no file. Raises InputError."""
        if not self.path.exists():
            return None
        try:
            with np.load(self.path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            return json.loads(str(arrays.pop("values"))), arrays
        except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise InputError(f"{self.path}: is not the state of a training ({error}); start without --resume") from None
