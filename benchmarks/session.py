"""Load and run a 64-64 actor through TensorFlow's C API and through its Python session.

    python -m benchmarks.session [--runs 5000]

Every measurement runs in a process of its own; the cases alternate.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks import harness
from benchmarks.harness import INPUTS, write_actors

C_API = """
import json, resource, sys, time
begin = time.perf_counter()
from pathlib import Path
from serving.embedded.tensorflow.session import Session
import numpy as np
make = lambda path: Session(path)
run = lambda session, x: session.run("serving_default", {"observation": x}, ["action"])
"""
PYTHON_SESSION = """
import json, resource, sys, time
begin = time.perf_counter()
from pathlib import Path
import numpy as np, tensorflow as tf
def make(path):
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=-1, intra_op_parallelism_threads=1)
    session = tf.compat.v1.Session(graph=tf.Graph(), config=config)
    with session.graph.as_default():
        tf.compat.v1.saved_model.load(session, ["serve"], str(path))
    return session.make_callable("action:0", ["observation:0"])
run = lambda call, x: call(x)
"""
MEASURE = """
path, inputs, runs = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
first = make(path)
ready = time.perf_counter() - begin
times = []
for _ in range(20):
    b = time.perf_counter(); loaded = make(path); times.append(time.perf_counter() - b)
x = np.zeros((1, inputs), np.float32)
[run(first, x) for _ in range(100)]
run_times = []
for _ in range(runs):
    b = time.perf_counter(); run(first, x); run_times.append(time.perf_counter() - b)
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
medians = 1e3 * float(np.median(times)), 1e6 * float(np.median(run_times))
print(json.dumps(["tensorflow" in sys.modules, ready, *medians, memory]))
"""


def read_figures(case: str, text: str) -> list[float]:
    """The figures of a process. Raises RuntimeError if it did not use the API of its case."""
    has_python_tensorflow, *figures = json.loads(text)
    if has_python_tensorflow != (case != "C API"):
        raise RuntimeError(f"{case}: TensorFlow's Python package imported: {has_python_tensorflow}")
    return [float(figure) for figure in figures]


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--runs", type=int, default=5000, help="runs of a model (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (default: %(default)s)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        write_actors(Path(name), 1)
        results: dict[str, list[list[float]]] = {"C API": [], "Python session": []}
        for _ in range(args.rounds):
            for case, code in zip(results, (C_API, PYTHON_SESSION), strict=True):
                command = [sys.executable, "-c", code + MEASURE, f"{name}/TL0000/1", str(INPUTS), str(args.runs)]
                output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                results[case].append(read_figures(case, output))
    print(f"{'':<16}{'first model ready':>20}{'load':>12}{'run p50':>12}{'memory':>12}")
    for case, rounds in results.items():
        ready, load, run, memory = np.median(rounds, axis=0)
        print(f"{case:<16}{ready:>18.2f} s{load:>9.1f} ms{run:>9.1f} us{memory:>9.0f} MB")


if __name__ == "__main__":
    main()
