"""Where jobs run: one executor for all engines, and a provider of nodes and slots for each engine.

- The service asks an ``Executor`` (``base.py``) to run jobs on slots, and gets records of what happens.
- ``AgentExecutor`` (``executor.py``) is the only one. ``reconcile.py`` decides what to do next for a job; elastic jobs
  (``elasticjob.py``) have a supervisor, plain commands (``plainjob.py``, ``commands.py``) have none.
- A ``NodeProvider`` (``provider.py``) is what differs between engines: ``local.py`` is this machine, ``ray`` a cluster.
- ``nodepool.py`` keeps the nodes, and ``agents.py`` starts processes on them through their agents (``geminid.node``).
- ``takeover.py`` continues with jobs that an earlier service started.
"""
