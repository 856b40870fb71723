"""Sessions: `luwu.open` and `luwu.connect`."""
