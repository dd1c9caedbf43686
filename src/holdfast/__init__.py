"""Holdfast keeps AI training running.

    run = holdfast.guard(model=model, optimizer=optimizer)     # what must survive; restores it
    for step in run.steps(1000):                               # goes on where it stopped

`guard` names the state and restores it, `Sampler` and `Stream` give data in an order that can be stopped anywhere, `gauge` watches a number of your own,
`rejoin` marks a function that may be called again when a rank was lost, `tune` asks for a value that a remedy or a bisection may change.
Importing this opens nothing, starts nothing, and loads nothing: the names are fetched when they are first used, since agent and control import this too.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.trainer import Sampler, Stream, gauge, guard, rejoin, tune

__version__ = "0.1.0"

__all__ = ["Sampler", "Stream", "__version__", "gauge", "guard", "rejoin", "tune"]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    if name in ("Sampler", "Stream", "gauge", "guard", "rejoin", "tune"):
        from holdfast import trainer

        return getattr(trainer, name)
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}; it has {', '.join(__all__)}")
