"""The training loop and what it needs: schedules, averaging, checkpoints, compiled steps, a run's folder."""
