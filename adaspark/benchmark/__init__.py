"""Measuring arms against each other: conversations of a file, replies that loop, ratios with intervals, a quiet machine.

``adaspark-run bench`` and the programs of ``bench/`` share it.
"""
