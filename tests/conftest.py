"""Settings for all tests."""

import torch

# The networks here are tiny: on them a second thread only waits for the first.
torch.set_num_threads(1)
