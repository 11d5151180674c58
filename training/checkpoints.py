"""Checkpoints of trained actors, in the formats that the exporter reads.

Each checkpoint is written to a temporary folder, then its files are renamed, so that a full disk
or a kill leaves the last complete checkpoint.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from city.errors import InputError
from protos import policy_pb2 as pb
from training.transitions import Float32s

Layers = Sequence[tuple[Float32s, Float32s]]


def write(kind: str, folder: Path, contract: pb.PolicyContract, layers: Layers, number: int) -> Path:
    """Write an actor's checkpoint, keeping those of other model numbers; return the path for the exporter.

    Args:
        kind: h5, tf1 or tf2.
        folder: folder of the checkpoints of all TLs.
        contract: the TL's contract.
        layers: (kernel, bias) of each layer of the actor.
        number: the model number.

    Raises:
        InputError: the checkpoint cannot be written.
    """
    scratch = folder / f".{contract.tl}_{number}.partial"
    try:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        name = _WRITERS[kind](scratch, contract, layers, number)
        if kind == "tf2":
            _list_older_numbers(scratch / contract.tl, folder / contract.tl)
        _move(scratch, folder)
    except (OSError, tf.errors.OpError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"{folder}: the checkpoint of {contract.tl} cannot be written: {reason}; make room there, or pass another "
            "--out"
        ) from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder / name


def _move(source: Path, target: Path) -> None:
    """Move a folder's files, replacing files of the same names; `checkpoint`, which names the others, comes last."""
    target.mkdir(exist_ok=True)
    for part in sorted(source.iterdir(), key=lambda path: (path.name == "checkpoint", path.name)):
        if part.is_dir():
            _move(part, target / part.name)
        else:
            part.replace(target / part.name)


def _actor(layers: Layers) -> tf.keras.Model:
    """A model that holds the weights; none of the formats holds activations."""
    stack = [tf.keras.Input((layers[0][0].shape[0],))]
    stack += [tf.keras.layers.Dense(kernel.shape[1]) for kernel, _ in layers[:-1]]
    stack.append(tf.keras.layers.Dense(layers[-1][0].shape[1]))
    model = tf.keras.Sequential(stack, name="actor")
    model.set_weights([array for layer in layers for array in layer])
    return model


def _h5(folder: Path, contract: pb.PolicyContract, layers: Layers, number: int) -> str:
    """Write Keras weights; the file name contains the settings."""
    sizes = ", ".join(str(kernel.shape[1]) for kernel, _ in layers[:-1])
    settings = f"netSz_({sizes})"
    if contract.observation.dialect == "sappo":
        settings = f"state_{contract.observation.state}_action_{contract.action.kind}_{settings}"
    trainer = "SAPPO" if contract.observation.dialect == "sappo" else "PPO"
    name = f"{trainer}-_{settings}-trial_{number}_{contract.tl}_actor.weights.h5"
    _actor(layers).save_weights(folder / name)
    return name


def _tf1(folder: Path, contract: pb.PolicyContract, layers: Layers, number: int) -> str:
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
    """Write a tf.train.Checkpoint with a CheckpointManager, in a folder named like the TL."""
    checkpoint = tf.train.Checkpoint(step=tf.Variable(number), actor=_actor(layers))
    part = folder / contract.tl
    part.mkdir()
    tf.train.CheckpointManager(checkpoint, str(part), max_to_keep=1, checkpoint_name=contract.tl).save(
        checkpoint_number=number
    )
    return contract.tl


def _list_older_numbers(new: Path, target: Path) -> None:
    """Rewrite a new checkpoint's `checkpoint` file so that it also lists the older checkpoints of its folder."""
    (newest,) = (path.stem for path in new.glob("*.index"))
    older = sorted(path.stem for path in target.glob("*.index") if path.stem != newest)
    # an absolute folder: TensorFlow then writes the names as they are
    tf.compat.v1.train.update_checkpoint_state(str(new.absolute()), newest, [*older, newest])


_WRITERS = {"h5": _h5, "tf1": _tf1, "tf2": _tf2}
