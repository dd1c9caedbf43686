"""The control process: journal, effects, observer. Everything it decides is decided in `holdfast.core`."""
