"""A Hugging Face model with the Trainer of transformers.

python examples/with_trainer.py runs/with_trainer
torchrun --nproc-per-node 2 examples/with_trainer.py runs/with_trainer
"""

import argparse
import os

import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Subset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import luwu
import luwu.data
from luwu.integrations.trainer import StoreCallback

SEQ, BATCH = 128, 8  # BATCH windows make a step, over all workers together; a multiple of their number

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("folder", nargs="?", default="runs/with_trainer", help="of the run: store and prepared data")
parser.add_argument("--data", nargs="*", help="text, JSONL, Parquet, folders; default: Python's standard library")
parser.add_argument("--steps", type=int, default=200)
arguments = parser.parse_args()


def collate(windows):
    """The model shifts the labels by itself."""
    batch = torch.stack(windows)
    return {"input_ids": batch, "labels": batch}


class OrderedTrainer(Trainer):
    """Takes batches in LuWu's order, which goes on where the store stands, for any number of workers."""

    def get_train_dataloader(self):
        order = luwu.data.BatchSampler(
            len(self.train_dataset), BATCH, rank=session.rank, workers=session.workers, start=session.attempts
        )
        return DataLoader(self.train_dataset, batch_sampler=order, collate_fn=collate)


with luwu.open(arguments.folder, memory="1GiB") as session:
    # LuWu has read from these who this worker is, and connects the workers. The Trainer must not do it a second time,
    # with DistributedDataParallel around the model: to it each worker is alone.
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)

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
    model = luwu.parallelize(LlamaForCausalLM(config), session)  # mixed precision is dtype=... here
    optimizer = luwu.AdamW(model, lr=3e-3)
    first = session.step  # where an earlier start of the run ended: the store is its checkpoint
    scheduler = LambdaLR(optimizer, lambda taken: 1.0 - 0.9 * min(1.0, (first + taken) / arguments.steps))
    held_back = luwu.data.Windows(corpus.validation, SEQ)
    trainer = OrderedTrainer(
        model=model,
        args=TrainingArguments(
            output_dir=f"{arguments.folder}/trainer",
            max_steps=max(1, arguments.steps - first),
            max_grad_norm=0.0,  # gradients leave during backward: luwu.AdamW(max_grad_norm=...) clips at the server
            save_strategy="no",  # every step is in the store already
            per_device_train_batch_size=BATCH // session.workers,
            use_cpu=True,  # the device given to luwu.parallelize
            logging_steps=10,
            report_to="none",
            disable_tqdm=True,
            log_level="error" if session.rank else "passive",
        ),
        train_dataset=luwu.data.Windows(corpus.train, SEQ),
        eval_dataset=Subset(held_back, range(min(16, len(held_back)))),  # the same for all workers, which pull together
        data_collator=collate,
        optimizers=(optimizer, scheduler),
        callbacks=[StoreCallback()],  # refuses arguments that would go wrong quietly
    )
    if session.step < arguments.steps:
        trainer.train()
    print(f"worker {session.rank}: validation loss {trainer.evaluate()['eval_loss']:.4f} nats per {corpus.unit}")

    values = luwu.full_state_dict(model)  # for a model that fits in memory
    if session.rank == 0:
        model.save_pretrained(f"{arguments.folder}/model", state_dict=values)
