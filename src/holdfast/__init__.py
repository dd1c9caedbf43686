"""Holdfast keeps AI training running.

    run = holdfast.guard(model=model, optimizer=optimizer)     # what must survive; restores it
    for step in run.steps(1000):                               # goes on where it stopped

`guard` names the state and restores it, `Sampler` gives a data order that can be stopped anywhere, `gauge` watches a number of your own. Importing this
opens nothing, starts nothing, and loads nothing: the names are fetched when they are first used, since agent and control import this package too.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.trainer import Sampler, gauge, guard

__version__ = "0.1.0"

__all__ = ["Sampler", "__version__", "gauge", "guard"]


def __getattr__(name: str) -> object:
    if name in ("Sampler", "gauge", "guard"):
        from holdfast import trainer

        return getattr(trainer, name)
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}; it has {', '.join(__all__)}")
