"""Training of a city's policies by PPO, on the controller's own decision step, observations, actions and safety rules."""
