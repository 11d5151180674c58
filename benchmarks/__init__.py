"""Benchmarks, one command each, such as `python -m benchmarks.unary_predict`; `make benchmarks` runs them.

Cases that are compared take turns in one run, and their ratios are printed.
"""
