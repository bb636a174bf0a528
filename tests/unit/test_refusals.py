"""What is noted of refused requests."""

from geminid.serve import records as r
from geminid.serve.refusals import NOBODY, NOTED_PER_MINUTE, Refusals
from geminid.serve.state import MAX_NOTES, ServiceState


def test_a_flood_of_wrong_tokens_hides_no_user_and_fills_no_log():
    noted, minute = [], []
    refusals = Refusals(noted.append, minute.append)
    for _ in range(1000):
        refusals.refused(NOBODY, "401 for nobody")
    refusals.refused("ann", "403 for ann")
    assert noted == ["401 for nobody"] * NOTED_PER_MINUTE + ["403 for ann"]
    assert len(minute) == 2
    while minute:  # it is over
        minute.pop()()
    assert noted[-1] == f"{1000 - NOTED_PER_MINUTE} more requests of nobody refused within a minute"
    assert len(noted) == NOTED_PER_MINUTE + 2
    refusals.refused(NOBODY, "401 again")
    assert noted[-1] == "401 again"
    refusals.close()
    assert noted[-1] == "401 again"  # nothing was only counted


def test_what_is_audited_hides_no_alert():
    state = ServiceState()
    state.apply(1, 0.0, r.Noted(level="alert", text="look at this"))
    for number in range(2 * MAX_NOTES):
        state.apply(2 + number, 1.0, r.Noted(level="audit", text="401 for nobody"))
    assert state.notes == ((0.0, "alert", "look at this"),)
