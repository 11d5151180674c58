"""A street simulated in this process, for training and evaluation alike; and where many such simulations run."""
