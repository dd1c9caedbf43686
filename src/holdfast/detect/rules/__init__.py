"""Rules a person writes: YAML in, findings out, and the same again for Prometheus.

rule.py         what a rule is
units.py        30s, 4GiB, 90 %: read and written
document.py     YAML with line numbers
reading.py      text to rules, or to problems with file, line and the nearest valid name
evaluate.py     rules over series: pending, firing, ended
conditions.py   what one condition is worth, for all series at once
cases.py        rule tests: series in short notation, and what must fire when
prometheus.py   rules and their tests as files of Prometheus and promtool
pack/           the rules that come with Holdfast
"""
