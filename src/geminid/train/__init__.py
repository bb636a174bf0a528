"""Training with PyTorch: real processes, real gradients, real clocks.

What training scripts use:

=====================  ===================================================================================
``run``                ``geminid.init`` and the run it returns
``session``            training in one worker: which samples come next, what happens between steps
``agreement``          what workers tell each other along with the gradients, so that all do the same
``membership``         being in a group: taking a place, having the same state as everybody
``trainstate``         everything that training goes on from
``data`` ``shares``    one global order of samples, divided over workers and passes
``gradients``          summed over passes, averaged over workers
``norms``              the gradient noise, measured on the way
``optim`` ``tuner``    the user's optimiser, scaler and schedule under changing batch plans; choosing them
``peers``              forming process groups inside running processes, handing state over
``checkpoint``         state on disk: atomic, checked, never unpickled (``state_codec``, ``rng``)
=====================  ===================================================================================

What schedulers use (``docs/worker-protocol.md``); none of it imports PyTorch:

=====================  ===================================================================================
``messages``           what supervisor and workers say to each other
``channel`` ``agent``  the line between them, and a worker's end of it
``group``              who belongs to a job's group of workers: decisions only
``launcher``           starting and watching processes; ``zygote``: forked from a warm one
``supervisor``         one job: its workers, its rescales, its failures (``jobevents``)
``profiling``          runs a script on changing slots and batch plans, and fits the goodput model
=====================  ===================================================================================
"""
