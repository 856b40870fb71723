"""The torch side of a worker: blocks are pulled before use, gradients pushed once, nothing is owned."""
