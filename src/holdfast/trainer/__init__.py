"""What a training loop imports: `guard`, `Sampler` and `gauge`. Standard library only until torch is there to be used."""

from holdfast.trainer.guard import guard
from holdfast.trainer.own_numbers import gauge
from holdfast.trainer.sampler import Sampler

__all__ = ["Sampler", "gauge", "guard"]
