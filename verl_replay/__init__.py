"""verl_replay: rollout-level, advantage-prioritized experience replay for GRPO on verl (arXiv:2606.04560)."""

__version__ = "0.1.0"
