"""Sessions: `luwu.open` and `luwu.connect`. The only room that embeds a server."""
