"""The mathematics of decision boundaries. It knows a callable from inputs to logits, and no other layer."""
