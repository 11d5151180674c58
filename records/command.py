"""`greenserve record`: read, draw, export and repair the records of `greenserve control --record`."""

from city.arguments import run_subcommand

SUBCOMMANDS = {
    "info": ("records.info", "show what a record has, and what is missing"),
    "show": ("records.show", "show each decision of a time as a sentence"),
    "export": ("records.export", "write tables as CSV or Parquet, or files for ATSPM tools"),
    "report": ("records.report", "write a page with ATSPM pictures"),
    "certify": ("records.certify", "write what an auditor keeps of a run, or compare a record with it"),
    "repair": ("records.repair", "write a whole file from a damaged one"),
}
"""By name: the module, and the summary."""


def main(argv: list[str], prog: str = "greenserve record") -> int:
    """Run a subcommand and return its exit code."""
    about = "Read, draw, export, certify and repair the records of greenserve control --record."
    return run_subcommand(argv, prog, about, SUBCOMMANDS)
