"""Training methods: one file and one class each, found by name."""
