"""Settings for all tests."""

from pathlib import Path

import pytest
import torch

# The networks here are tiny: on them a second thread only waits for the first.
torch.set_num_threads(1)

# Commands, pages, figures, other packages, several processes, large networks, kills: whole pieces of work, for
# `make whole`.
WHOLE = ("benchmarks", "cli", "docs", "fuzz", "integrations", "report")
WHOLE_FILES = (
    "test_all_train.py",
    "test_evaluate_memory.py",
    "test_evaluate_resume.py",
    "test_export.py",
    "test_faults.py",
    "test_monitor_huggingface.py",
    "test_monitor_lightning.py",
    "test_network_outputs.py",
    "test_out_of_memory.py",
    "test_published_whole.py",
    "test_ranks_training.py",
    "test_recipes_repeat.py",
    "test_recompilation.py",
    "test_streaming.py",
    "test_training_auxiliary.py",
    "test_training_killed.py",
    "test_training_resume.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what takes long by where it lies."""
    here = Path(__file__).parent
    for item in items:
        place = item.path.relative_to(here)
        if place.parts[0] in WHOLE or place.name in WHOLE_FILES:
            item.add_marker("whole")
