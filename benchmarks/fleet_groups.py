"""Cost of a fleet's groups against padding: fleets of mixed shapes under several limits of padding, side by side.

    python -m benchmarks.fleet_groups

Runs a session as the embedded server does, one observation per call, without a network.
The limit in `export/fleets/fleet_graph.py` comes from this table.
"""

import contextlib
import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from benchmarks.random_models import random_actor
from export.fleets import fleet_graph
from export.fleets.fleet_graph import FleetActor
from export.saved_model import write
from protos import policy_pb2 as pb

tf.get_logger().setLevel("ERROR")
LIMITS = (0, 50_000, 200_000, 500_000, 1_000_000, 2_000_000, 10**12)


def milliseconds(members: list[FleetActor], limit: int) -> tuple[int, float]:
    """(groups under a limit of padding in bytes, p50 of a run in ms)."""
    if not hasattr(fleet_graph, "MAX_PADDING_BYTES"):
        raise RuntimeError("fleet_graph has no limit MAX_PADDING_BYTES to vary")
    fleet_graph.MAX_PADDING_BYTES = limit
    groups = fleet_graph.group_members(members)
    size = sum(member.actor.inputs for group in groups for member in group.members)
    options = config_pb2.ConfigProto(inter_op_parallelism_threads=-1, intra_op_parallelism_threads=1)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "model"
        folder.mkdir()
        graph = write.assemble(size, lambda x, v: fleet_graph.build(groups, x, v))
        write.write_model(folder, graph, pb.PolicyContract(tl="city"), fleet_graph.weights(groups))
        stack.enter_context(tf.Graph().as_default())
        session = stack.enter_context(tf.compat.v1.Session(config=options))
        signature = tf.compat.v1.saved_model.load(session, ["serve"], str(folder)).signature_def["serving_default"]
        run = session.make_callable(signature.outputs["action"].name, [signature.inputs["observation"].name])
        x = np.random.default_rng(0).random((1, size)).astype(np.float32)
        times_s = []
        for _ in range(170):
            begin = time.perf_counter()
            run(x)
            times_s.append(time.perf_counter() - begin)
    return len(groups), 1000 * float(np.median(times_s[20:]))


def main() -> None:
    print(
        f"{'TLs':>5} {'shapes':>7} "
        + "".join(f"{limit:>16.0e}" for limit in LIMITS)
        + "   max bytes of padding per group"
    )
    for tls, shapes in ((100, 10), (100, 50), (1000, 10), (1000, 50), (1000, 100)):
        members = [FleetActor(f"TL{k}", random_actor(20 + k % shapes, 1 + k % 4, k, False), False) for k in range(tls)]
        cells = [
            f"{groups:>4} {p50_ms:>8.2f} ms" for groups, p50_ms in (milliseconds(members, limit) for limit in LIMITS)
        ]
        print(f"{tls:>5} {shapes:>7} " + "".join(cells), flush=True)


if __name__ == "__main__":
    main()
