"""Does a model survive leaving and coming back? Trained here, exported, loaded by transformers and by FSDP2, and back.

Everything is float32 and counted in elements whose bits differ: logits of the exported model in transformers against
those of the store's model here; parameters and AdamW states that FSDP2 loads against the store's; and the parameters
after five more steps of a store that went to FSDP2 and came back, against the store that stayed. How far FSDP2's own
five steps are from those here is shown beside it: its optimizer is torch's.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kit.common import Row, arguments, result, run, table
from kit.losses import worst_difference

os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count() or 1))

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import transformers
from torch import Tensor
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard

import luwu
from luwu.models.importing import import_pretrained
from luwu.store.dcp_output import export_dcp
from luwu.store.exporting import export_safetensors
from luwu.store.values import StoredValues

NAME = "interchange"
BAR = "logits in transformers, what FSDP2 loads, and 5 more steps after the way there and back: equal bits in fp32"
SETTINGS: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
MORE_STEPS = 5
VOCABULARY = 1000


def config_of(family: str, layers: int, hidden: int) -> Any:
    """GPT-2 has tied embeddings and transposed weights, Llama neither."""
    if family == "gpt2":
        return transformers.GPT2Config(
            n_layer=layers, n_embd=hidden, n_head=4, vocab_size=VOCABULARY, n_positions=128, resid_pdrop=0.0,
            embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
    return transformers.LlamaConfig(
        hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=VOCABULARY,
    )  # fmt: skip


def build(config: Any, seed: int) -> Any:
    """The model with random values."""
    torch.manual_seed(seed)
    return transformers.AutoModelForCausalLM.from_config(config)


def batch(step: int) -> Tensor:
    """The same tokens for every side."""
    return torch.randint(0, VOCABULARY, (4, 64), generator=torch.Generator().manual_seed(step))


def train_here(config: Any, store: Path, steps: int) -> tuple[list[float], dict[str, Tensor], Tensor]:
    """Losses of more steps on a store, its parameters after them, and the logits of a batch."""
    losses = []
    with luwu.open(store.parent / f"run-{store.name}", stores=[store], memory="1GiB") as session:
        model = luwu.parallelize(build(config, 1), session)
        optimizer = luwu.AdamW(model, **SETTINGS)
        for step in range(session.step, session.step + steps):
            loss = model(input_ids=batch(step), labels=batch(step)).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        with torch.no_grad():
            logits = model(input_ids=batch(1000)).logits.clone()
        return losses, luwu.full_state_dict(model), logits


class Sharded:
    """The same model under FSDP2 with torch's AdamW."""

    def __init__(self, config: Any) -> None:
        self.model = build(config, 2)
        for layer in self.model.transformer.h if config.model_type == "gpt2" else self.model.model.layers:
            fully_shard(layer)
        fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1.0)

    def state(self) -> dict[str, Any]:
        """Return the state that dcp loads and saves."""
        return {
            "model": get_model_state_dict(self.model),
            "optim": get_optimizer_state_dict(self.model, self.optimizer),
        }

    def load(self, folder: Path) -> None:
        """Takes everything from a checkpoint."""
        state = self.state()
        dcp.load(state, checkpoint_id=folder)
        set_model_state_dict(self.model, state["model"])
        set_optimizer_state_dict(self.model, self.optimizer, state["optim"])

    def train(self, first: int, steps: int) -> list[float]:
        """Losses of more steps."""
        losses = []
        for step in range(first, first + steps):
            loss = self.model(input_ids=batch(step), labels=batch(step)).loss
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            losses.append(loss.item())
        return losses


def differing(left: Tensor, right: Tensor) -> int:
    """Elements whose bits are not the same."""
    return int((left.reshape(-1).view(torch.int32) != right.reshape(-1).view(torch.int32)).sum())


def loaded_differently(sharded: Sharded, store: Path) -> int:
    """Elements of parameters and states under FSDP2 that are not the store's."""
    count = 0
    parameters = dict(sharded.model.named_parameters())
    with StoredValues([store]) as values:
        for place in values.places():
            held = values.read(place, 0, place.parameter.numel, states=True)
            parameter = parameters[place.parameter.name]
            state = sharded.optimizer.state[parameter]
            theirs = (parameter.detach(), state["exp_avg"], state["exp_avg_sq"])
            for mine, other in zip((held.exact(), *held.moments), theirs, strict=True):
                count += differing(mine, other.full_tensor())
    return count


def go_round(family: str, layers: int, hidden: int, steps: int, folder: Path) -> list[Any]:
    """Return one row of the table: a family's way out and back."""
    config = config_of(family, layers, hidden)
    store, back = folder / "store", folder / "back"
    build(config, 0).save_pretrained(folder / "in")
    import_pretrained(folder / "in", [store])
    _, _, logits = train_here(config, store, steps)
    export_safetensors([store], folder / "out")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder / "out", attn_implementation="sdpa").eval()
    with torch.no_grad():
        logits_differ = differing(logits, theirs(input_ids=batch(1000)).logits)
    export_dcp([store], folder / "dcp", settings=SETTINGS)
    sharded = Sharded(config)
    sharded.load(folder / "dcp")
    load_differs = loaded_differently(sharded, store)
    dcp.save(sharded.state(), checkpoint_id=folder / "returned")
    import_pretrained(folder / "returned", [back], model_folder=folder / "in")
    stayed, expected, _ = train_here(config, store, MORE_STEPS)
    returned, found, _ = train_here(config, back, MORE_STEPS)
    steps_differ = sum(differing(value, found[name]) for name, value in expected.items())
    steps_differ += sum(mine != other for mine, other in zip(stayed, returned, strict=True))
    there = sharded.train(steps, MORE_STEPS)
    return [family, logits_differ, load_differs, steps_differ, worst_difference(stayed, there)]


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    differing = sum(int(row[name]) for row in found["measured"] for name in row if name.endswith("differ"))
    yield "export to transformers, to FSDP2 and back, then 5 steps, fp32", f"{differing} elements differ", "0"


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    layers, hidden, steps = options.size((8, 512, 10), quick=(2, 64, 2), check=(2, 64, 2))
    names = ("family", "logits differ", "loaded differ", "5 steps differ", "FSDP2's losses, relative")

    def measure() -> dict[str, Any]:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        rows = []
        try:
            for family in options.size(("llama", "gpt2"), check=("llama",)):
                with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                    rows.append(go_round(family, layers, hidden, steps, Path(folder)))
        finally:
            dist.destroy_process_group()
        table(names, rows)
        wrong = sum(sum(row[1:4]) for row in rows)
        details = {"measured": [dict(zip(names, row, strict=True)) for row in rows]}
        return result(
            NAME, ours=wrong, peer=None, bar=BAR, ok=True, right=wrong == 0, unit="elements that differ",
            details=details,
        )  # fmt: skip

    return run(NAME, BAR, "elements that differ", measure, options)


if __name__ == "__main__":
    sys.exit(main())
