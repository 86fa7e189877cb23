"""For Hugging Face: the monitor's callback. Its classifiers need nothing: every function takes their ``.logits``."""

from dyart.dynamics.huggingface import MonitorCallback

__all__ = ["MonitorCallback"]
