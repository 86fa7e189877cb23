"""Training methods: one file and one class each, found by name; and what a method of your own is written with."""

from dyart.attacks.pgd import pgd
from dyart.boundary.model import Model, logits_of
from dyart.data.loader import Batch
from dyart.methods.at import AT
from dyart.methods.awp import with_awp
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
from dyart.methods.dyart import DyART
from dyart.methods.fat import FAT, FATTRADES
from dyart.methods.gairat import GAIRAT
from dyart.methods.mail import MAILAT, MAILTRADES
from dyart.methods.mart import MART
from dyart.methods.mma import MMA
from dyart.methods.natural import Natural
from dyart.methods.trades import TRADES

__all__ = [
    "AT",
    "FAT",
    "FATTRADES",
    "GAIRAT",
    "MAILAT",
    "MAILTRADES",
    "MART",
    "MMA",
    "TRADES",
    "Batch",
    "DyART",
    "Method",
    "Metrics",
    "Model",
    "Natural",
    "accuracy",
    "classification_loss",
    "find",
    "logits_of",
    "pgd",
    "register",
    "registered",
    "start_key",
    "with_awp",
]
