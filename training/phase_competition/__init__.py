"""Training of one policy for any junction: the networks of `export.actors.phase_competition`, with shared weights."""
