"""Evaluation of policies against baselines: paired simulations of the same demand, and what their difference is worth."""
