"""`python -m export`: export TLs one by one; one that fails does not stop the others.

The way of one TL is `single_model.export`; `describe`, `inspect` and `fleet`
are commands of their own.
"""

import os
import signal
import sys
import threading
import time
from typing import NoReturn

# TensorFlow's own start-up messages would bury ours
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from tqdm import tqdm

from city.errors import InputError
from export.config import Job, parse, prepare


def main(argv: list[str] | None = None, prog: str = "python -m export") -> int:
    stopping = threading.Event()

    def interrupt(*_: object) -> NoReturn:
        stopping.set()
        raise KeyboardInterrupt

    # an end from outside must clean up like Ctrl-C; only a main thread may say so
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, interrupt)
    words = sys.argv[1:] if argv is None else argv
    try:
        match words[:1]:
            case ["describe"]:
                from export.show import describe

                return describe.main(words[1:], f"{prog} describe")
            case ["inspect"]:
                from export.show import inspect_checkpoint

                return inspect_checkpoint.main(words[1:], f"{prog} inspect")
            case ["fleet"]:
                from export.fleets import export_fleet

                return export_fleet.main(words[1:], f"{prog} fleet")
        return run(prepare(parse(words, prog)), stopping)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("error: interrupted; versions published before are complete, and no draft remains", file=sys.stderr)
        return 1


def run(job: Job, stopping: threading.Event) -> int:
    """Export every TL of the job; the exit code: 0, 2 where an input was wrong, 1 where a model was not proved.

    `stopping`: set where an end was asked for. Raises KeyboardInterrupt then.
    """
    from export import quiet, single_model
    from export.saved_model.verify import NotInferenceOnly, ParityError

    quiet.first_session()
    begin = time.perf_counter()
    wrong: dict[str, str] = {}
    unproved: dict[str, str] = {}
    # a bar where there is somebody to look at it; else the lines alone
    with tqdm(job.tls, unit="TL", disable=len(job.tls) == 1 or not sys.stderr.isatty(), leave=False) as bar:
        for tl in bar:
            try:
                bar.write(single_model.export(job, tl), file=sys.stdout)
                sys.stdout.flush()
            except InputError as error:
                wrong[tl] = str(error)
                bar.write(f"error: {error}", file=sys.stderr)
            except (ParityError, NotInferenceOnly) as error:
                unproved[tl] = f"{tl}: not published: {error}"
                bar.write(f"error: {unproved[tl]}", file=sys.stderr)
            except Exception as error:  # noqa: BLE001 - one TL's surprise must not stop the others
                if stopping.is_set():
                    raise KeyboardInterrupt from None  # C code has made an error of its own of it
                told = " ".join(str(error).split())[:300]
                unproved[tl] = f"{tl}: not published: unexpected {type(error).__name__}: {told}"
                bar.write(f"error: {unproved[tl]}", file=sys.stderr)
    if len(job.tls) > 1:
        _summary(job, {**wrong, **unproved}, time.perf_counter() - begin)
    return 2 if wrong else 1 if unproved else 0


NAMED = 20


def _summary(job: Job, failed: dict[str, str], took_s: float) -> None:
    done = len(job.tls) - len(failed)
    told = f"{done} of {len(job.tls)} TLs exported in {took_s:.1f} s"
    if not failed:
        print(told)
        return
    named = [tl for tl in job.tls if tl in failed]
    more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
    print(f"{told}; not: {', '.join(named[:NAMED])}{more}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
