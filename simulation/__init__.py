"""Simulations of a street for training and evaluation, and the executors that run many of them."""
