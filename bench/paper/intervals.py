"""Bootstrap intervals of means and of paired differences."""

import numpy as np

RESAMPLES = 4000
SEED = 20240117


def mean_interval(values) -> list[float]:
    """95 % interval of the mean."""
    values = np.asarray(values, dtype=np.float64)
    chosen = np.random.default_rng(SEED).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.percentile(values[chosen].mean(axis=1), [2.5, 97.5])
    return [round(float(low), 5), round(float(high), 5)]


def difference(first, second) -> dict:
    """Mean of first - second over rows in pairs, with its 95 % interval."""
    values = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    return {"mean": round(float(values.mean()), 5), "ci95": mean_interval(values)}
