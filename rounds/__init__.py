"""Distributed training in rounds: groups of TLs learn in tasks of their own, beside the models of the round before."""
