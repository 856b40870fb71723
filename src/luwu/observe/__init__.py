"""Progress, metrics and plots of a run; nothing here imports torch."""
