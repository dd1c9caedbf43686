"""Kinds of healthy training that were made after the thresholds of the detectors were frozen: a third of all. No threshold was changed for them."""

from __future__ import annotations

import math

import torch
from scripts.curves.training import Kind, Said, Steps, Teacher, Trouble, adam, constant, descend, fit, mlp, pictures, sgd
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, mse_loss, normalize, one_hot


def one_cycle(steps: int, trouble: Trouble) -> Steps:
    """The learning rate goes up twentyfold over the first half, and down to nothing over the second."""
    teacher, model = Teacher(), mlp(20, 64, 64, 10)

    def rate(step: int) -> float:
        return 0.01 + 0.19 * 0.5 * (1 - math.cos(2 * math.pi * step / steps))

    return fit(model, lambda step: teacher.batch(64), cross_entropy, steps=steps, optimizer=sgd(model), rate=rate, trouble=trouble)


def contrastive(steps: int, trouble: Trouble) -> Steps:
    """InfoNCE: two noisy views of a picture are to be nearer to each other than to those of the others."""
    model = mlp(64, 64, 16)
    optimizer, parameters = adam(model), list(model.parameters())
    for _ in range(steps):
        seen = pictures(32)[0].flatten(1)
        one, other = (normalize(model(seen + 0.3 * torch.randn_like(seen)), dim=1) for _ in range(2))
        loss = cross_entropy(one @ other.T / 0.2, torch.arange(32))
        yield (Said(loss.item(), descend(optimizer, loss, parameters), 1e-3),)


def mixed_up(steps: int, trouble: Trouble) -> Steps:
    """Mixup and label smoothing: the loss ends far from nothing, and is noisy."""
    model = nn.Sequential(nn.Flatten(), mlp(64, 64, 16))

    def batch(step: int) -> tuple[Tensor, Tensor]:
        x, y = pictures(32)
        share, order = torch.distributions.Beta(0.4, 0.4).sample(), torch.randperm(32)
        wanted = 0.9 * one_hot(y, 16) + 0.1 / 16
        return share * x + (1 - share) * x[order], share * wanted + (1 - share) * wanted[order]

    return fit(model, batch, cross_entropy, steps=steps, optimizer=sgd(model), rate=constant(0.05), trouble=trouble)


def distillation(steps: int, trouble: Trouble) -> Steps:
    """A small network learns from the outputs of a larger one, which was trained before, without being watched."""
    teacher, large, small = Teacher(), mlp(20, 128, 10), mlp(20, 24, 10)
    for _ in fit(large, lambda step: teacher.batch(64), cross_entropy, steps=400, optimizer=adam(large), rate=constant(3e-3)):
        pass
    optimizer, parameters = adam(small, 2e-3), list(small.parameters())
    for _ in range(steps):
        x, y = teacher.batch(64)
        with torch.no_grad():
            soft = (large(x) / 2).softmax(1)
        told = small(x)
        loss = 0.3 * cross_entropy(told, y) + 0.7 * 4 * kl_div((told / 2).log_softmax(1), soft, reduction="batchmean")
        yield (Said(loss.item(), descend(optimizer, loss, parameters), 2e-3),)


def diffusion(steps: int, trouble: Trouble) -> Steps:
    """Denoising of points on a ring, as much noise as chance will have it: the loss falls for a moment, and then hardly at all."""
    model = mlp(4, 64, 64, 2)

    def batch(step: int) -> tuple[Tensor, Tensor]:
        angle, time = 2 * math.pi * torch.rand(64), torch.rand(64, 1)
        clean, noise = 2 * torch.stack([angle.cos(), angle.sin()], 1), torch.randn(64, 2)
        kept, added = (time * math.pi / 2).cos(), (time * math.pi / 2).sin()
        return torch.cat([kept * clean + added * noise, kept, added], 1), noise

    return fit(model, batch, mse_loss, steps=steps, optimizer=adam(model), rate=constant(2e-3), trouble=trouble)


def by_equation(steps: int, trouble: Trouble) -> Steps:
    """A network that is to solve u'' = -9 u with u(0) = 0 and u'(0) = 3: the loss holds its second derivatives."""
    model = mlp(1, 32, 32, 1, between=nn.Tanh)
    optimizer, parameters = adam(model, 2e-3), list(model.parameters())
    for _ in range(steps):
        x = torch.cat([torch.zeros(1, 1), 2 * torch.rand(48, 1)]).requires_grad_()
        u = model(x)
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (bend,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
        loss = (bend + 9 * u).pow(2).mean() + 10 * u[0, 0] ** 2 + 10 * (slope[0, 0] - 3) ** 2
        yield (Said(loss.item(), descend(optimizer, loss, parameters), 2e-3),)


def growing_batches(steps: int, trouble: Trouble) -> Steps:
    """Batches of 4, then 16, 64 and 256: with each the noise halves."""
    teacher, model = Teacher(), mlp(20, 64, 64, 10)
    return fit(
        model, lambda step: teacher.batch(4 ** (1 + 4 * step // steps)), cross_entropy, steps=steps, optimizer=adam(model), rate=constant(1e-3), trouble=trouble
    )


def sums_on_a_clock(steps: int, trouble: Trouble) -> Steps:
    """Addition modulo 29, six tenths of all sums in every step, with much weight decay: the loss falls by five powers of ten."""
    pairs = torch.cartesian_prod(torch.arange(29), torch.arange(29))
    pairs = pairs[torch.randperm(len(pairs))[:500]]
    model = nn.Sequential(nn.Embedding(29, 24), nn.Flatten(), mlp(48, 96, 29))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1.0, betas=(0.9, 0.98), fused=True)
    return fit(model, lambda step: (pairs, pairs.sum(1) % 29), cross_entropy, steps=steps, optimizer=optimizer, rate=constant(2e-3), trouble=trouble)


def actor_and_critic(steps: int, trouble: Trouble) -> Steps:
    """Walkers on a line that are to stay near its middle: one loss for what they do, what they expect and how undecided they are."""
    actor, critic = mlp(1, 32, 3, between=nn.Tanh), mlp(1, 32, 1, between=nn.Tanh)
    both = nn.ModuleList([actor, critic])
    optimizer, parameters, place = adam(both, 3e-3), list(both.parameters()), 4 * torch.rand(32, 1) - 2
    for _ in range(steps):
        logits, expected = actor(place).log_softmax(1), critic(place)[:, 0]
        way = torch.multinomial(logits.detach().exp(), 1)
        after = (place + 0.3 * (way - 1) + 0.1 * torch.randn_like(place)).clamp(-3, 3)
        with torch.no_grad():
            gained = 0.9 * critic(after)[:, 0] - after[:, 0].abs()
        ahead = gained - expected
        loss = -(logits.gather(1, way)[:, 0] * ahead.detach()).mean() + 0.5 * ahead.pow(2).mean() + 0.01 * (logits.exp() * logits).sum(1).mean()
        yield (Said(loss.item(), descend(optimizer, loss, parameters), 3e-3),)
        place = torch.where(torch.rand(32, 1) < 0.05, 4 * torch.rand(32, 1) - 2, after)


LAST = (
    Kind(name="one cycle", train=one_cycle),
    Kind(name="contrastive", train=contrastive),
    Kind(name="mixed up", train=mixed_up),
    Kind(name="distillation", train=distillation),
    Kind(name="diffusion", train=diffusion),
    Kind(name="by equation", train=by_equation, steps=1500, paces=(1, 2)),
    Kind(name="growing batches", train=growing_batches),
    Kind(name="sums on a clock", train=sums_on_a_clock),
    Kind(name="actor and critic", train=actor_and_critic),
)
