"""A city as its files describe it: city.toml and the street network.

Imports nothing of ours; the exporter, the server and the controller read the
same city through this package, so that they can never disagree about a lane.
"""
