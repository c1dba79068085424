"""In the shape of PyTorch's word language model: an LSTM whose hidden state lives from batch to batch, and SGD by hand.

Made resumable as docs/frameworks/pytorch.md says: the loader delivers the position of each batch.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from typing import Any

import torch
from torch import nn

import resumable

parser = argparse.ArgumentParser(description="PyTorch Wikitext-2 RNN Language Model")
parser.add_argument("--data", type=str, default="./data/wikitext-2", help="location of the data corpus")
parser.add_argument("--nhid", type=int, default=200, help="number of hidden units per layer")
parser.add_argument("--lr", type=float, default=20, help="initial learning rate")
parser.add_argument("--clip", type=float, default=0.25, help="gradient clipping")
parser.add_argument("--epochs", type=int, default=40, help="upper epoch limit")
parser.add_argument("--batch_size", type=int, default=20, metavar="N", help="batch size")
parser.add_argument("--bptt", type=int, default=35, help="sequence length")
parser.add_argument("--seed", type=int, default=1111, help="random seed")
parser.add_argument("--log-interval", type=int, default=4, metavar="N", help="report interval")
parser.add_argument("--save", type=str, default="model.pt", help="path to save the final model")
args = parser.parse_args()
torch.manual_seed(args.seed)


class Corpus:
    def __init__(self, path: str) -> None:
        self.word2idx: dict[str, int] = {}
        self.train, self.valid, self.test = (
            self.tokenize(os.path.join(path, f"{name}.txt")) for name in ("train", "valid", "test")
        )

    def tokenize(self, path: str) -> torch.Tensor:
        with open(path, encoding="utf8") as f:
            words = [word for line in f for word in [*line.split(), "<eos>"]]
        return torch.tensor([self.word2idx.setdefault(word, len(self.word2idx)) for word in words])


class RNNModel(nn.Module):
    def __init__(self, ntoken: int, nhid: int) -> None:
        super().__init__()
        self.ntoken, self.nhid = ntoken, nhid
        self.drop, self.encoder = nn.Dropout(0.2), nn.Embedding(ntoken, nhid)
        self.rnn, self.decoder = nn.LSTM(nhid, nhid), nn.Linear(nhid, ntoken)

    def forward(self, data: torch.Tensor, hidden: Any) -> tuple[torch.Tensor, Any]:
        output, hidden = self.rnn(self.drop(self.encoder(data)), hidden)
        return nn.functional.log_softmax(self.decoder(self.drop(output)).view(-1, self.ntoken), dim=1), hidden

    def init_hidden(self, bsz: int) -> tuple[torch.Tensor, ...]:
        return torch.zeros(1, bsz, self.nhid), torch.zeros(1, bsz, self.nhid)


def batchify(data: torch.Tensor, bsz: int) -> torch.Tensor:
    nbatch = data.size(0) // bsz
    return data.narrow(0, 0, nbatch * bsz).view(bsz, -1).t().contiguous()


corpus = Corpus(args.data)
train_data = batchify(corpus.train, args.batch_size)
val_data, test_data = batchify(corpus.valid, 2), batchify(corpus.test, 2)
model, criterion = RNNModel(len(corpus.word2idx), args.nhid), nn.NLLLoss()
lr, best_val_loss, hidden = args.lr, math.inf, model.init_hidden(args.batch_size)

loader = resumable.wrap(range(0, train_data.size(0) - 1, args.bptt))  # the position of each batch, in order
store = resumable.CheckpointStore("checkpoints", keep=2)
if (last := store.latest()) is not None:
    lr, best_val_loss, hidden = last["lr"], last["best_val_loss"], last["hidden"]
    model.load_state_dict(last["model"])
    loader.load_state_dict(last["loader"])
    resumable.rng.load_state_dict(last["rng"])


def save() -> None:
    state = {"model": model.state_dict(), "loader": loader.state_dict(), "rng": resumable.rng.state_dict()}
    store.save(loader.global_step, {**state, "lr": lr, "best_val_loss": best_val_loss, "hidden": hidden})


def repackage_hidden(h: Any) -> Any:
    """Wraps hidden states in new Tensors, to detach them from their history."""
    return tuple(v.detach() for v in h)


def get_batch(source: torch.Tensor, i: int) -> tuple[torch.Tensor, torch.Tensor]:
    seq_len = min(args.bptt, len(source) - 1 - i)
    return source[i : i + seq_len], source[i + 1 : i + 1 + seq_len].view(-1)


@torch.no_grad()
def evaluate(data_source: torch.Tensor) -> float:
    model.eval()
    total_loss, state = 0.0, model.init_hidden(data_source.size(1))
    for i in range(0, data_source.size(0) - 1, args.bptt):
        data, targets = get_batch(data_source, i)
        output, state = model(data, state)
        total_loss += len(data) * criterion(output, targets).item()
    return total_loss / (len(data_source) - 1)


def train(epoch: Any) -> None:
    global hidden
    model.train()
    total_loss, start_time = 0.0, time.time()
    for batch, i in epoch.enumerate():
        data, targets = get_batch(train_data, i)
        model.zero_grad()
        hidden = repackage_hidden(hidden)
        output, hidden = model(data, hidden)
        loss = criterion(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)
        total_loss += loss.item()
        if (batch + 1) % args.log_interval == 0:
            cur_loss, elapsed = total_loss / args.log_interval, time.time() - start_time
            print(f"| epoch {epoch:3d} | {batch}/{len(epoch)} batches | {elapsed:.2f} s | loss {cur_loss:5.2f}")
            total_loss, start_time = 0.0, time.time()
            save()


try:
    for epoch in loader.epochs(args.epochs):
        train(epoch)
        val_loss = evaluate(val_data)
        print("-" * 89)
        print(f"| end of epoch {epoch:3d} | valid loss {val_loss:5.2f} | valid ppl {math.exp(val_loss):8.2f}")
        if val_loss < best_val_loss:
            torch.save(model, args.save)
            best_val_loss = val_loss
        else:
            lr /= 4.0  # anneal the learning rate if no improvement has been seen in the validation dataset
        hidden = model.init_hidden(args.batch_size)
        save()
except KeyboardInterrupt:
    print("Exiting from training early")

with open(args.save, "rb") as f:
    model = torch.load(f, weights_only=False)
test_loss = evaluate(test_data)
print(f"| End of training | test loss {test_loss:5.2f} | test ppl {math.exp(test_loss):8.2f}")
