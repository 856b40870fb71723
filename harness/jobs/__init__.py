"""Whole jobs on the pure machines: workers, servers and their disks, in any order of events, with faults."""
