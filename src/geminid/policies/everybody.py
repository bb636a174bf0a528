"""All jobs as rows of a view: those that it shows, and those that wait behind others (``ClusterView.behind``)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from geminid.policies.base import ClusterView
from geminid.policies.geminid_objective import rank
from geminid.policies.remaining import first_come

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Everybody:
    """Everybody in the order of arrival: ``rows`` are the rows of the jobs, or of those that stand for them.

    ``places`` says for every row of the view at which place of that order its own job is.
    """

    rows: NDArray[np.intp]
    places: NDArray[np.intp]

    @classmethod
    def of(cls, view: ClusterView) -> Everybody:
        """Everybody of a view."""
        shown = np.arange(len(view.jobs))
        counts = np.array([len(view.behind.get(job.id, ())) for job in view.jobs], dtype=np.intp)
        if not counts.any():
            return cls(shown, shown)
        rows = np.concatenate([shown, np.repeat(shown, counts)])
        submitted_s = np.concatenate(
            [
                np.array([job.facts.submitted_s for job in view.jobs]),
                *(np.asarray(view.behind[job.id], dtype=float) for job in view.jobs if job.id in view.behind),
            ]
        )
        order = np.argsort(submitted_s, kind="stable")
        places = np.empty(len(rows), dtype=np.intp)
        places[order] = np.arange(len(rows))
        return cls(rows[order], places[: len(shown)])

    def ranks(self, left_s: Array) -> Array:
        """The ranks of the view's jobs among all, by the time that they have left."""
        if len(self.rows) == len(self.places):
            return rank(left_s)
        # Those behind have as much left as those that stand for them, but for having come later.
        alike_s = (left_s / first_come(self.places))[self.rows] * first_come(np.arange(len(self.rows)))
        alike_s[self.places] = left_s
        return rank(alike_s)[self.places]
