"""Mixtures of several sources."""
