"""Pictures: whether one can be drawn, an empty one, and its file. matplotlib is used if it is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError, UserError


def drawable(png: Path) -> None:
    """Refuses what could not be drawn, before anything is computed."""
    import importlib.util

    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("--png draws with matplotlib, which is not installed here: pip install 'holdfast[plots]'; without --png the plots are in the terminal")
    if not png.absolute().parent.is_dir():
        raise UserError(f"--png {png}: there is no directory {png.absolute().parent}; make it, or name another file")
    if png.is_dir():
        raise UserError(f"--png {png} is a directory; name a file in it")


def empty(width: float, height: float, title: str) -> Any:
    """In inches, without pyplot, which would choose a window system."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    return figure


def save(figure: Any, path: Path) -> None:
    try:
        figure.savefig(path, format="png", dpi=120)
    except OSError as error:
        raise HoldfastError(f"{path} cannot be written: {error.strerror or error}") from error
