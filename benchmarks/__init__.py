"""Benchmarks: each is a command that compares cases side by side in one run and prints their ratios.

python -m benchmarks.controller_import
python -m benchmarks.unary_predict
python -m benchmarks.control_loop
"""
