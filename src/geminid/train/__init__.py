"""The training library: what scripts import, and what runs in every worker.

=======================  ==========================================================================================
``run``                  ``geminid.init`` and the ``Run`` that it returns (``view``, ``arguments``, ``script_end``)
``session`` ``worker``   the parts behind it, put together; what they share
``loop`` ``boundary``    the loop over batches or steps, and what happens between two steps
``step`` ``gradients``   the optimiser step under way; gradients summed over passes and averaged over workers
``agreement``            what workers send each other along with the gradients (``fingerprint``: what must be the same)
``choosing`` ``tuner``   how to train: batch plan, learning rates, noise interval; finding the best plan
``membership``           joining a group (``rendezvous``, ``peers``) and getting its state (``state_transfer``)
``collectives``          what all workers do together between steps
``progress``             how far training is, and what is due
``trainstate``           everything that is saved and sent (``state_codec``, ``rng``)
``saving`` ``storage``   when checkpoints are written, and where (``checkpoint``: the file)
``data`` ``sampler``     one global order of samples, and each worker's share of a step (``shares``, ``indexed``)
``norms``                the gradient noise, measured while training (``measuring_cost``)
``optim`` ``several``    the user's optimisers, loss scaler and schedules, adapted to changing batch plans
``trained_parts``        what is trained, checked; ``outsiders`` finds what was left out, ``averaging`` keeps averages
``agent``                the connection to the supervisor (``orders``, ``activity``, ``watching``; ``shutdown``)
``integrations``         training frameworks made elastic
``profiling``            runs a script on changing slots and batch plans, and fits the goodput model
=======================  ==========================================================================================
"""
