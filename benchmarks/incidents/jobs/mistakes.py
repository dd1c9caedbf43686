"""A training with one mistake in it, chosen by name: what people write by accident, and what Python and torch then say."""

from __future__ import annotations

import json
import os

import torch
from torch import nn

(CHOSEN,) = json.loads(os.environ["JOB"])  # Not from the command line, which a log may quote.


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.embed = nn.Embedding(10, 16)
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        if CHOSEN == "attribute":
            return self.haed(self.first(x))
        if CHOSEN == "matmul":
            return self.head(x)
        if CHOSEN == "broadcast":
            return self.first(x) + torch.zeros(7)
        if CHOSEN == "view":
            return self.head(self.first(x)).view(-1, 7)
        if CHOSEN == "cat":
            return torch.cat([self.first(x), torch.zeros(3, 9)], dim=0)
        if CHOSEN == "conv":
            return nn.Conv2d(3, 8, 3)(x.reshape(-1, 1, 4, 4))
        if CHOSEN == "dtype":
            return self.head(self.first(x.double()))
        if CHOSEN == "embedding":
            return self.head(self.first(self.embed(torch.tensor([1, 12]))))
        if CHOSEN == "gather":
            return self.head(self.first(x)).gather(1, torch.full((x.shape[0], 1), 9))
        if CHOSEN == "dimension":
            return self.head(self.first(x)).mean(dim=3)
        if CHOSEN == "none":
            hidden = self.first(x) if x.mean() > 1e9 else None
            return hidden.relu()
        return self.head(self.first(x))


def batch(step):
    torch.manual_seed(step)
    x, y = torch.randn(8, 16), torch.randint(0, 4, (8,))
    if CHOSEN == "target" and step == 12:
        y[3] = 11
    if CHOSEN == "batch_size" and step == 12:
        y = y[:6]
    if CHOSEN == "stack" and step == 12:
        x = torch.stack([x[0], x[1][:5]])
    if CHOSEN == "list" and step == 12:
        return [x, y][2]
    if CHOSEN == "unpack" and step == 12:
        return x, y, step
    return x, y


def metrics(loss, history):
    if CHOSEN == "key" and len(history) == 12:
        return {"loss": loss}["accuracy"]
    if CHOSEN == "zero" and len(history) == 12:
        return loss / (len(history) - 12)
    if CHOSEN == "name" and len(history) == 12:
        return learning_rate * loss  # noqa: F821
    if CHOSEN == "types" and len(history) == 12:
        return "loss: " + loss
    if CHOSEN == "recursion" and len(history) == 12:
        return metrics(metrics(loss, history), history)
    if CHOSEN == "unbound" and len(history) == 12:
        if loss < -1:
            best = loss
        return best
    return loss


def main():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01) if CHOSEN != "keyword" else torch.optim.SGD(model.parameters(), learning_rate=0.01)
    if CHOSEN == "empty":
        optimizer = torch.optim.SGD([], lr=0.01)
    if CHOSEN == "negative":
        optimizer = torch.optim.SGD(model.parameters(), lr=-0.5)
    history = []
    for step in range(30):
        x, y = batch(step)
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
        if CHOSEN == "detached":
            loss = loss.detach()
        if CHOSEN == "callable":
            loss = loss.shape(0)
        if CHOSEN == "assertion" and step == 12:
            assert out.shape[1] == 7, "the head must have one output for each of the 7 labels"
        if CHOSEN == "inplace":
            hidden = torch.sigmoid(out)
            hidden += 1
            loss = hidden.sum()
        loss.backward()
        if CHOSEN == "twice":
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        history.append(metrics(loss.item(), history))
        if step % 4 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if CHOSEN == "json" and step == 12:
            print(json.dumps({"weights": model.head.weight}))
        if CHOSEN == "not_implemented" and step == 12:
            raise NotImplementedError("evaluation of more than one head")
    print("Training completed.")


if __name__ == "__main__":
    main()
