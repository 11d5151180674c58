"""Random street networks with signal programs, and random demand on them, to train a policy that fits any street."""
