"""Batch plans while training: what is measured on several nodes is known to be."""

from geminid.goodput.batchplan import BatchLimits
from geminid.goodput.efficiency import GradientStats
from geminid.supervise.protocol import Plan
from geminid.train.group_view import Layout
from geminid.train.tuner import StepTimes, Tuner


def test_how_slots_lie_is_counted_from_the_hosts_of_workers():
    assert Layout.of([7, 8, 8, 9, 8]) == Layout(slots=5, nodes=3, busiest=3)
    assert Layout.of([4, 4]) == Layout(2, 1, 2)
    assert Layout(3).busiest_node_slots == 3


def test_a_slow_network_between_nodes_asks_for_larger_batches_there_than_on_one_node():
    tuner = Tuner(BatchLimits(initial=32, largest=2048, smallest_per_slot=4, largest_per_slot=256))
    for batch in (16, 32, 64, 128):
        compute_s = 0.002 * batch
        one, two = Layout(2, 1, 2), Layout(2, 2, 1)
        tuner.observe(Layout(), Plan(batch), StepTimes(9, compute_s, compute_s))
        tuner.observe(one, Plan(batch), StepTimes(9, compute_s, compute_s + 0.001))
        tuner.observe(two, Plan(batch), StepTimes(9, compute_s, compute_s + 0.5))
    noise = GradientStats(squared_gradient=1.0, variance=4.0)
    near, far = tuner.first_plan(one, noise), tuner.first_plan(two, noise)
    assert near.per_slot_batch * (near.accumulation_steps + 1) < far.per_slot_batch * (far.accumulation_steps + 1)
