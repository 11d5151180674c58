"""Training of a city's policies by PPO, with the controller's decision step, observations, actions and safety rules."""
