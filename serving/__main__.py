"""`python -m serving`: the embedded server; `predict` and `status` ask one that runs."""

import sys

from serving import shell


def main(argv: list[str]) -> int:
    if argv and argv[0] in shell.COMMANDS:
        return shell.main(argv)
    from serving.embedded.__main__ import main as serve

    return serve(argv)


sys.exit(main(sys.argv[1:]))
