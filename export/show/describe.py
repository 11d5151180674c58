"""`python -m export describe models/SA101/3`: print a model's contract and signatures."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from city import config, network, program
from city.arguments import Parser
from city.errors import errors_about
from city.printable import printable
from export.actors.phase_competition import PhaseCompetition
from export.saved_model import manifest, read
from protos import policy_pb2 as pb
from signals import movement_names
from signals.movement_names import MovementNames
from signals.policy_signals import greens_of
from signals.safety.safety_times import describe_max_reds


def parser(prog: str) -> Parser:
    """The flags of the command line."""
    parser = Parser(prog=prog, description="Print a model's contract, signatures and parity check.")
    parser.add_argument("--city", type=Path, metavar="FILE", help="also name states by the movements of this city")
    parser.add_argument("model", type=Path, metavar="MODEL/VERSION", help="a version's folder, such as models/SA101/3")
    return parser


def main(argv: list[str], prog: str = "python -m export describe") -> int:
    def describe() -> int:
        args = parser(prog).parse_args(argv)
        city = config.load(args.city) if args.city is not None else None
        names = movement_names.of_city(city, network.of_city(city)) if city is not None else {}
        max_reds = city.safety.max_red_s_of_signal if city is not None else {}
        print("\n".join(map(printable, lines(args.model, names, max_reds))))
        return 0

    return program.run(describe)


def lines(
    folder: Path, names: Mapping[str, MovementNames] = {}, max_reds: Mapping[str, Mapping[str, float]] = {}
) -> Iterable[str]:
    """The description, line by line. Raises InputError if the folder is not an exported model.

    `names`, `max_reds`: by signal, the names of its movements, and the longest reds that city.toml states of them.
    """
    with errors_about(folder):
        meta = read.meta_graph(folder)
        contract = read.contract_of(meta)
    origin = contract.origin
    yield f"{contract.tl} {origin.model_number}   {origin.source_format}: {origin.file_name}"
    yield f"  exported   {origin.exported_at} by {origin.exporter_version}, TensorFlow {origin.tensorflow_version}"
    if contract.missing:
        yield f"  contract   incomplete: missing {', '.join(contract.missing)}"
    if contract.members:
        yield (
            f"  fleet      {len(contract.members)} TLs; {contract.observation.size} inputs, {contract.action.size} "
            "outputs"
        )
        yield f"    {'TL':<12} {'version':>7}  {'observation':<14} {'action':<14} {'scores':<14} kind"
        for member in contract.members:
            observation = f"{member.observation_begin}:{member.observation_begin + member.observation_size}"
            action = f"{member.action_begin}:{member.action_begin + member.action_size}"
            scores = f"{member.score_begin}:{member.score_begin + member.score_size}" if member.score_size else "-"
            kind = member.contract.action.kind
            yield f"    {member.tl:<12} {member.version:>7}  {observation:<14} {action:<14} {scores:<14} {kind}"
    else:
        yield from _from_manifest(folder, "actor", _actor)
        yield from _single_model(contract, names, max_reds)
    yield from _signatures(meta)
    yield from _from_manifest(folder, "parity", _parity)


def _from_manifest(folder: Path, key: str, text_of: Callable[[Any], str]) -> Iterable[str]:
    """A line on a part of the manifest; none if there is no manifest."""
    try:
        result = text_of(json.loads((folder / "assets.extra" / manifest.FILE_NAME).read_text(encoding="utf-8"))[key])
    except FileNotFoundError:
        return
    except OSError as error:
        result = f"unknown: {manifest.FILE_NAME} cannot be read ({error.strerror or error})"
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        result = f"unknown: {manifest.FILE_NAME} is damaged"
    yield f"  {key:<10} {result}"


def _actor(actor: Any) -> str:
    text = f"{actor['architecture']}, {int(actor['inputs'])} inputs, {int(actor['outputs'])} outputs"
    for step in actor.get("steps", ()):
        if PhaseCompetition.key in step:
            parts = step[PhaseCompetition.key]
            text += f"; {int(parts['greens'])} greens, {int(parts['lanes'])} lanes"
    return text


def _parity(parity: Any) -> str:
    difference = float(parity["largest_absolute_difference"])
    if not math.isfinite(difference):
        raise ValueError("the difference is not finite")
    return f"{int(parity['observations'])} observations, largest difference {difference:.1e}"


def _single_model(
    contract: pb.PolicyContract, names: Mapping[str, MovementNames], max_reds: Mapping[str, Mapping[str, float]]
) -> Iterable[str]:
    yield f"  dialect    {contract.observation.dialect or '-'} {contract.observation.state}".rstrip()
    unit = "choices" if contract.action.kind == "categorical" else "values"
    scores = f", {contract.action.scores}" if contract.action.scores else ""
    yield f"  action     {contract.action.kind}, {contract.action.size} {unit}{scores}"
    if contract.observation.padded_size:
        yield (
            f"  padding    a shared policy: zeros up to {contract.observation.padded_size} inputs, "
            f"choices beyond {contract.action.size} of {contract.action.padded_size} count as the first"
        )
    for signal in contract.signals:
        yield f"  signal     {signal.id}, program {signal.program_id!r}, {len(signal.phases)} phases"
        for k, phase in enumerate(signal.phases):
            name = f"  {names[signal.id].of_state(phase.state)}" if signal.id in names else ""
            yield f"    phase    {k:>2} {phase.state} {phase.duration_s:g} s{name}"
        if signal.id in max_reds:
            yield f"    max red  {describe_max_reds(max_reds[signal.id])}"
        yield from _greens_and_lanes(signal)
    yield f"  features   {contract.observation.size}"
    for k, feature in enumerate(contract.observation.features):
        yield f"    {k:>6}   {feature.kind} {feature.lane_id or feature.signal_id}"
    times = contract.timing
    if not contract.missing:
        interval = f"{times.control_cycle} cycles" if times.control_cycle else f"{times.decision_interval_s:g} s"
        yield f"  timing     decides every {interval}"
        yield (
            f"             yellow {times.yellow_s:g} s, all-red {times.all_red_s:g} s, min green {times.min_green_s:g} "
            "s"
        )
        if contract.origin.change_s:
            yield f"             changes of greens took up to {contract.origin.change_s:.3g} s in training"


def _greens_and_lanes(signal: pb.Signal) -> Iterable[str]:
    """The greens with their change times in s, and the lanes, of a signal of the street dialect."""
    greens = greens_of(signal) if signal.change_s or signal.approaches else []
    if len(signal.change_s) != len(greens) ** 2:
        yield f"    greens   unknown: {len(signal.change_s)} change times for {len(greens)} greens; export it again"
        greens = []
    for k, green in enumerate(greens):
        seconds = " ".join(f"{round(s, 2):g}" for s in signal.change_s[k * len(greens) : (k + 1) * len(greens)])
        yield f"    green    {k:>2} {green}, change to each green: {seconds} s"
    for approach in signal.approaches:
        links = ", ".join(map(str, approach.links)) or "none"
        if approach.walking_areas:
            yield f"    crossing {approach.lane_id}, links {links}; walking areas {', '.join(approach.walking_areas)}"
            continue
        lanes = f"upstream lanes {len(approach.upstream)} (with itself), exit lanes {len(approach.exits)}"
        yield f"    lane     {approach.lane_id}, links {links}; {lanes}"


def _signatures(meta: meta_graph_pb2.MetaGraphDef) -> Iterable[str]:
    for name, signature in sorted(meta.signature_def.items()):
        yield f"  signature  {name}"
        for direction, infos in (("in", signature.inputs), ("out", signature.outputs)):
            for key, info in sorted(infos.items()):
                shape = [dim.size for dim in info.tensor_shape.dim]
                dtype = types_pb2.DataType.Name(info.dtype).removeprefix("DT_").lower()
                yield f"    {direction:<8} {key} {dtype} {shape}"
