"""Import time and memory of the controller, against importing tensorflow-serving-api.

    python -m benchmarks.controller_import [--rounds 5]

Each import in a new process, alternating; the minimum of all rounds. Budgets: 0.5 s and
90 MB.
"""

import subprocess
import sys

from benchmarks import harness

TENSORFLOW = "tensorflow-serving-api"
CASES = {
    "controller": "import controller.__main__, controller.daemon",
    TENSORFLOW: "import tensorflow_serving.apis.prediction_service_pb2_grpc",
}
MEASURE = """
import time
begin = time.perf_counter()
{0}
import_s = time.perf_counter() - begin
resident = next(line for line in open("/proc/self/status") if line.startswith("VmRSS"))
import sys
from benchmarks import harness
print(import_s, int(resident.split()[1]) / 1024, "tensorflow" in sys.modules)
"""


def measure(code: str) -> tuple[float, float]:
    """(import time in s, resident memory in MB) in a process of its own."""
    process = subprocess.run([sys.executable, "-c", MEASURE.format(code)], capture_output=True, text=True, check=True)
    seconds, megabytes, has_tensorflow = process.stdout.split()
    if (has_tensorflow == "True") != (code == CASES[TENSORFLOW]):
        raise RuntimeError(f"{code!r}: TensorFlow imported: {has_tensorflow}")
    return float(seconds), float(megabytes)


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default: %(default)s)")
    rounds = parser.parse_args().rounds
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in CASES}
    for _ in range(rounds):
        for name, code in CASES.items():
            results[name].append(measure(code))
    best = {name: tuple(map(min, zip(*values, strict=True))) for name, values in results.items()}
    controller, reference = best.values()
    print(f"{'import':<24}{'time':>10}{'memory':>12}")
    for name, (seconds, megabytes) in best.items():
        print(f"{name:<24}{seconds:>8.2f} s{megabytes:>9.0f} MB")
    print(f"{'ratio':<24}{controller[0] / reference[0]:>10.2f}{controller[1] / reference[1]:>12.2f}")


if __name__ == "__main__":
    main()
