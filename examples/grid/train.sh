#!/bin/sh
# The command that made the committed checkpoints: 200 simulated mornings, about 12 minutes on one core.
cd "$(dirname "$0")" && exec python -m training --episodes 200 --seed 1 \
    --format SA101=tf1 --format SA103=h5 --format SA104=tf1 --format SA106=h5 --format SA107=tf1 "$@"
