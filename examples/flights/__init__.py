"""The demonstration: a year of flights is processed by queue workers and by Spark, some of which are killed.

python -m examples.flights
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The checkout, where the processes of the demonstration find this package."""
