"""Blocks of code in the pages: found, checked, and run in a folder that has what the pages take for granted."""
