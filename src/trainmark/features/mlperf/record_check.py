"""Whether a run of an MLPerf recipe converged as its reference runs do."""

from trainmark.features.mlperf.convergence import check_convergence as check

__all__ = ["check"]
