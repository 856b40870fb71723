"""Train a model whose parameters and optimizer state live in a store.

python examples/ten_lines.py [RUN_FOLDER], or, as a worker of a server on the network, with luwu://HOST:PORT instead.
"""

import sys

import torch
from torch import nn

import luwu

model = nn.Sequential(nn.Embedding(256, 64), *(nn.TransformerEncoderLayer(64, 4) for _ in range(4)), nn.Linear(64, 256))
text = torch.frombuffer(bytearray(b"the model lives in the network. " * 16), dtype=torch.uint8).long()
where = sys.argv[1] if len(sys.argv) > 1 else "runs/ten_lines"

with luwu.connect(where) if where.startswith("luwu://") else luwu.open(where) as session:
    luwu.parallelize(model, session, blocks=[nn.TransformerEncoderLayer])
    optimizer = luwu.AdamW(model, lr=1e-3)
    while session.step < 20:
        start = int(torch.randint(len(text) - 33, ()))
        logits = model(text[start : start + 32])
        loss = nn.functional.cross_entropy(logits, text[start + 1 : start + 33])
        loss.backward()
        optimizer.step()
        if session.rank == 0:
            print(f"step {session.step}: loss {loss.item():.4f}")
