"""A city as its files describe it: city.toml and the street network.

The exporter, the server and the controller all read a city through this package, so
that they cannot disagree about a lane. It imports no other package of the project.
"""
