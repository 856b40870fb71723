"""A language model in a plain torch loop: prepared data, a schedule, validation, resume.

    python examples/torch_loop.py runs/torch_loop
    torchrun --nproc-per-node 2 examples/torch_loop.py runs/torch_loop

With workers on several machines start `luwu server` on one (docs/start.md says how), and on each of the others

    LUWU_JOB_KEY_FILE=job.key torchrun ... examples/torch_loop.py runs/torch_loop --server luwu://HOST:7070
"""

import argparse
import math

import torch
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

import luwu
import luwu.data
from luwu.models.gpt import GPT, GPTConfig

SEQ, BATCH, WARMUP = 128, 8, 20  # BATCH windows make a step, over all workers together

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("folder", nargs="?", default="runs/torch_loop", help="of the run: the store and the prepared data")
parser.add_argument("--server", help="luwu://HOST:PORT of a `luwu server`; without it the run serves itself")
parser.add_argument("--data", nargs="*", help="text, JSONL, Parquet, folders; default: Python's standard library")
parser.add_argument("--tokenizer", help="tokenizer.json, as `luwu tokenizer` makes it; default: bytes")
parser.add_argument("--steps", type=int, default=200)
arguments = parser.parse_args()

with luwu.connect(arguments.server) if arguments.server else luwu.open(arguments.folder, memory="1GiB") as session:
    corpus = luwu.data.prepare(arguments.data, f"{arguments.folder}/corpus", arguments.tokenizer)
    with torch.device("meta"):  # never there as a whole; the store initialises it block by block
        model = GPT(GPTConfig(layers=4, hidden=64, heads=4, seq=SEQ, vocabulary=corpus.vocabulary))
    luwu.parallelize(model, session)
    optimizer = luwu.AdamW(model, lr=3e-3)

    # Everything below starts where the store stands: at step 0, or wherever an earlier start of the run ended.
    first = session.step

    def rate(taken: int) -> float:
        progress = min(1.0, (first + taken) / arguments.steps)
        return min(1.0, (first + taken + 1) / WARMUP) * (0.55 + 0.45 * math.cos(math.pi * progress))

    scheduler = LambdaLR(optimizer, rate)
    windows = luwu.data.Windows(corpus.train, SEQ)
    order = luwu.data.BatchSampler(
        len(windows), BATCH, rank=session.rank, workers=session.workers, start=session.attempts
    )

    for batch in DataLoader(windows, batch_sampler=order):
        if session.step >= arguments.steps:
            break
        loss = model(batch[:, :-1], batch[:, 1:]).loss
        # LuWu averages over workers. Where BATCH cannot be split evenly, one with more windows must weigh more.
        (loss * (len(batch) * session.workers / BATCH)).backward()
        optimizer.step()
        if optimizer.last_step_committed:  # else a gradient was not finite, and the step was rolled back
            scheduler.step()
        if session.rank == 0 and session.step % 10 == 0:
            print(f"step {session.step}: loss {loss.item():.4f}", flush=True)

    # All workers validate, on the same windows: a block that one pulls comes to all of them.
    held_back = luwu.data.Windows(corpus.validation, SEQ)
    total = 0.0
    with torch.no_grad():
        model.eval()
        for index in range(min(16, len(held_back))):
            window = held_back[index]
            logits = model(window[None, :-1]).logits
            total += functional.cross_entropy(logits[0], window[1:]).item()
    loss = total / min(16, len(held_back))
    bits = loss / corpus.bytes_per_token / math.log(2)
    values = luwu.full_state_dict(model)  # the whole model, in memory: for small ones
    if session.rank == 0:
        torch.save(values, f"{arguments.folder}/model.pt")
        print(f"validation loss {loss:.4f} nats per {corpus.unit}, {bits:.4f} bits per byte")
