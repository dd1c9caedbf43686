"""The coefficients of the precursor model. Written by `benchmarks/fleets/fit.py`; not edited by hand."""

HORIZON_H = 48.0
ALARM = 0.3
BIAS = -4.755
WEIGHTS = (
    0.0,  # corrected_errors_level
    1.518,  # corrected_errors_rise
    1.543,  # remapped_rows_level
    0.0,  # remapped_rows_rise
    1.105,  # hot_hours_level
    0.0,  # hot_hours_rise
    0.025,  # link_errors_level
    1.014,  # link_errors_rise
    2.694,  # contained_xids_level
    0.0,  # contained_xids_rise
)
