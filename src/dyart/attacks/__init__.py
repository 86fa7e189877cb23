"""Attacks of a fixed radius: PGD and its relatives."""
