"""What a training loop imports: `guard` and `Sampler`. Standard library only until torch is there to be used."""

from holdfast.trainer.guard import guard
from holdfast.trainer.sampler import Sampler

__all__ = ["Sampler", "guard"]
