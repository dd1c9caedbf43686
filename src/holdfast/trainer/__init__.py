"""What a training loop imports: `guard`, `rejoin`, `Sampler`, `Stream`, `gauge` and `tune`. Standard library only until torch is there to be used."""

from holdfast.trainer.guard import guard
from holdfast.trainer.own_numbers import gauge
from holdfast.trainer.sampler import Sampler
from holdfast.trainer.tuning import tune

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.trainer.rejoining import rejoin
    from holdfast.trainer.stream import Stream

__all__ = ["Sampler", "Stream", "gauge", "guard", "rejoin", "tune"]


def __getattr__(name: str) -> object:
    if name == "Stream":  # A data set of torch's, so that asking for it brings torch.
        from holdfast.trainer.stream import Stream

        return Stream
    if name == "rejoin":
        from holdfast.trainer.rejoining import rejoin

        return rejoin
    raise AttributeError(f"module 'holdfast.trainer' has no attribute {name!r}")
