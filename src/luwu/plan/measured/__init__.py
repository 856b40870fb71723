"""Plans for this machine: what it can do is measured, and what a run of `luwu train` takes on it follows."""
