"""TRL's SFTTrainer on made-up sentences: a model of a few thousand weights, and a tokenizer of thirty words."""

from __future__ import annotations

import random
import warnings
from typing import TYPE_CHECKING, Any

import datasets
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SENTENCES", "make_trainer"]

SENTENCES = 22
_WORDS = [f"word{number}" for number in range(30)]


def sentences() -> datasets.Dataset:
    """Make sentences of different lengths."""
    choose = random.Random(0)
    return datasets.Dataset.from_dict(
        {"text": [" ".join(choose.choices(_WORDS, k=2 + number % 5)) for number in range(SENTENCES)]}
    )


def tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {word: number for number, word in enumerate(["<pad>", "<eos>", "<unk>", *_WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))  # noqa: S106  # a token of text
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=words, **names)


def model() -> LlamaForCausalLM:
    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=len(_WORDS) + 3, attention_dropout=0.3, pad_token_id=0, eos_token_id=1, **small)
    )


def make_trainer(folder: Path, callbacks: list[Any], *, stream: bool = False, **arguments: Any) -> SFTTrainer:
    """Make a Trainer of sentences; of a stream of them, where that is asked for."""
    warnings.filterwarnings("ignore", category=FutureWarning)  # TRL's own, about transformers
    args = SFTConfig(str(folder), bf16=False, **{"max_length": 16, **arguments})
    data = sentences().to_iterable_dataset(num_shards=4) if stream else sentences()
    held_out = sentences().select(range(6))
    return SFTTrainer(
        model(), args, train_dataset=data, eval_dataset=held_out, processing_class=tokenizer(), callbacks=callbacks
    )
