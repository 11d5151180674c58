"""Evaluation of policies against baselines: paired simulations of the same demand, and their differences with
intervals."""
