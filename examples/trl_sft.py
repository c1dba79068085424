"""TRL's SFTTrainer crashes during an accumulation and resumes: python examples/trl_sft.py."""

from __future__ import annotations

import contextlib
import os
import tempfile
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is downloaded here

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from resumable.integrations.transformers import last_whole_checkpoint, prepare

COLOURS = ["red", "green", "blue"]
VOCABULARY = {name: number for number, name in enumerate(["<pad>", "<eos>", *COLOURS])}


def train(folder: str, crash_at: int | None = None) -> tuple[torch.Tensor, list[float]]:
    """Train an epoch of 15 micro-batches, from the last complete checkpoint; return the weights, and logged tokens."""
    torch.manual_seed(0)
    words = Tokenizer(models.WordLevel(VOCABULARY, unk_token="<pad>"))  # noqa: S106  # a token of text
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")  # noqa: S106
    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=5, pad_token_id=0, eos_token_id=1, attention_dropout=0.2, **small))
    texts = Dataset.from_dict({"text": [f"{COLOURS[n % 3]} {COLOURS[n % 2]}" for n in range(60)]})
    steps = {"gradient_accumulation_steps": 3, "save_steps": 2, "num_train_epochs": 1, "logging_steps": 2}
    quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "bf16": False, "log_level": "error"}
    args = SFTConfig(folder, per_device_train_batch_size=4, **steps, **quiet)
    trainer = prepare(SFTTrainer(model, args, train_dataset=texts, processing_class=tokenizer))
    step, count = trainer.training_step, 0

    def training_step(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        if count == crash_at:
            raise RuntimeError
        return step(*arguments)

    trainer.training_step = training_step
    trainer.train(resume_from_checkpoint=last_whole_checkpoint(folder))
    tokens = [line["num_tokens"] for line in trainer.state.log_history if "num_tokens" in line]
    return torch.nn.utils.parameters_to_vector(trainer.model.parameters()), tokens


with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
    baseline, counted = train(one)
    with contextlib.suppress(RuntimeError):
        train(other, crash_at=11)
    print("resumes from", str(last_whole_checkpoint(other)).rpartition("/")[2])
    weights, again = train(other)
    print("The same weights, bit for bit:", weights.equal(baseline), "- the same tokens in the log:", again == counted)
