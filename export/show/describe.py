"""`python -m export describe models/SA101/3`: a model's contract and signatures, for a person."""

import json
from collections.abc import Iterable
from pathlib import Path

from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from city.arguments import Parser
from export.saved_model import manifest, read
from protos import policy_pb2 as pb


def main(argv: list[str], prog: str = "python -m export describe") -> int:
    parser = Parser(prog=prog, description="Print a model's contract and signatures.")
    parser.add_argument("model", type=Path, help="a version's folder, such as models/SA101/3")
    print("\n".join(lines(parser.parse_args(argv).model)))
    return 0


def lines(folder: Path) -> Iterable[str]:
    """The description, line by line. Raises InputError where the folder holds no model of ours."""
    meta = read.meta_graph(folder)
    policy = read.policy(folder, meta)
    yield f"{policy.tl} {policy.origin.model_number}   {policy.origin.source_format}: {policy.origin.file_name}"
    origin = policy.origin
    yield f"  exported   {origin.exported_at} by {origin.exporter_version}, TensorFlow {origin.tensorflow_version}"
    if policy.missing:
        yield f"  contract   incomplete: lacks {', '.join(policy.missing)}"
    if policy.members:
        yield f"  fleet      {len(policy.members)} TLs; {policy.observation.size} numbers in, {policy.action.size} out"
        yield f"    {'TL':<12} {'version':>7}  {'observation':<14} {'action':<14} kind"
        for member in policy.members:
            columns = [
                f"{begin}:{begin + size}"
                for begin, size in (
                    (member.observation_begin, member.observation_size),
                    (member.action_begin, member.action_size),
                )
            ]
            kind = member.contract.action.kind
            yield f"    {member.tl:<12} {member.version:>7}  {columns[0]:<14} {columns[1]:<14} {kind}"
    else:
        yield from _one_tl(policy)
    yield from _signatures(meta)
    proof = folder / "assets.extra" / manifest.FILE_NAME
    try:
        parity = json.loads(proof.read_text(encoding="utf-8"))["parity"]
        told = (
            f"{int(parity['observations'])} observations, largest difference {float(parity['largest_absolute_difference']):.1e}"
        )
    except FileNotFoundError:
        return
    except (OSError, ValueError, LookupError, TypeError):
        told = f"unknown: {manifest.FILE_NAME} is damaged"
    yield f"  proved     {told}"


def _one_tl(policy: pb.PolicyContract) -> Iterable[str]:
    yield f"  dialect    {policy.observation.dialect or '-'} {policy.observation.state}".rstrip()
    unit = "choices" if policy.action.kind == "categorical" else "values"
    yield f"  action     {policy.action.kind}, {policy.action.size} {unit}"
    for signal in policy.signals:
        yield f"  signal     {signal.id}, program {signal.program_id!r}, {len(signal.phases)} phases"
        yield from (f"    phase    {k:>2} {phase.state} {phase.duration_s:g} s" for k, phase in enumerate(signal.phases))
    yield f"  features   {policy.observation.size}"
    for k, feature in enumerate(policy.observation.features):
        yield f"    {k:>6}   {feature.kind} {feature.lane_id or feature.signal_id}"
    times = policy.timing
    if not policy.missing:
        every = f"{times.control_cycle} cycles" if times.control_cycle else f"{times.decision_interval_s:g} s"
        yield f"  timing     decides every {every}"
        yield f"             yellow {times.yellow_s:g} s, all-red {times.all_red_s:g} s, min green {times.min_green_s:g} s"


def _signatures(meta: meta_graph_pb2.MetaGraphDef) -> Iterable[str]:
    for name, signature in sorted(meta.signature_def.items()):
        yield f"  signature  {name}"
        for word, infos in (("in", signature.inputs), ("out", signature.outputs)):
            for key, info in sorted(infos.items()):
                shape = [dim.size for dim in info.tensor_shape.dim]
                yield f"    {word:<8} {key} {types_pb2.DataType.Name(info.dtype).removeprefix('DT_').lower()} {shape}"
