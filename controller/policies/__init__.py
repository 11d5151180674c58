"""Where actions come from: the model server, its contracts and its fleets."""
