"""Training methods: one file and one class each, found by name; and what a method of your own is written with."""

from dyart.attacks.pgd import pgd
from dyart.boundary.model import Model, logits_of
from dyart.data.loader import Batch
from dyart.methods.at import AT
from dyart.methods.base import (
    Method,
    Metrics,
    accuracy,
    classification_loss,
    find,
    register,
    registered,
    start_key,
)
from dyart.methods.trades import TRADES

__all__ = [
    "AT",
    "TRADES",
    "Batch",
    "Method",
    "Metrics",
    "Model",
    "accuracy",
    "classification_loss",
    "find",
    "logits_of",
    "pgd",
    "register",
    "registered",
    "start_key",
]
