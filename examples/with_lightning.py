"""A Hugging Face model with Lightning.

python examples/with_lightning.py runs/with_lightning
torchrun --nproc-per-node 2 examples/with_lightning.py runs/with_lightning
"""

import argparse
import os

import lightning
import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

import luwu
import luwu.data
from luwu.integrations.lightning import StoreCallback

SEQ, BATCH = 128, 8  # BATCH windows make a step, over all workers together; a multiple of their number

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("folder", nargs="?", default="runs/with_lightning", help="of the run: store and prepared data")
parser.add_argument("--data", nargs="*", help="text, JSONL, Parquet, folders; default: Python's standard library")
parser.add_argument("--steps", type=int, default=200)
arguments = parser.parse_args()


class LanguageModel(lightning.LightningModule):
    """The module that Lightning calls; the model inside it is LuWu's."""

    def __init__(self, model, session):
        super().__init__()
        self.model = model
        self.session = session

    def training_step(self, batch):
        loss = self.model(input_ids=batch, labels=batch).loss  # the model shifts the labels by itself
        if self.session.rank == 0 and self.session.step % 10 == 9:
            print(f"step {self.session.step + 1}: loss {loss.item():.4f}", flush=True)
        return loss

    def validation_step(self, batch):
        self.log("validation loss", self.model(input_ids=batch, labels=batch).loss, prog_bar=True)

    def configure_optimizers(self):
        optimizer = luwu.AdamW(self.model, lr=3e-3)
        first = self.session.step  # where an earlier start of the run ended: the store is its checkpoint
        scheduler = LambdaLR(optimizer, lambda taken: 1.0 - 0.9 * min(1.0, (first + taken) / arguments.steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


with luwu.open(arguments.folder, memory="1GiB") as session:
    # LuWu has read from these who this worker is, and connects the workers. Lightning must not do it a second time: to
    # it each worker is alone.
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK"):
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

    windows = luwu.data.Windows(corpus.train, SEQ)
    order = luwu.data.BatchSampler(
        len(windows), BATCH, rank=session.rank, workers=session.workers, start=session.attempts
    )
    trainer = lightning.Trainer(
        max_steps=arguments.steps - session.step,
        accelerator="cpu",  # the device given to luwu.parallelize
        devices=1,
        enable_checkpointing=False,  # every step is in the store already
        gradient_clip_val=None,  # gradients leave during backward: luwu.AdamW(max_grad_norm=...) clips at the server
        logger=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        num_sanity_val_steps=0,
        limit_val_batches=4,
        callbacks=[StoreCallback()],  # refuses arguments that would go wrong quietly
    )
    module = LanguageModel(model, session)
    if session.step < arguments.steps:
        trainer.fit(module, DataLoader(windows, batch_sampler=order))
    # All workers validate, on the same windows: a block that one pulls comes to all of them.
    held_back = DataLoader(luwu.data.Windows(corpus.validation, SEQ), batch_size=BATCH)
    trainer.validate(module, held_back, verbose=session.rank == 0)

    values = luwu.full_state_dict(model)  # for a model that fits in memory
    if session.rank == 0:
        model.save_pretrained(f"{arguments.folder}/model", state_dict=values)
