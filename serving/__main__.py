"""`python -m serving`: the embedded server; `predict` and `status` are clients of a running one."""

import sys

from serving import commands


def main(argv: list[str] | None = None, prog: str = "python -m serving") -> int:
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] in commands.COMMANDS:
        return commands.main(argv, prog)
    if argv and argv[0] == "config":
        from serving.tf_serving.__main__ import main as write_config

        return write_config(argv[1:], f"{prog} config")
    from serving.embedded.__main__ import main as serve

    return serve(argv, prog)


if __name__ == "__main__":
    sys.exit(main())
