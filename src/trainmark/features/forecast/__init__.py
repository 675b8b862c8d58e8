"""Forecasts a training at sizes that were not run: speed, time, energy and cost, with intervals."""
