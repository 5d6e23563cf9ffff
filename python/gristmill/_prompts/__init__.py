"""Prompts for reinforcement learning and preference data: read into memory, and delivered by index."""
