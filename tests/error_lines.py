"""What a program prints that refuses its input."""


def assert_refused(capsys, *parts):
    """Stderr has one error line with these parts, and nothing of Python's."""
    err = capsys.readouterr().err
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and "Traceback" not in err, err
    for part in parts:
        assert part in lines[0], lines[0]


def refused(capsys, code, *parts):
    """A program has ended with the exit code of wrong input, after one error line with these parts."""
    assert code == 2
    assert_refused(capsys, *parts)
