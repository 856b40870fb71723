"""The server process: membership, manifest check, and the store folder. Never imports torch."""
