"""The campaign: chaos in a cluster, fuzzed input, a soak, hostile servers, strangers with printed rights. One report.

`python3 noxfile.py campaign -- --minutes 10 --seeds 3` runs it. Each part is a module with `run`, which returns an
`Outcome` for each kind of thing that it tried. A run is repeated by its seed.
"""
