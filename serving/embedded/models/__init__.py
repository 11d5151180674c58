"""Model configs, versions on disk, the version policy, and the manager that loads and unloads versions."""
