"""The written model: graph, variables, warm-up records, verification, manifest, publishing."""
