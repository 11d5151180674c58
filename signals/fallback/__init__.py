"""Control of a TL without its policy: control modes, fallback plan, max-pressure, greedy."""
