"""Instruments that show what a disk holds after a power cut or a failed call, for tests and benchmarks.

`recorder` notes every call of a process that changes a folder. `power` decides which states a power cut may leave of
them. `operations` has the operations of a store, and `observing` how each state is opened and compared.
"""
