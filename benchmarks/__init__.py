"""Benchmarks, one command each, such as `python -m benchmarks.unary_predict`; `make benchmarks` runs them.

The cases of a comparison take turns in one run; the benchmark prints their ratios.
"""

import os

# TensorFlow's start-up log would stand between the figures
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
