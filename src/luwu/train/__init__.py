"""The training loop, evaluation and generation of `luwu train`: what a worker process runs."""
