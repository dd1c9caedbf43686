"""Kinds of healthy training that were there while the thresholds of the detectors could still change: two thirds of all."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from scripts.curves.training import (
    FAULTS,
    GRADIENTS,
    LABELS,
    RATE,
    Kind,
    Said,
    Steps,
    Teacher,
    Trouble,
    adam,
    constant,
    descend,
    fit,
    mlp,
    norm_of,
    pictures,
    sgd,
    warm_cosine,
)  # fmt: skip
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss


def warm_up_and_cosine(steps: int, trouble: Trouble) -> Steps:
    teacher, model = Teacher(), mlp(20, 64, 64, 10)
    rate = warm_cosine(5e-3, steps // 10, steps)
    return fit(model, lambda step: teacher.batch(64), cross_entropy, steps=steps, optimizer=adam(model), rate=rate, trouble=trouble)


def step_decay(steps: int, trouble: Trouble) -> Steps:
    """A convolutional network with batch norm: the loss falls in stairs."""
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 16)
    )
    return fit(
        model, lambda step: pictures(32), cross_entropy, steps=steps, optimizer=sgd(model), rate=lambda step: 0.05 * 0.1 ** (3 * step // steps), trouble=trouble
    )


def warm_restarts(steps: int, trouble: Trouble) -> Steps:
    """SGDR: the learning rate falls to nothing and begins anew, each time for twice as long."""
    teacher, model = Teacher(), mlp(20, 64, 64, 10)

    def rate(step: int) -> float:
        length = steps // 15
        while step >= length:
            step, length = step - length, 2 * length
        return 1e-3 + 0.15 * (1 + math.cos(math.pi * step / length))

    return fit(model, lambda step: teacher.batch(64), cross_entropy, steps=steps, optimizer=sgd(model), rate=rate, trouble=trouble)


def curriculum(steps: int, trouble: Trouble) -> Steps:
    """Points far from the border between classes first, then nearer ones, then all: the loss jumps up with each lesson."""
    teacher, model = Teacher(inputs=8, classes=4), mlp(8, 64, 64, 4)

    def batch(step: int) -> tuple[Tensor, Tensor]:
        x, y = teacher.batch(256)
        margins = teacher.net(x).topk(2).values
        easiest = (margins[:, 1] - margins[:, 0]).argsort()
        kept = easiest[: (32, 96, 256)[3 * step // steps]]
        kept = kept[torch.randperm(len(kept))[:32]]
        return x[kept], y[kept]

    return fit(model, batch, cross_entropy, steps=steps, optimizer=adam(model), rate=constant(2e-3), trouble=trouble)


def batches_of_one(steps: int, trouble: Trouble) -> Steps:
    teacher, model = Teacher(inputs=8, classes=4), mlp(8, 32, 4)
    return fit(model, lambda step: teacher.batch(1), cross_entropy, steps=steps, optimizer=sgd(model, momentum=0.0), rate=constant(0.02), trouble=trouble)


def heavy_tails(steps: int, trouble: Trouble) -> Steps:
    """Regression with noise that has no variance: now and then one sample makes the loss of its batch a hundred times as large."""
    truth, model = mlp(10, 16, 1, between=nn.Tanh), mlp(10, 64, 1)
    noise = torch.distributions.StudentT(1.5)

    def batch(step: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(64, 10)
        return x, 10 * truth(x).detach() + 0.3 * noise.sample((64, 1))

    return fit(model, batch, mse_loss, steps=steps, optimizer=adam(model), rate=constant(2e-3), trouble=trouble, clip=5.0)


def adversaries(steps: int, trouble: Trouble) -> Steps:
    """A small GAN on a ring of eight spots. Neither loss comes down for good."""
    maker, judge = mlp(8, 64, 64, 2), mlp(2, 64, 64, 1)
    makes, judges = (torch.optim.Adam(one.parameters(), lr=1e-3, betas=(0.5, 0.9), fused=True) for one in (maker, judge))
    real, made = torch.ones(64, 1), torch.zeros(64, 1)
    for _ in range(steps):
        angle = torch.randint(8, (64,)) * math.pi / 4
        seen = torch.stack([angle.cos(), angle.sin()], 1) * 2 + 0.05 * torch.randn(64, 2)
        fake = maker(torch.randn(64, 8))
        judged = binary_cross_entropy_with_logits(judge(seen), real) + binary_cross_entropy_with_logits(judge(fake.detach()), made)
        judged_norm = descend(judges, judged, list(judge.parameters()))
        fooled = binary_cross_entropy_with_logits(judge(fake), real)
        fooled_norm = descend(makes, fooled, list(maker.parameters()))
        yield Said(fooled.item(), fooled_norm, 1e-3), Said(judged.item(), judged_norm, 1e-3)


def reinforce(steps: int, trouble: Trouble) -> Steps:
    """REINFORCE for sixteen walkers in a plane that are to find its middle. The loss means little; the second curve is the return, its sign changed."""
    policy = mlp(2, 32, 4, between=nn.Tanh)
    optimizer, ways = adam(policy, 3e-3), torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    for _ in range(steps):
        place, seen, went, rewards = 4 * torch.rand(16, 2) - 2, [], [], []
        for _ in range(8):
            with torch.no_grad():
                way = torch.multinomial(policy(place).softmax(1), 1)[:, 0]
            seen.append(place)
            went.append(way)
            place = place + 0.5 * ways[way] + 0.1 * torch.randn(16, 2)
            rewards.append(-place.norm(dim=1))
        reward = torch.stack(rewards)
        to_go = reward.flip(0).cumsum(0).flip(0)
        chosen = policy(torch.stack(seen)).log_softmax(2).gather(2, torch.stack(went)[..., None])[..., 0]
        loss = -(chosen * (to_go - to_go.mean())).mean()
        norm = descend(optimizer, loss, list(policy.parameters()))
        yield Said(loss.item(), norm, 3e-3), Said(-reward.sum(0).mean().item(), norm, 3e-3)


class Poles:
    """Poles on carts, many at once, each begun anew when it fell: the equations are those of Barto, Sutton and Anderson (1983)."""

    def __init__(self, many: int) -> None:
        self.state = 0.1 * torch.rand(many, 4) - 0.05

    def push(self, right: Tensor) -> Tensor:
        """Push each cart, and say which poles fell."""
        x, dx, angle, turn = self.state.unbind(1)
        force, sin, cos = torch.where(right.bool(), 10.0, -10.0), angle.sin(), angle.cos()
        pulled = (force + 0.05 * turn**2 * sin) / 1.1
        turning = (9.8 * sin - cos * pulled) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        moving = pulled - 0.05 * turning * cos / 1.1
        self.state = torch.stack([x + 0.02 * dx, dx + 0.02 * moving, angle + 0.02 * turn, turn + 0.02 * turning], 1)
        return (self.state[:, 0].abs() > 2.4) | (self.state[:, 2].abs() > 0.21)

    def restart(self, which: Tensor) -> None:
        self.state = torch.where(which[:, None], 0.1 * torch.rand_like(self.state) - 0.05, self.state)


def deep_q(steps: int, trouble: Trouble) -> Steps:
    """Deep Q-learning with a target network that is renewed every 200 steps: the loss rises with each, and the gradient grows with the values."""
    values, target = mlp(4, 64, 64, 2), mlp(4, 64, 64, 2)
    optimizer, poles, size = adam(values, 1e-3), Poles(4), 4096
    before, after, pushed, over = torch.zeros(size, 4), torch.zeros(size, 4), torch.zeros(size, dtype=torch.long), torch.zeros(size)
    for step in range(steps):
        if step % 200 == 0:
            target.load_state_dict(values.state_dict())
        at = torch.arange(4 * step, 4 * step + 4) % size
        with torch.no_grad():
            greedy = values(poles.state).argmax(1)
        right = torch.where(torch.rand(4) < max(0.05, 1 - 3 * step / steps), torch.randint(2, (4,)), greedy)
        before[at], pushed[at] = poles.state, right
        fell = poles.push(right)
        after[at], over[at] = poles.state, fell.float()
        poles.restart(fell)
        some = torch.randint(min(size, 4 * step + 4), (64,))
        with torch.no_grad():
            wanted = 1 + 0.98 * (1 - over[some]) * target(after[some]).amax(1)
        loss = mse_loss(values(before[some]).gather(1, pushed[some][:, None])[:, 0], wanted)
        yield (Said(loss.item(), descend(optimizer, loss, list(values.parameters())), 1e-3),)


class Text:
    """Real text by character: the source of a module that every Python has."""

    def __init__(self) -> None:
        text = Path(argparse.__file__).read_text()
        letters = sorted(set(text))
        self.letters = len(letters)
        self._text = torch.tensor([letters.index(one) for one in text])

    def batch(self, size: int, length: int) -> tuple[Tensor, Tensor]:
        at = torch.randint(len(self._text) - length - 1, (size, 1)) + torch.arange(length + 1)
        return self._text[at][:, :-1], self._text[at][:, 1:]


def by_letter(logits: Tensor, wanted: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, 1), wanted.flatten())


class Transformer(nn.Module):
    def __init__(self, letters: int, length: int, width: int = 32) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(letters, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.layers, self.out = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(width, letters)
        self.mask = nn.Transformer.generate_square_subsequent_mask(length)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layers(self.letters(x) + self.places.weight, mask=self.mask, is_causal=True))


def language_model(steps: int, trouble: Trouble) -> Steps:
    """A transformer with dropout on real text."""
    text = Text()
    model = Transformer(text.letters, 16)
    rate = warm_cosine(3e-3, steps // 20, steps)
    return fit(model, lambda step: text.batch(8, 16), by_letter, steps=steps, optimizer=adam(model), rate=rate, trouble=trouble, clip=1.0)


class Recurrent(nn.Module):
    def __init__(self, letters: int, width: int = 48) -> None:
        super().__init__()
        self.letters, self.layer, self.out = nn.Embedding(letters, width), nn.GRU(width, width, batch_first=True), nn.Linear(width, letters)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(self.letters(x))[0])


def recurrent(steps: int, trouble: Trouble) -> Steps:
    """A recurrent network on real text, its gradient clipped."""
    text = Text()
    model = Recurrent(text.letters)
    return fit(model, lambda step: text.batch(8, 12), by_letter, steps=steps, optimizer=sgd(model), rate=constant(0.3), trouble=trouble, clip=0.5)


def fine_tuning(steps: int, trouble: Trouble) -> Steps:
    """Learned on one task, without being watched; then a new head for another one; and from the middle on all layers: the gradient grows at once."""
    teacher, body, head = Teacher(), mlp(20, 64, 64, 64), nn.Linear(64, 10)
    model = nn.Sequential(body, nn.ReLU(), head)
    for _ in fit(model, lambda step: teacher.batch(64), cross_entropy, steps=500, optimizer=adam(model), rate=constant(2e-3)):
        pass
    head.reset_parameters()
    body.requires_grad_(False)

    def batch(step: int) -> tuple[Tensor, Tensor]:
        x, y = teacher.batch(64)
        return x, (y + 3) % 7

    yield from fit(model, batch, cross_entropy, steps=steps // 2, optimizer=adam(head), rate=constant(2e-3), trouble=trouble)
    body.requires_grad_(True)
    yield from fit(model, batch, cross_entropy, steps=steps - steps // 2, optimizer=adam(model), rate=constant(1e-3), trouble=trouble)


def sources_in_turn(steps: int, trouble: Trouble) -> Steps:
    """Two sources of data, 150 steps of each in turn: one clean, one whose points are turned a little and every tenth of whose labels is drawn."""
    teacher, model = Teacher(inputs=8, classes=4), mlp(8, 64, 64, 4)
    way = 0.03 * torch.randn(8, 8)
    turned = torch.linalg.matrix_exp(way - way.T)

    def batch(step: int) -> tuple[Tensor, Tensor]:
        x, y = teacher.batch(32)
        if step // 150 % 2 == 0:
            return x, y
        return x @ turned, torch.where(torch.rand(32) < 0.1, torch.randint(4, (32,)), y)

    return fit(model, batch, cross_entropy, steps=steps, optimizer=adam(model), rate=constant(2e-3), trouble=trouble)


def half_precision(steps: int, trouble: Trouble) -> Steps:
    """Gradients really pass through 16 bits, with a loss scaler as torch has it: when one overflows, the norm is infinite and the step is skipped."""
    teacher, model = Teacher(), mlp(20, 64, 64, 10)
    optimizer, parameters, scale, good = adam(model, 2e-3), list(model.parameters()), 2.0**24, 0
    for _ in range(steps):
        x, y = teacher.batch(64)
        loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        for one in parameters:
            assert one.grad is not None
            one.grad = (one.grad * scale).half().float() / scale
        norm = norm_of(parameters)
        if math.isfinite(norm):
            optimizer.step()
            good += 1
            scale *= 2 if good % 100 == 0 else 1
        else:
            scale, good = scale / 2, 0
        yield (Said(loss.item(), norm, 2e-3),)


def edge_of_stability(steps: int, trouble: Trouble) -> Steps:
    """The whole of a small data set in every step, and a learning rate at which the curvature stays where it can just be borne: the loss swings as it falls."""
    x, model = torch.randn(64, 8), mlp(8, 48, 48, 1, between=nn.Tanh)
    y = torch.sin(2 * x[:, :1]) + x[:, 1:2] * x[:, 2:3]
    return fit(model, lambda step: (x, y), mse_loss, steps=steps, optimizer=sgd(model, momentum=0.0), rate=constant(0.12), trouble=trouble)


def variational(steps: int, trouble: Trouble) -> Steps:
    """A variational autoencoder. The weight of the divergence grows from nothing over the first half: the loss rises while all is well."""
    reads, draws = mlp(64, 64, 16), mlp(8, 64, 64)
    both = nn.ModuleList([reads, draws])
    optimizer, parameters = adam(both, 2e-3), list(both.parameters())
    for step in range(steps):
        seen = pictures(32)[0].flatten(1)
        mean, spread = reads(seen).chunk(2, dim=1)
        drawn = draws(mean + torch.randn_like(mean) * (spread / 2).exp())
        divergence = 0.5 * (mean**2 + spread.exp() - 1 - spread).sum(1).mean()
        loss = 2 * ((drawn - seen) ** 2).sum(1).mean() + min(1.0, 2 * step / steps) * divergence
        yield (Said(loss.item(), descend(optimizer, loss, parameters), 2e-3),)


def rounds(steps: int, trouble: Trouble) -> Steps:
    """A fixed set, shuffled in each round and learned by heart, with batch norm and dropout: the loss goes down a stair at the border of a round."""
    teacher = Teacher(inputs=20, classes=10)
    x, y = teacher.batch(800)
    model = nn.Sequential(nn.Linear(20, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))
    order = torch.randperm(800)

    def batch(step: int) -> tuple[Tensor, Tensor]:
        nonlocal order
        at = step % 25
        if at == 0:
            order = torch.randperm(800)
        some = order[32 * at : 32 * at + 32]
        return x[some], y[some]

    return fit(model, batch, cross_entropy, steps=steps, optimizer=sgd(model), rate=constant(0.05), trouble=trouble)


FIRST = (
    Kind(name="warm-up and cosine", train=warm_up_and_cosine, faults=FAULTS),
    Kind(name="step decay", train=step_decay, faults=FAULTS),
    Kind(name="warm restarts", train=warm_restarts, faults=FAULTS),
    Kind(name="curriculum", train=curriculum),
    Kind(name="batches of one", train=batches_of_one, steps=4000, paces=(2, 6)),
    Kind(name="heavy tails", train=heavy_tails, faults=FAULTS),
    Kind(name="adversaries", train=adversaries, curves=("of the maker", "of the judge")),
    Kind(name="REINFORCE", train=reinforce, steps=1300, paces=(1, 2), curves=("loss", "return, its sign changed")),
    Kind(name="deep Q-learning", train=deep_q, steps=3000),
    Kind(name="language model", train=language_model, steps=1500, paces=(1, 2), faults=(LABELS, RATE, GRADIENTS)),
    Kind(name="recurrent, clipped", train=recurrent, steps=1500, paces=(1, 2), faults=(LABELS, RATE, GRADIENTS)),
    Kind(name="fine-tuning", train=fine_tuning),
    Kind(name="sources in turn", train=sources_in_turn),
    Kind(name="half precision", train=half_precision),
    Kind(name="edge of stability", train=edge_of_stability),
    Kind(name="variational", train=variational),
    Kind(name="by heart, in rounds", train=rounds, faults=FAULTS),
)
