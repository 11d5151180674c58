#!/bin/sh
# Train every TL of the sample city anew, into trained/: 300 simulated mornings, 2 per update, about 20 minutes on one core.
cd "$(dirname "$0")" && exec python -m training --episodes 300 --episodes-per-update 2 --held-out 4 --seed 1 --out trained \
    --format SA101=tf1 --format SA103=h5 --format SA104=tf1 --format SA106=h5 --format SA107=tf1 "$@"
