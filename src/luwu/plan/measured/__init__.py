"""Plans for this machine: its abilities are measured, and the needs of a run of `luwu train` follow."""
