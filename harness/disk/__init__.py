"""Instruments that show what a disk holds after a power cut or a failed call, for tests and benchmarks.

| file | what it does |
|---|---|
| `operations` | the operations of a store, which mark what the store holds |
| `recorder` | notes every call of a process that changes a folder, and lets a chosen one fail |
| `processes`, `record` | run an operation in a child that records itself |
| `image`, `power` | the contents of a folder; which of them a power cut may leave |
| `observing` | opens a store and reads everything in it |
| `cutting`, `removing` | open what power cuts leave; the same with each sync taken away |
| `faults` | lets every call fail once |
| `looking` | looks at a store in every way in which somebody reads it |
| `rotten_stores`, `damages` | stores that can be damaged in place, and damage of all kinds |
| `rot`, `lost_writes`, `rot_controls` | judge what becomes of it; of lost writes; of damage that nothing can notice |
| `sites` | names the places of the program that call a sync |
"""
