"""What a controller has done, for later: the record of its decisions, and exports of it."""
