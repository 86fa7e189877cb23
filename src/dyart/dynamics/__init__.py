"""Speed of the boundary and margins: of one training step, and through a whole training."""
