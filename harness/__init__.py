"""Instruments that tests and benchmarks share; nothing here imports tests or benchmarks.

| part | content |
|---|---|
| `network` | networks of namespaces, with links that can harm packets |
| `disk` | recorded calls to a disk, power cuts, faults and damage |
| `stored` | the contents of a committed store, block by block |
| `small_disk` | a disk of a few MiB that can be filled |
| `small_models` | a model that trains in milliseconds |
| `model_families` | small models of the families that people train |
| `native` | a simulated GPU, a rig for the copy engine, random histories for the step machine |
| `training` | `luwu train` in a process of its own, on a small run |
"""
