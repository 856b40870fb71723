"""Models to train: what `luwu train` builds."""
