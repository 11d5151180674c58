"""Yellows and red clearances of streets, computed by hand."""

SPEEDS = ((0.0, 3), (13.89, 3), (14.02, 3), (14.03, 4), (16.8, 4), (16.81, 5), (19.58, 5), (19.59, 6), (36.0, 6))
"""(speed in m/s, yellow in s) on both sides of 50, 60 and 70 km/h, with the two decimals of networks."""

PATHS = ((13.9, 10.0, 1.0), (0.5, 2.0, 2.3), (20.0, 0.5, 51.2), (13.9, 30.0, 0.0), (0.0, 3.0, 0.0), (13.9, 0.0, 0.0))
"""(path in m, speed in m/s, red clearance in s); 0 m and 0 m/s are unknown."""
