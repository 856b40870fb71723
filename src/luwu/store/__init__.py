"""The store: its manifest on this side, its chunks in the native core."""
