"""Text corpora and the order in which workers see them."""
