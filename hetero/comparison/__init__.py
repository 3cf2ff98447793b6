"""One model on two devices: the first values that differ."""
