"""Advantages, losses, selection, the learner, weight sync, checkpoints and the loop."""
