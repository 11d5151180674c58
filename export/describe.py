"""`python -m export describe models/SA101/3`: a model's contract and signatures, for a person."""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path

from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from city.errors import InputError
from export import certificate
from protos import policy_pb2 as pb
from serving.contract import ContractError, parse


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m export describe", description="Print a model's contract and signatures.")
    parser.add_argument("model", type=Path, help="a version's folder, such as models/SA101/3")
    print("\n".join(lines(parser.parse_args(argv).model)))
    return 0


def lines(folder: Path) -> Iterable[str]:
    """The description, line by line. Raises InputError where the folder holds no model of ours."""
    try:
        model = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
        meta = model.meta_graphs[0]
    except (OSError, IndexError, ValueError) as error:
        raise InputError(f"{folder}: holds no SavedModel that can be read: {error}") from None
    policy = _policy(folder, meta)
    yield f"{policy.tl} {policy.origin.model_number}   {policy.origin.source_format}: {policy.origin.file_name}"
    origin = policy.origin
    yield f"  exported   {origin.exported_at} by {origin.exporter_version}, TensorFlow {origin.tensorflow_version}"
    if policy.missing:
        yield f"  contract   incomplete: lacks {', '.join(policy.missing)}"
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
    for name, signature in sorted(meta.signature_def.items()):
        yield f"  signature  {name}"
        for word, infos in (("in", signature.inputs), ("out", signature.outputs)):
            for key, info in sorted(infos.items()):
                shape = [dim.size for dim in info.tensor_shape.dim]
                yield f"    {word:<8} {key} {types_pb2.DataType.Name(info.dtype).removeprefix('DT_').lower()} {shape}"
    proof = folder / "assets.extra" / certificate.NAME
    if proof.is_file():
        parity = json.loads(proof.read_text(encoding="utf-8"))["parity"]
        difference = parity["largest_absolute_difference"]
        yield f"  proved     {parity['observations']} observations, largest difference {difference:.1e}"


def _policy(folder: Path, meta: meta_graph_pb2.MetaGraphDef) -> pb.Policy:
    for node in meta.graph_def.node:
        if node.name == "contract":
            try:
                return parse(node.attr["value"].tensor.string_val[0])
            except (ContractError, IndexError) as error:
                raise InputError(f"{folder}: {error}") from None
    raise InputError(f"{folder}: is a SavedModel without a policy contract")
