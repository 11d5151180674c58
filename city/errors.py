"""The one error of wrong user input."""


class InputError(Exception):
    """The user's input is wrong: what, where, and how to mend it, in one line.

    Programs print it without a traceback and end with exit code 2.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))
