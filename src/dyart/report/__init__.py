"""Figures of what was measured."""
