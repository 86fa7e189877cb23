"""Examples stream: memory does not grow with their number."""

import subprocess
import sys

# Every example has 0.2 MB in each of two layers: 500 of them at once would need 180 MB more than 50.
SCRIPT = """
import resource
import sys
import numpy as np
import torch
from torch import nn
import dyart
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(1, 64, 1), nn.ReLU(), nn.AvgPool2d(7), nn.Flatten(), nn.Linear(1024, 10)).eval()
images = np.random.RandomState(0).randint(0, 256, (500, 1, 28, 28), dtype=np.uint8)
with torch.no_grad():
    labels = torch.cat([model(torch.from_numpy(part) / 255.0).argmax(1) for part in np.split(images, 10)]).numpy()
for count in (50, 500):
    options = dict(radii=[0.001, 0.01], batch_size=int(sys.argv[1]), preflight=False, steps=2, restarts=1)
    result = dyart.evaluate(model, images[:count], labels[:count], attack="margins", **options)
    assert result.clean_accuracy > 0.99
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
UNIT = 2**20 if sys.platform == "darwin" else 2**10  # ru_maxrss is in bytes there, elsewhere in KB
ALLOWED = 60  # MB


def growth(batch_size: int) -> float:
    """Return by how many MB the peak of a process grows when it evaluates 500 examples after 50."""
    command = [sys.executable, "-c", SCRIPT, str(batch_size)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    few, many = (int(line) for line in done.stdout.split())
    return (many - few) / UNIT


def test_peak_memory_does_not_grow_with_the_number_of_examples():
    assert growth(batch_size=25) < ALLOWED
