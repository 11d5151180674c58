"""`python -m controller`: control a city's signals until the simulation ends or SIGTERM."""

import logging
import sys

from city import logs, program


def main(argv: list[str] | None = None, prog: str = "python -m controller") -> int:
    def control() -> int:
        from controller.config import parse
        from controller.daemon import run
        from controller.release import Stop

        arguments = sys.argv[1:] if argv is None else argv
        logs.configure(arguments, "controller")
        stop = Stop()
        stop.install_handlers()
        config = parse(arguments, prog)
        logging.getLogger().setLevel(config.log_level.upper())
        return run(config, stop)

    return program.run(control, lambda: "interrupted before any signal was touched", takes_signals=False)


if __name__ == "__main__":
    sys.exit(main())
