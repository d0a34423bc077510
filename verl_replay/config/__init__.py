"""Hydra configuration: replay_trainer.yaml (verl's ppo_trainer and a `replay` node) and the presets in replay/."""
