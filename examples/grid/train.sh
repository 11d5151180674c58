#!/bin/sh
# The command that made the committed checkpoints: 160 simulated mornings, about 12 minutes on one core.
cd "$(dirname "$0")/.." && exec python train_ppo.py --city grid/city.toml --target-tl all --episodes 160 --seed 1 --trial 1 \
    --format SA101=tf1 --format SA102=tf2 --format SA103=h5 --format SA104=tf1 --format SA105=tf2 --format SA106=h5 \
    --format SA107=tf1 --format SA108=tf2 --out grid/checkpoints "$@"
