"""The SUMO side: one link to the simulator, over TraCI or libsumo."""
