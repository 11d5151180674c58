"""The SUMO side: one connection to the simulator, over TraCI or libsumo."""
