"""The door to the native core: the only module that imports `luwu._native`, with all that Python uses of it."""

from __future__ import annotations

from luwu._native import (
    BlockSpec,
    CopyEngine,
    DiskProbe,
    Door,
    Endpoint,
    FileLock,
    NetworkTiming,
    ServerLink,
    ShmServer,
    StepMachine,
    StoreReader,
    StoreWriter,
    TcpServer,
    TcpWorker,
    Timing,
    UdpPlace,
    UdpServer,
    UdpSwitch,
    UdpWorker,
    WindowSchedule,
    Wiring,
    copy_past_cache,
    crc32c,
    device_bytes,
    instruction_set,
    io_backend,
    io_uring_built_in,
    keep_connections_from_children,
    keep_forever,
    keep_from_children,
    keep_xdp_capabilities_alone,
    measure_update,
    plan_store,
    remove_snapshot,
    snapshot_steps,
    udp_payload_limit,
    xdp_missing,
)
from luwu.core.manifest import ROOT_NAME, Manifest

__all__ = [
    "BlockSpec",
    "CopyEngine",
    "DiskProbe",
    "Door",
    "Endpoint",
    "FileLock",
    "NetworkTiming",
    "ServerLink",
    "ShmServer",
    "StepMachine",
    "StoreReader",
    "StoreWriter",
    "TcpServer",
    "TcpWorker",
    "Timing",
    "UdpPlace",
    "UdpServer",
    "UdpSwitch",
    "UdpWorker",
    "WindowSchedule",
    "Wiring",
    "block_specs",
    "copy_past_cache",
    "crc32c",
    "device_bytes",
    "instruction_set",
    "io_backend",
    "io_uring_built_in",
    "keep_connections_from_children",
    "keep_forever",
    "keep_from_children",
    "keep_xdp_capabilities_alone",
    "measure_update",
    "plan_store",
    "remove_snapshot",
    "snapshot_steps",
    "udp_payload_limit",
    "xdp_missing",
]


def block_specs(manifest: Manifest) -> list[BlockSpec]:
    """Return the manifest's blocks for the native core. The root block is held through the whole step."""
    return [
        BlockSpec(
            block.name,
            block.elements,
            block.trainable,
            block.name.startswith(ROOT_NAME),
            manifest.dtype_of(block),
        )
        for block in manifest.blocks
    ]
