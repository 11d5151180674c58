"""The source of actions: the model server, its contracts and its fleets."""
