"""`python -m export inspect CHECKPOINT`: list a checkpoint's variables and their use in an export."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import tensorflow as tf

from city import names, program
from city.arguments import Parser
from city.errors import InputError, errors_about
from city.printable import printable
from export import quiet
from export.actors import Actor
from export.actors.architectures import ArchitectureHints
from export.checkpoints import regular_files, scopes, source_of
from export.checkpoints.checkpoint import Checkpoint, natural
from export.checkpoints.source import ActorRequest, RebuiltActor
from export.checkpoints.trained_saved_model import MANIFEST
from export.config import add_actor_flags, split_commas, split_layers
from export.locate import MAX_STATE_BYTES, Candidate, named_candidate
from export.rebuild import rebuild
from serving.contract import CATEGORICAL

MAX_NAME_CHARS = 200
"""Limit for the name of a variable, so that the columns stay aligned."""


def main(argv: list[str], prog: str = "python -m export inspect") -> int:
    return program.run(lambda: _inspect(argv, prog))


def parser(prog: str) -> Parser:
    """The flags of the command line."""
    parser = Parser(prog=prog, description="List a checkpoint's variables, and the actor that an export would use.")
    parser.add_argument(
        "checkpoint",
        type=Path,
        metavar="CHECKPOINT",
        help="an HDF5, .npz, .policy, .zip, .pt, .safetensors or .onnx file, an RLlib module_state file, a TensorFlow "
        "checkpoint's prefix (or its .index), or a SavedModel's folder",
    )
    parser.add_argument("--tl", default="", metavar="TL", help="the TL, if the checkpoint holds several actors")
    add_actor_flags(parser)
    return parser


def _inspect(argv: list[str], prog: str) -> int:
    args = parser(prog).parse_args(argv)
    target_tls = [names.canonical(name) for name in split_commas(args.target_tls or ())]
    tl = names.canonical(args.tl) if args.tl else ""
    quiet.first_session()
    candidate = _candidate(args.checkpoint)
    request = ActorRequest(
        tl,
        args.scope,
        target_tls,
        args.output_tensor,
        ArchitectureHints(
            args.actor,
            args.hidden_activation,
            hidden_sizes=candidate.hidden_sizes,
            layer_order=split_layers(args),
            scores=args.scores,
        ),
        args.action == CATEGORICAL,
        inputs=None,
        outputs=None,
        file_name=candidate.path.name,
    )
    source = source_of(candidate.format)
    with errors_about(candidate.path):
        checkpoint = source.open(candidate.path)
        for_any_tl = source.uses_for_any_tl(candidate.path)
    uses: Mapping[str, str] = {}
    summary: list[str] = []
    scope, error = "", None
    if for_any_tl is not None:
        uses, summary = for_any_tl
    else:
        try:
            rebuilt = rebuild(candidate, request)
        except InputError as reason:
            scope, error = request.scope or "", reason
        else:
            uses, scope, summary = _uses(rebuilt, checkpoint), rebuilt.scope, [_summary(rebuilt)]
    print("\n".join(map(printable, [*_variable_lines(checkpoint, uses, scope), *summary])))
    if error is not None:
        raise InputError(f"nothing would be exported: {error}")
    return 0


def _candidate(path: Path) -> Candidate:
    """The checkpoint of a path: one of its files, its prefix or its folder. Raises InputError."""
    folder = path.parent if path.name == "saved_model.pb" else path
    if (folder / MANIFEST).is_file():
        raise InputError(f"{folder}: is an exported model, not training output; use greenserve describe")
    if (folder / "saved_model.pb").is_file():
        path = folder / "saved_model.pb"
    elif path.is_dir():
        state = path / "checkpoint"
        if state.exists():
            regular_files.check(state, MAX_STATE_BYTES)  # before TensorFlow opens it
        latest = tf.train.latest_checkpoint(str(path))
        if latest is None:
            raise InputError(f"{path}: is a folder without a checkpoint state file; name a checkpoint in it")
        path = Path(latest)
    return named_candidate(path.with_suffix("") if path.suffix == ".meta" else path)


def _variable_lines(checkpoint: Checkpoint, uses: Mapping[str, str], scope: str) -> Iterable[str]:
    """A line for each variable: name, shape, dtype, and its use in an export. `uses`: by name."""
    stored = checkpoint.stored
    texts = {name: printable(name, MAX_NAME_CHARS) for name in sorted(stored, key=natural)}
    width = max(map(len, texts.values()), default=0)
    for name, text in texts.items():
        use = uses.get(name) or f"- ({scopes.unread_reason(name, scope)})"
        yield f"{text:<{width}}  {stored[name].shape!s:<14} {stored[name].dtype:<8} {use}"


def _uses(rebuilt: RebuiltActor, checkpoint: Checkpoint) -> dict[str, str]:
    """The use of each exported variable, such as `dense 0 kernel`, by its name in the checkpoint."""
    if not isinstance(rebuilt.actor, Actor):
        exported = {weight.stored_as for weight in rebuilt.actor.weights}
        if not exported <= set(checkpoint.stored):
            # a Keras model and its file name variables differently; compare their values
            values = {weight.values.tobytes() for weight in rebuilt.actor.weights}
            exported = {name for name in checkpoint.stored if checkpoint.value(name).tobytes() in values}
        return dict.fromkeys(exported, "weight of the graph")
    uses: dict[str, str] = {}
    count: Counter[str] = Counter()
    for step in rebuilt.actor.steps:
        for part in step.weights:
            for name in step.stored_names(part):
                uses.setdefault(name, f"{step.key.replace('_', ' ')} {count[step.key]} {part}")
        count[step.key] += 1
    return uses


def _summary(rebuilt: RebuiltActor) -> str:
    shape = " -> ".join(map(str, rebuilt.actor.widths))
    reference = f"; compared with {rebuilt.reference_model.description}" if rebuilt.reference_model else ""
    note = f"; {rebuilt.note}" if rebuilt.note else ""
    return f"would be exported as {rebuilt.actor.description}, {shape}{reference}{note}"
