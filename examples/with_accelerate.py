"""A Hugging Face model with Accelerate: the loop is yours, Accelerate does the rest.

python examples/with_accelerate.py runs/with_accelerate
torchrun --nproc-per-node 2 examples/with_accelerate.py runs/with_accelerate
"""

import argparse
import os

import torch
from accelerate import Accelerator
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

import luwu
import luwu.data

SEQ, BATCH = 128, 8  # BATCH windows make a step, over all workers together; a multiple of their number

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument(
    "folder", nargs="?", default="runs/with_accelerate", help="of the run: the store and the prepared data"
)
parser.add_argument("--data", nargs="*", help="text, JSONL, Parquet, folders; default: Python's standard library")
parser.add_argument("--steps", type=int, default=200)
arguments = parser.parse_args()

with luwu.open(arguments.folder, memory="1GiB") as session:
    # LuWu has read from these who this worker is, and connects the workers. Accelerate must not do it a second time,
    # with DistributedDataParallel around the model: to it each worker is alone.
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    accelerator = Accelerator(cpu=True)  # mixed precision is luwu.parallelize(dtype=...)

    corpus = luwu.data.prepare(arguments.data, f"{arguments.folder}/corpus")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=corpus.vocabulary,
        max_position_embeddings=SEQ + 1,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=4,
        num_attention_heads=4,
        use_cache=False,
    )
    model = LlamaForCausalLM(config)
    luwu.parallelize(model, session, device=accelerator.device)
    optimizer = luwu.AdamW(model, lr=3e-3)
    first = session.step  # where an earlier start of the run ended: the store is its checkpoint
    scheduler = LambdaLR(optimizer, lambda taken: 1.0 - 0.9 * min(1.0, (first + taken) / arguments.steps))

    windows = luwu.data.Windows(corpus.train, SEQ)
    order = luwu.data.BatchSampler(
        len(windows), BATCH, rank=session.rank, workers=session.workers, start=session.attempts
    )
    loader = DataLoader(windows, batch_sampler=order)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)

    for batch in loader:
        if session.step >= arguments.steps:
            break
        loss = model(input_ids=batch, labels=batch).loss  # the model shifts the labels by itself
        accelerator.backward(loss)
        # No accelerator.clip_grad_norm_: the gradients have left for the server by now. luwu.AdamW(max_grad_norm=...)
        # clips there.
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if session.rank == 0 and session.step % 10 == 0:
            print(f"step {session.step}: loss {loss.item():.4f}", flush=True)

    # No accelerator.save_state: every step is in the store already. This makes a checkpoint for from_pretrained.
    values = luwu.full_state_dict(accelerator.unwrap_model(model))
    if session.rank == 0:
        accelerator.unwrap_model(model).save_pretrained(f"{arguments.folder}/model", state_dict=values)
