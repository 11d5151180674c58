"""Benchmarks: each a command that prints ratios taken side by side in one run.

python -m benchmarks.controller_import
python -m benchmarks.unary_predict
python -m benchmarks.control_loop
"""
