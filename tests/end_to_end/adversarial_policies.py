"""Policies that ask for what no trained policy should."""

import numpy as np

from signals.policy import Answer


class AdversarialPolicies:
    def __init__(self, kind, contracts):
        self.kind, self.sizes = kind, {c.tl: c.action.size for c in contracts}
        self.rng, self.requests = np.random.default_rng(1), 0

    def ask(self, observations, observed_s=None):
        self.requests += 1
        return {tl: self.answer(self.sizes[tl]) for tl in observations}

    def answer(self, size):
        match self.kind:
            case "random":
                return Answer(self.rng.integers(size, size=1))
            case "constant":
                return Answer(np.array([size - 1]))
            case "flipping":
                return Answer(np.array([self.requests % size]))
            case "nonsense":
                values = [np.nan, np.inf, -1.0, float(size), 0.5, 1e30]
                return Answer(self.rng.choice([np.array([value]) for value in [*values, 0.0, 1.0]] + [np.zeros(7)[:1]]))
            case "intermittent" | "max-pressure":
                return (
                    Answer(np.array([self.requests % size])) if self.requests % 40 < 15 else TimeoutError("no answer")
                )
