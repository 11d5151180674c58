"""Memory of the embedded server over 200 reloads and over 100,000 malformed requests.

    python -m benchmarks.server_memory [--reloads 200] [--requests 100000]

A reload replaces 20 models by 20 others (HandleReloadConfigRequest). Budget: flat from a
tenth of the requests on, when pools are warm.
"""

import random
import tempfile
from collections import Counter
from pathlib import Path

import grpc

from benchmarks import harness
from benchmarks.harness import memory_mb, server_process, serving_command, write_actors
from protos import model_server_config_pb2 as config_pb
from protos import predict_pb2 as pb

MODELS = 20


def reloads(channel: grpc.Channel, pid: int, folder: Path, count: int) -> None:
    """Replace MODELS models by MODELS others, `count` times, and print the memory."""
    call = channel.unary_unary("/tensorflow.serving.ModelService/HandleReloadConfigRequest")
    names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    before = 0.0
    for i in range(count):
        request = config_pb.ReloadConfigRequest()
        for name in names[i % 2 * MODELS : (i % 2 + 1) * MODELS]:
            request.config.model_config_list.config.add(
                name=name, base_path=str(folder / name), model_platform="tensorflow"
            )
        call(request.SerializeToString(), timeout=60)
        if i + 1 == count // 10:
            before = memory_mb(pid)
    after = memory_mb(pid)
    growth = f"{before:.0f} MB after {count // 10}, {after:.0f} MB after all ({after / before:.3f} x)"
    print(f"{count} reloads of {MODELS} models: {growth}")


def malformed(rng: random.Random, models: list[str]) -> bytes:
    """A PredictRequest with random faults in bytes, names, dtypes, shapes and contents."""
    if rng.random() < 0.1:
        return rng.randbytes(rng.randrange(1, 200))
    request = pb.PredictRequest()
    request.model_spec.name = rng.choice([*models, "unknown", "", "x" * 1000])
    request.model_spec.signature_name = rng.choice(["", "policy", f"none{rng.randrange(10**9)}"])
    if rng.random() < 0.2:
        request.model_spec.version.value = rng.choice([0, -1, 1, 2**62, rng.randrange(10**9)])
    if rng.random() < 0.1:
        request.model_spec.version_label = f"label{rng.randrange(10**9)}"
    for _ in range(rng.choice([0, 1, 1, 1, 2])):
        tensor = request.inputs[rng.choice(["observation", "rows", f"key{rng.randrange(10**9)}"])]
        tensor.dtype = rng.choice([1, 1, 1, 2, 3, 7, 9, 14, 19, 20, 21, 101, -1, 10**6])
        for _ in range(rng.choice([0, 1, 2, 2, 2, 3, 40])):
            tensor.tensor_shape.dim.add(size=rng.choice([-1, 0, 1, 2, 63, 64, 65, 2**31, 2**50, 2**63 - 1]))
        tensor.tensor_content = rng.randbytes(rng.choice([0, 1, 4, 255, 256, 257, 5000]))
        if rng.random() < 0.3:
            tensor.float_val.extend([rng.choice([float("nan"), float("inf"), 1.0])] * rng.randrange(100))
            tensor.string_val.append(rng.randbytes(10))
    if rng.random() < 0.1:
        request.output_filter.append(f"output{rng.randrange(10**9)}")
    return request.SerializeToString()


def fuzz(channel: grpc.Channel, pid: int, folder: Path, count: int) -> None:
    """Send `count` malformed requests, and print memory and status codes."""
    call = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
    rng = random.Random(1)
    models = sorted(path.name for path in folder.iterdir() if path.is_dir())[:MODELS]
    statuses: Counter[str] = Counter()
    before, finished = 0.0, 0
    while finished < count:
        calls = [call.future(malformed(rng, models), timeout=60) for _ in range(min(50, count - finished))]
        for response in calls:
            statuses[response.code().name] += 1
        finished += len(calls)
        if not before and finished >= count // 10:
            before = memory_mb(pid)
    after = memory_mb(pid)
    growth = f"{before:.0f} MB after {count // 10}, {after:.0f} MB after all ({after / before:.3f} x)"
    print(f"{count} malformed requests: {growth}")
    print("  " + ", ".join(f"{status} {times}" for status, times in statuses.most_common()))


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--reloads", type=int, default=200, help="model reloads (default: %(default)s)")
    parser.add_argument("--requests", type=int, default=100_000, help="Predict requests (default: %(default)s)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_actors(folder, 2 * MODELS)
        with server_process(*serving_command(folder)) as (address, pid), grpc.insecure_channel(address) as channel:
            fuzz(channel, pid, folder, args.requests)
            reloads(channel, pid, folder, args.reloads)


if __name__ == "__main__":
    main()
