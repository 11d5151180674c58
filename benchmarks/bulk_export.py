"""Export of 1,000 TLs in one call: time, and memory on the way.

    python -m benchmarks.bulk_export [--tls 1000] [--formats npz h5 checkpoint meta session]

64-64 actors in the formats of trainers: NumPy, Keras, tf.train.Checkpoint, TF1 Saver
with its training graph (`meta`), and all agents of one TF1 session in one checkpoint
(`session`, 100 TLs). Budget: 60 s for 1,000, memory flat.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import INPUTS, OUTPUTS, memory_mb
from benchmarks.random_models import HIDDEN, write_checkpoint


def write(kind: str, folder: str, tls: int) -> None:
    """Write checkpoints of one format; run in a process of its own."""
    target = Path(folder)
    names = [f"TL{k:04d}" for k in range(tls)]
    if kind == "npz":
        for k, tl in enumerate(names):
            write_checkpoint(target / f"{tl}_trial_1.npz", INPUTS, OUTPUTS, k)
        return
    import tensorflow as tf

    if kind in ("meta", "session"):
        for group in [names] if kind == "session" else [[tl] for tl in names]:
            _tf1(tf.compat.v1, target / ("agents-trial_1" if kind == "session" else f"{group[0]}_trial_1"), group)
        return
    layers = [tf.keras.layers.Dense(n, "relu") for n in HIDDEN]
    model = tf.keras.Sequential([tf.keras.Input((INPUTS,)), *layers, tf.keras.layers.Dense(OUTPUTS, "tanh")])
    for tl in names:
        if kind == "h5":
            model.save_weights(target / f"{tl}_trial_1.weights.h5")
        else:
            tf.train.Checkpoint(actor=model, step=tf.Variable(1)).write(str(target / f"{tl}-1"))


def _tf1(v1: Any, prefix: Path, scopes: list[str]) -> None:
    """Write agents of one TF1 session, with loss, optimizer slots and sampling."""
    with v1.Graph().as_default(), v1.Session() as session:
        losses = []
        for scope in scopes:
            x = observation = v1.placeholder(v1.float32, [None, INPUTS], f"{scope}_observation")
            with v1.variable_scope(f"Actor_{scope}"):
                for k, units in enumerate((*HIDDEN, OUTPUTS)):
                    kernel = v1.get_variable(f"dense_{k}/kernel" if k else "dense/kernel", [x.shape[1], units])
                    bias = v1.get_variable(f"dense_{k}/bias" if k else "dense/bias", [units])
                    x = v1.nn.relu(v1.matmul(x, kernel) + bias) if k < 2 else v1.tanh(v1.matmul(x, kernel) + bias)
            sampled = x + v1.random_normal(v1.shape(x))
            losses.append(v1.reduce_mean((sampled - observation[:, :OUTPUTS]) ** 2))
        v1.train.AdagradOptimizer(0.1).minimize(v1.add_n(losses))
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(prefix), write_state=False)


def measure(kind: str, tls: int) -> None:
    """Export TLs from checkpoints of one format, and print time, memory and size."""
    with tempfile.TemporaryDirectory() as name:
        checkpoints = Path(name) / "checkpoints"
        checkpoints.mkdir()
        harness.in_process("benchmarks.bulk_export", "write", kind, str(checkpoints), tls)
        command = [
            sys.executable,
            "-m",
            "export",
            "--model-path",
            str(checkpoints),
            "--models-dir",
            str(Path(name) / "models"),
        ]
        targets = ",".join(f"TL{k:04d}" for k in range(tls))
        begin = time.perf_counter()
        process = subprocess.Popen(
            [*command, "--tl", targets], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        memory: dict[int, float] = {}
        last_line = ""
        for count, line in enumerate(process.stdout, 1):
            last_line = line
            if count in (tls // 10, tls // 2, tls):
                memory[count] = memory_mb(process.pid)
        assert process.wait() == 0, process.stderr.read() if process.stderr else ""
        export_s = time.perf_counter() - begin
        usage = ", ".join(f"{mb:.0f} MB after {count}" for count, mb in memory.items())
        size = sum(path.stat().st_size for path in (Path(name) / "models").rglob("*") if path.is_file()) / 1e6
        print(
            f"{kind:<11}{tls:>6} TLs {export_s:>7.1f} s {1000 * export_s / tls:>7.1f} ms each   {usage}   {size:.0f} "
            "MB written",
            flush=True,
        )
        assert last_line.startswith(f"{tls} of {tls}"), last_line


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--tls", type=int, default=1000, help="TLs to export (default: %(default)s)")
    kinds = ["npz", "h5", "checkpoint", "meta", "session"]
    parser.add_argument(
        "--formats", nargs="+", default=kinds, choices=kinds, help="checkpoint formats (default: %(default)s)"
    )
    args = parser.parse_args()
    for kind in args.formats:
        measure(kind, min(args.tls, 100) if kind == "session" else args.tls)


if __name__ == "__main__":
    main()
