"""`python -m controller`: control a city's signals until the simulation ends or SIGTERM."""

import logging
import sys

from city.errors import InputError


def main(argv: list[str] | None = None, prog: str = "python -m controller") -> int:
    try:
        # imported inside the try, so that an interrupt while modules load is reported in one line as well
        from controller.config import parse
        from controller.daemon import run
        from controller.release import Stop

        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
        stop = Stop()
        stop.install_handlers()
        config = parse(sys.argv[1:] if argv is None else argv, prog)
        logging.getLogger().setLevel(config.log_level.upper())
        return run(config, stop)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("error: interrupted before any signal was touched", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
