"""Configurations of trainings: one YAML file per row of the paper's tables, and per demonstration."""

from dyart.recipes.config import Config
from dyart.recipes.load import RecipeError, differences, dump, flat, make_method, names, read, resolve

__all__ = ["Config", "RecipeError", "differences", "dump", "flat", "make_method", "names", "read", "resolve"]
