"""Decisions about groups: stop early, how many rollouts. Plain sequences in, decisions out."""
