"""Networks: those of the paper, two small ones, and anybody's own by ``package.module:factory``."""

from dyart.models.described import Description, load, save
from dyart.models.layers import InputNormalization
from dyart.models.registry import NAMES, build

__all__ = ["NAMES", "Description", "InputNormalization", "build", "load", "save"]
