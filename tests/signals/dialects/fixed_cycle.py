"""The phases of a signal with two greens."""

from city.network import ProgramPhase

PHASES = [ProgramPhase(s, d, d, d) for s, d in (("GGrr", 20), ("yyrr", 3), ("rrGG", 10), ("rryy", 3))]
