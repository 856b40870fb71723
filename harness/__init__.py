"""Instruments that tests and benchmarks share; nothing here imports tests or benchmarks.

| part | content |
|---|---|
| `network` | networks of namespaces, with links that can harm packets |
| `disk` | recorded calls to a disk, power cuts, faults and damage |
| `small_disk` | a disk of a few MiB that can be filled |
| `small_models` | a model that trains in milliseconds |
| `model_families` | small models of the families that people train |
| `training` | `luwu train` in a process of its own, on a small run |
"""
