"""`python -m export`: export TLs one by one; a TL that fails does not stop the others.

`single_model.export` exports one TL; `describe`, `inspect` and `fleet` are
subcommands.
"""

import os
import sys
import time

# Hide TensorFlow's start-up log, so that the exporter's output stays readable.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from tqdm import tqdm

from city.errors import InputError
from city.interrupts import Interrupts
from export.config import Job, parse, prepare

MAX_NAMES = 20
"""TLs that the summary lists by name."""


def main(argv: list[str] | None = None, prog: str = "python -m export") -> int:
    """Run the exporter or a subcommand and return the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    interrupts = Interrupts()
    try:
        with interrupts:
            match arguments[:1]:
                case ["describe"]:
                    from export.show import describe

                    return describe.main(arguments[1:], f"{prog} describe")
                case ["inspect"]:
                    from export.show import inspect_checkpoint

                    return inspect_checkpoint.main(arguments[1:], f"{prog} inspect")
                case ["fleet"]:
                    from export.fleets import export_fleet

                    return export_fleet.main(arguments[1:], f"{prog} fleet")
            return run(prepare(parse(arguments, prog)), interrupts)
    except (InputError, KeyboardInterrupt) as error:
        # an interrupt that a library turned into another error may look like wrong input
        if interrupts.received or isinstance(error, KeyboardInterrupt):
            print("error: interrupted; versions published before are complete, and no draft remains", file=sys.stderr)
            return 1
        print(f"error: {error}", file=sys.stderr)
        return 2


def run(job: Job, interrupts: Interrupts) -> int:
    """Export every TL of the job and return the exit code: 0, 2 if an input was wrong, 1 if a model failed its verification.

    Raises KeyboardInterrupt.
    """
    from export import quiet, single_model
    from export.saved_model.verify import NotInferenceOnly, ParityError

    quiet.first_session()
    begin = time.perf_counter()
    input_errors: dict[str, str] = {}
    failures: dict[str, str] = {}
    # a progress bar only on a terminal
    with tqdm(job.tls, unit="TL", disable=len(job.tls) == 1 or not sys.stderr.isatty(), leave=False) as bar:
        for tl in bar:
            try:
                bar.write(single_model.export(job, tl), file=sys.stdout)
                sys.stdout.flush()
            except Exception as error:  # noqa: BLE001 - an unexpected error of a TL must not stop the others
                if interrupts.received:
                    raise KeyboardInterrupt from None  # a library may turn the interrupt into an error of its own
                if isinstance(error, InputError):
                    reason = input_errors[tl] = str(error)
                elif isinstance(error, (ParityError, NotInferenceOnly)):
                    reason = failures[tl] = f"{tl}: not published: {error}"
                else:
                    text = " ".join(str(error).split())[:300]
                    reason = failures[tl] = f"{tl}: not published: unexpected {type(error).__name__}: {text}"
                bar.write(f"error: {reason}", file=sys.stderr)
    if len(job.tls) > 1:
        _summary(job, {**input_errors, **failures}, time.perf_counter() - begin)
    return 2 if input_errors else 1 if failures else 0


def _summary(job: Job, failed: dict[str, str], took_s: float) -> None:
    done = len(job.tls) - len(failed)
    summary = f"{done} of {len(job.tls)} TLs exported in {took_s:.1f} s"
    if not failed:
        print(summary)
        return
    names = [tl for tl in job.tls if tl in failed]
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    print(f"{summary}; not: {', '.join(names[:MAX_NAMES])}{more}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
