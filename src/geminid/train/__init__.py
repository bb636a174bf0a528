"""Training with PyTorch: real processes, real gradients, real clocks.

=====================  ===================================================================================
``models``             a small model and data that it can learn, for measuring and demonstrating
``worker``             one data-parallel worker process; the only module here that trains
``workers``            starts worker processes, gives them orders, and ends them
``measure``            has workers train, and collects step times and gradient norms
``study``              fits the goodput model to measurements and checks it on those it was not shown
=====================  ===================================================================================

Only ``models`` and ``worker`` import PyTorch, so the others load quickly and without it.
"""
