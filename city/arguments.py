"""Command lines whose errors are one line, as every other wrong input's."""

import argparse
from typing import NoReturn

from city.errors import InputError


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises InputError instead of printing usage and ending the process."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} ({self.prog} --help)")
