"""One job's workers.

Pure: ``protocol`` (messages), ``group`` (membership), ``hangs``, ``failures``, and ``state``, the state machine that
uses them; ``inputs`` and ``instructions`` are its events and results, ``events`` what a supervisor reports.
I/O: ``supervisor`` (the interface), ``loop`` (its thread), ``processes``, ``connections`` and ``handover``.
"""
