"""Structured configuration and the complete, runnable configuration files."""
