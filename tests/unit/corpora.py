"""Text, and a tokenizer made without training, for tests of the data room."""

from __future__ import annotations

import gzip
import json

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

END = "<|endoftext|>"


def tokenizer_file(path, *, special=(END,), merges=(("t", "h"), ("th", "e"), ("Ġ", "the"))):
    """Write a byte-level BPE with a handful of merges; every byte is a token."""
    vocabulary = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocabulary, list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))
    return path


def write_jsonl(path, records):
    """Write records, a line each; compressed if the name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(json.dumps(record) + "\n" for record in records).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def story(number, sentences=20):
    """A text that no other number gives."""
    return "".join(
        f"In story {number} the fox number {index} met the hen. Ünïcödé too!\n" for index in range(sentences)
    )
