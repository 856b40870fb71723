"""The rows of docs/figures.md: for each benchmark a function that turns its results into rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Row = tuple[str, str, str]
"""A question, LuWu's figure, and the peer's or the limit's."""


def _parity(found: Mapping[str, Any]) -> Iterable[Row]:
    worst = max(found["worst"].values())
    same = "the same bits" if found["bit_identical_runs"] else "**other bits**"
    yield "losses against plain torch, 50 steps, 1, 2, 4 workers", f"within {worst:.1g}; two runs: {same}", "1e-5"


def _crash_resume(found: Mapping[str, Any]) -> Iterable[Row]:
    bits = "the undisturbed run's bits" if found["bit_identical"] else "**other bits**"
    of_all = " of servers, workers, switches and `luwu train`," if "scenarios" in found else ""
    yield f"{found['kills']:,} kills (SIGKILL){of_all} and resumes", f"{len(found['wrong'])} wrong; {bits}", "-"


def _power_cuts(found: Mapping[str, Any]) -> Iterable[Row]:
    removed = [row for key, row in found["removed"].items() if key.endswith("removed")]
    yield (
        f"{sum(found['operations'].values()):,} states after power cuts in {len(found['operations'])} operations",
        f"{len(found['wrong'])} wrong; {sum(row['ok'] for row in removed)} of {len(removed)} removed syncs noticed",
        "0; all",
    )


def _fault_points(found: Mapping[str, Any]) -> Iterable[Row]:
    kinds = ("KILL", "IO_ERROR", "NO_SPACE", "CUT")
    faults = sum(operation.get(kind, 0) for operation in found["operations"].values() for kind in kinds)
    yield (
        f"each of {found['calls']:,} calls of a store killed, refused, or done by half",
        f"{len(found['wrong'])} of {faults:,} wrong",
        "0",
    )


def _optimizer_memory(found: Mapping[str, Any]) -> Iterable[Row]:
    for threads, sides in found["milliseconds"].items():
        rate = {name: found["elements"] / milliseconds / 1e6 for name, milliseconds in sides.items()}
        peers = ("torch eager", "torch.compile", "DeepSpeedCPUAdam")
        yield (
            f"AdamW in memory, bf16 with fp32 states, {threads} thread{'s' * (threads != '1')}",
            f"{rate['luwu']:.2f} Gparam/s",
            ", ".join(f"{peer} {rate[peer]:.2f}" for peer in peers),
        )


def _optimizer_disk(found: Mapping[str, Any]) -> Iterable[Row]:
    moved, updated = found["bytes_per_second"], found["million_parameters_per_second"]
    yield (
        "AdamW out of core",
        f"{updated['luwu']:.0f} Mparam/s; {moved['luwu'] / 1e6:.0f} MB/s",
        f"best of fio {moved['fio'] / 1e6:.0f} MB/s; DeepSpeed {updated['deepspeed']:.0f} Mparam/s",
    )


def _clipping(found: Mapping[str, Any]) -> Iterable[Row]:
    for case, sides in found.items():
        never, always = sides["never clips"], sides["always clips"]
        yield (
            f"clipping out of core, {case} a step",
            f"{never['ratio']:.2f} times the step without where it never clips, {always['ratio']:.2f} where always",
            f"1; the same losses: {'yes' if never['same_losses'] else '**no**'}",
        )


def _snapshots(found: Mapping[str, Any]) -> Iterable[Row]:
    yield (
        f"a step out of core with a snapshot every {found['every']} steps",
        f"{found['ratio']:.3f} times the step without; the one after a snapshot {found['after']:.2f}",
        "1",
    )
    yield (
        f"{found['kept']} snapshots of a store that is {found['frozen_share']:.0%} frozen",
        f"{found['snapshot_bytes'] / 1e6:.0f} MB",
        f"{found['kept']} copies {found['copies_bytes'] / 1e6:.0f} MB",
    )


def _out_of_core(found: Mapping[str, Any]) -> Iterable[Row]:
    shares = sorted(sample["share"] for sample in found["samples"])
    yield (
        f"training with {found['states_bytes'] / found['budget_bytes']:.1f} times the budget on disk",
        f"{shares[len(shares) // 2]:.0%} of what fio reaches; server {found['server_bytes'] / 1e6:.0f} MB",
        f"best of fio; budget {found['budget_bytes'] / 1e6:.0f} MB",
    )


def _train_vs_deepspeed(found: Mapping[str, Any]) -> Iterable[Row]:
    speed, memory = found["tokens_per_second"], found["peak_memory_bytes"]
    shown = {side: f"{speed[side]:.0f} tokens/s, {memory[side] / 1e6:.0f} MB" for side in speed}
    yield "151M parameters, bf16, states on disk, one worker", shown["luwu"], f"DeepSpeed ZeRO-3 {shown['deepspeed']}"


def _train_vs_torch(found: Mapping[str, Any]) -> Iterable[Row]:
    groups: dict[tuple[int, str], dict[str, float]] = {}
    for row in found["measured"]:
        groups.setdefault((row["ranks"], row["dtype"]), {})[row["side"]] = row["tokens_per_second"]
    for (ranks, dtype), speed in groups.items():
        peers = "; ".join(f"{name} {rate:.0f}" for name, rate in speed.items() if name != "luwu")
        yield f"training, {ranks} worker{'s' * (ranks > 1)}, {dtype}", f"{speed['luwu']:.0f} tokens/s", peers


def _fabric_local(found: Mapping[str, Any]) -> Iterable[Row]:
    for ranks, seconds in found["seconds"].items():
        shown = {name: f"{1000 * value:.0f} ms" for name, value in seconds.items()}
        yield (
            f"64 MiB summed for {ranks} workers, and given to all",
            shown["luwu"],
            f"gloo all-reduce {shown['all_reduce']}, in two halves {shown['reduce_scatter_all_gather']}",
        )


def _worker_memory(found: Mapping[str, Any]) -> Iterable[Row]:
    for row in found["measured"]:
        if row["blocks"] >= 12:
            yield (
                f"a worker's peak memory, {row['blocks']} blocks",
                f"{row['luwu worker MB']:.0f} MB",
                f"FSDP2 {row['fsdp2 worker MB']:.0f} MB",
            )


def _micro_batches(found: Mapping[str, Any]) -> Iterable[Row]:
    rates, memory, moved = found["tokens_per_second"], found["worker_bytes"], found["bytes_pulled_and_pushed"]
    shown = {name: f"{rates[name]:.0f} tokens/s, a worker {memory[name] / 1e6:.0f} MB" for name in rates}
    large, small, at_once = shown
    same = "the same bytes" if found["same_bytes"] else "**other bytes**"
    mb = ", ".join(f"{count / 1e6:.0f}" for count in moved[large][0])
    yield (
        f"a batch 8 times larger in micro-batches, out of core: {same} a step (pulled, pushed: {mb} MB)",
        shown[large],
        f"the small batch {shown[small]}; the large one at once {shown[at_once]}",
    )


def _network_parity(found: Mapping[str, Any]) -> Iterable[Row]:
    worst = found["worst"]
    same = "the same bits" if found["bit_identical_runs"] else "**other bits**"
    yield (
        "losses over UDP and a switch, 4 workers",
        f"within {worst['int32']:.1g}, {worst['int16']:.1g} as int16; with 2% of packets lost: {same}",
        "shared memory",
    )
    milliseconds = {name: f"{1000 * seconds:.0f} ms" for name, seconds in found["seconds_per_step"].items()}
    yield (
        "a step over UDP and a switch, 4 workers, all on this machine",
        milliseconds["int32"],
        f"shared memory {milliseconds['shared memory']}; DDP over gloo {milliseconds['DDP over gloo']}",
    )


def _network_goodput(found: Mapping[str, Any]) -> Iterable[Row]:
    for workers, group in found["groups"].items():
        rates = {kind: f"{rate / 1e6:.1f}" for kind, rate in group["limited"].items()}
        yield (
            f"goodput over UDP, {workers} worker{'s' * (workers != '1')}, links of {found['rate_bits'] / 1e6:.0f} Mb/s",
            f"push {rates['push']}, pull {rates['pull']}, both at once {rates['both']} MB/s",
            f"a TCP stream, one way: {rates['tcp']} MB/s",
        )


def _network_aggregate(found: Mapping[str, Any]) -> Iterable[Row]:
    size = f"{4 * found['elements'] >> 20} MiB"
    for ranks, seconds in found["seconds"].items():
        limited = seconds["limited"]
        shown = {name: f"{limited[name]:.2f} s" for name in limited}
        floor = 4 * found["elements"] / limited["tcp_bytes_per_second"]
        yield (
            f"{size} summed for {ranks} workers over links of {found['rate_bits'] / 1e6:.0f} Mb/s, and given to all",
            shown["int32"],
            f"gloo all-reduce {shown['all_reduce']}, in two halves {shown['reduce_scatter_all_gather']}; "
            f"the block over one link {floor:.2f} s",
        )


def _network_loss(found: Mapping[str, Any]) -> Iterable[Row]:
    least = {loss: min(kind[loss] for kind in found["shares"].values()) for loss in found["counts"]}
    lossy = [loss for loss in least if float(loss) > 0]
    yield (
        f"goodput with {', '.join(f'{100 * float(loss):g}' for loss in lossy)} % of packets lost",
        ", ".join(f"{least[loss]:.0%}" for loss in lossy),
        "without loss",
    )


def _network_heartbeats(found: Mapping[str, Any]) -> Iterable[Row]:
    rates = found["per_second"]
    workers = ", ".join(rates)
    yield (
        f"heartbeats at the server, {workers} workers",
        ", ".join(f"{rate['load']:.0f}" for rate in rates.values()) + " a second under load",
        ", ".join(f"{rate['idle']:.0f}" for rate in rates.values()) + " idle",
    )


def _network_servers(found: Mapping[str, Any]) -> Iterable[Row]:
    for transport, times in found["seconds_per_step"].items():
        several = ", ".join(
            f"{servers} servers {1000 * seconds:.0f} ms" for servers, seconds in times.items() if servers != "1"
        )
        yield (
            f"a step over {transport.upper()}, servers with links of {found['rate_bits'] / 1e6:.0f} Mb/s",
            several,
            f"one server {1000 * times['1']:.0f} ms",
        )


def _network_faults(found: Mapping[str, Any]) -> Iterable[Row]:
    same = found["same_store"] and found.get("same_train", True) and not found["wrong"]
    bits = "the undisturbed run's bits" if same else "**other bits**"
    yield f"{len(found['faults'])} faults of networks, switches, workers, servers and disks", bits, "-"


def _xdp_packet(found: Mapping[str, Any]) -> Iterable[Row]:
    nanoseconds = found["nanoseconds"]["aggregate int32 1024"]
    yield (
        "1 KiB of int32 verified and added inside the kernel",
        f"{nanoseconds} ns, {1024 / nanoseconds:.1f} GB/s of a processor",
        f"a program that does nothing {found['nanoseconds']['nothing int32 1024']} ns",
    )


def _xdp_goodput(found: Mapping[str, Any]) -> Iterable[Row]:
    kinds = {
        "cards": "frames as network cards give them",
        "veth": "virtual interfaces alone",
        "jumbo": "virtual interfaces alone, frames of 9000 bytes",
    }
    for key, frames in kinds.items():
        shown = {
            name: f"{side['MB a CPU second']:.0f} MB for a second of its processors, {side['MB/s']:.0f} MB/s"
            for name, side in found[key]["medians"].items()
        }
        yield (
            f"4 workers through a switch inside the kernel; {frames}",
            shown["XDP"],
            f"in user space {shown['user space']}",
        )


def _xdp_parity(found: Mapping[str, Any]) -> Iterable[Row]:
    same = "user space's bits" if all(found["same_bits"].values()) else "**other bits**"
    lost = sum(found["packets_lost"].values())
    yield (
        f"training through a switch inside the kernel, int32 and int16, without loss and with {lost} packets lost",
        f"{same}, losses {max(found['worst'].values()):.1e} from shared memory's",
        "-",
    )


def _parity_models(found: Mapping[str, Any]) -> Iterable[Row]:
    worst = found["worst"]
    families = len({case.rpartition(",")[0] for case in worst})
    yield (
        f"losses of {families} models of transformers and others, clipped, 20 steps, 1 and 2 workers",
        f"within {max(worst.values()):.1g} of plain torch",
        "1e-5",
    )


def _interchange(found: Mapping[str, Any]) -> Iterable[Row]:
    differing = sum(int(row[name]) for row in found["measured"] for name in row if name.endswith("differ"))
    yield "export to transformers, to FSDP2 and back, then 5 steps, fp32", f"{differing} elements differ", "0"


def _lora(found: Mapping[str, Any]) -> Iterable[Row]:
    per_parameter = found["store_bytes"] / found["frozen"]
    yield "LoRA in bf16: bytes in the store per frozen parameter", f"{per_parameter:.2f}", "2"
    yield "LoRA: bytes pushed a step", f"{found['pushed_bytes']:.0f}", f"the adapters' {2 * found['adapters']}"


def _state_8bit(found: Mapping[str, Any]) -> Iterable[Row]:
    moved, loss, rate = (found[name] for name in ("bytes_per_parameter", "validation_loss", "rates"))
    shown = {
        name: f"{rate[name] / 1e6:.0f} Mparam/s, {moved[name]:.1f} bytes each; validation loss {loss[name]:.3f}"
        for name in moved
    }
    yield "AdamW out of core with states in 8 bits; after 500 steps", shown["adamw8bit"], f"in fp32 {shown['adamw']}"


def _streaming_memory(found: Mapping[str, Any]) -> Iterable[Row]:
    growth = {row["operation"]: row["growth"] for row in found["measured"]}
    peer, checkpoint = growth.pop("transformers"), growth.pop("checkpoint")
    yield (
        f"peak memory of import, export and generate, a model {1 + checkpoint:.1f} times as large",
        f"at most {max(growth.values()):.1%} more",
        f"transformers {peer:.0%} more",
    )


def _plan_paper(found: Mapping[str, Any]) -> Iterable[Row]:
    claims = found["shares"]["what was measured"]
    yield (
        "figures of arXiv 2409.00918 that `luwu plan` has within 10 %",
        f"{found['within']} of {found['counted']}; of its measurements alone {claims:.0%}",
        "the paper",
    )


def _plan_megatron(found: Mapping[str, Any]) -> Iterable[Row]:
    errors = sorted(abs(error) for error in found["errors"].values())
    yield (
        "TFLOP/s per GPU of Megatron-LM on 32 to 3072 A100s, as `luwu plan` has them",
        f"within {errors[-1]:.0%}, median {errors[len(errors) // 2]:.0%}",
        "arXiv 2104.04473",
    )


def _plan_measured(found: Mapping[str, Any]) -> Iterable[Row]:
    worst_bytes = max(abs(row["errors"][name]) for row in found["rows"] for name in row["errors"] if name != "seconds")
    yield (
        f"a step of {len(found['rows'])} runs of `luwu train` on this machine, as `luwu plan --measured` has it",
        f"within {found['worst']:.0%}, median {found['median']:.1%}; memory and bytes of the store within "
        f"{worst_bytes:.1%}",
        "the runs",
    )


def _display_truth(found: Mapping[str, Any]) -> Iterable[Row]:
    rows = found["rows"]
    figures = {name for row in rows for name in row["errors"]}
    yield (
        f"{len(figures)} figures of the display and of metrics.jsonl, in {len(rows)} shapes of runs",
        f"within {max(max(row['errors'].values()) for row in rows):.2%}",
        "what is known from outside",
    )


def _strangers(found: Mapping[str, Any]) -> Iterable[Row]:
    for transport, one in found["transports"].items():
        (bar,) = one["bars"].values()
        opened = min(each["opened"] for each in one["calls"])
        yield (
            f"training over {transport.upper()} beside {opened:,} connections of strangers"
            + (", and floods" if one["calls"][0]["datagrams"] else ""),
            f"{bar['ratio']:.2f} times the steps per second; a worker joins in {max(one['joins']):.2f} s at most; "
            f"{one['more_bytes'] / 2**20:.0f} MiB more",
            f"strangers elsewhere: 1; none: {bar['ratio'] / one['to_alone']:.2f}, {max(one['joins_alone']):.2f} s",
        )


TABLES = {
    "parity": _parity,
    "crash_resume": _crash_resume,
    "power_cuts": _power_cuts,
    "fault_points": _fault_points,
    "train_vs_deepspeed": _train_vs_deepspeed,
    "train_vs_torch": _train_vs_torch,
    "worker_memory": _worker_memory,
    "micro_batches": _micro_batches,
    "fabric_local": _fabric_local,
    "optimizer_memory": _optimizer_memory,
    "optimizer_disk": _optimizer_disk,
    "clipping": _clipping,
    "snapshots": _snapshots,
    "out_of_core": _out_of_core,
    "network_goodput": _network_goodput,
    "network_aggregate": _network_aggregate,
    "network_loss": _network_loss,
    "network_heartbeats": _network_heartbeats,
    "network_parity": _network_parity,
    "network_servers": _network_servers,
    "network_faults": _network_faults,
    "strangers": _strangers,
    "xdp_packet": _xdp_packet,
    "xdp_goodput": _xdp_goodput,
    "xdp_parity": _xdp_parity,
    "parity_models": _parity_models,
    "interchange": _interchange,
    "lora": _lora,
    "state_8bit": _state_8bit,
    "streaming_memory": _streaming_memory,
    "plan_paper": _plan_paper,
    "plan_megatron": _plan_megatron,
    "plan_measured": _plan_measured,
    "display_truth": _display_truth,
}
