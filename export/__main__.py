"""`python -m export`: export TLs one by one; a TL that fails does not stop the others.

`single_model.export` exports one TL; `describe`, `inspect` and `fleet` are
subcommands.
"""

import sys
import time
from typing import TYPE_CHECKING

from tqdm import tqdm

from city import names, program
from city.errors import InputError, ProgramFailed
from city.interrupts import InterruptContext
from city.printable import printable

if TYPE_CHECKING:
    from export.config import Job

SUBCOMMANDS = {
    "describe": "export.show.describe",
    "inspect": "export.show.inspect_checkpoint",
    "fleet": "export.fleets.export_fleet",
}
INTERRUPTED = "interrupted; versions published before are complete, and no draft remains"
MAX_NAMES = 20
"""TLs that the summary lists by name."""


def main(argv: list[str] | None = None, prog: str = "python -m export") -> int:
    """Run the exporter or a subcommand and return the exit code."""
    return program.run_subcommand(argv, prog, SUBCOMMANDS, _export)


def _export(arguments: list[str], prog: str) -> int:
    def export() -> int:
        # imported late: TensorFlow takes seconds
        from export.config import parse, prepare

        with InterruptContext() as interrupts:
            return run(prepare(parse(arguments, prog)), interrupts)

    return program.run(export, lambda: INTERRUPTED)


def run(job: "Job", interrupts: InterruptContext) -> int:
    """Export every TL of the job, and report the failures.

    Returns the exit code: 0, 2 if an input was wrong, 1 if a model failed its
    verification. Raises KeyboardInterrupt.
    """
    from export import quiet, single_model

    quiet.first_session()
    begin = time.perf_counter()
    failed: dict[str, int] = {}  # TL -> exit code
    # a progress bar only on a terminal
    with tqdm(job.tls, unit="TL", disable=len(job.tls) == 1 or not sys.stderr.isatty(), leave=False) as bar:
        for tl in bar:
            try:
                for line in single_model.export(job, tl).splitlines():
                    bar.write(printable(line), file=sys.stdout)
                sys.stdout.flush()
            except Exception as error:  # noqa: BLE001 - an unexpected error of a TL must not stop the others
                if interrupts.received:
                    raise KeyboardInterrupt from None  # a library may turn the interrupt into an error of its own
                failed[tl] = 2 if isinstance(error, InputError) else 1
                bar.write(f"error: {printable(_reason(tl, error))}", file=sys.stderr)
    if len(job.tls) > 1:
        summary = f"{len(job.tls) - len(failed)} of {len(job.tls)} TLs exported in {time.perf_counter() - begin:.1f} s"
        if failed:
            print(f"{summary}; failed: {names.listed(list(failed), MAX_NAMES)}", file=sys.stderr)
        else:
            print(summary)
    return max(failed.values(), default=0)


def _reason(tl: str, error: Exception) -> str:
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, ProgramFailed):
        return f"{tl}: not published: {error}"
    return f"{tl}: not published: unexpected {type(error).__name__}: {' '.join(str(error).split())[:300]}"


if __name__ == "__main__":
    sys.exit(main())
