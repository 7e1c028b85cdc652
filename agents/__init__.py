"""Engines, token-exact conversations, episodes, the collector that runs groups, and the token ledger."""
