"""Distributed training in rounds: each group of TLs is trained in its own task, beside the models of the round
before."""
