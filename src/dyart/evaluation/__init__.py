"""How robust a classifier is: accuracy against radius."""
