"""A run played through in discrete events: workers, links, a tree of switches, the server's six steps and its disks."""
