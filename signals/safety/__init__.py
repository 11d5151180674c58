"""The safety rules, applied last and to everything that controls a signal, and the monitor that checks them."""
