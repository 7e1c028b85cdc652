"""Engines write tokens: prompt ids in, completion ids with their log-probabilities out."""
