"""Test doubles and temporary installations, for people who write policies, executors or node providers.

Geminid's own tests and benchmarks use them too. Importing this package loads none of the modules.

===================================  ===========================================================================
``clock``                            ``ManualClock``: time that moves only when a test moves it
``waiting``                          ``wait_until``: poll a condition, and fail with a sentence after a timeout
``policies``                         ``ScriptedPolicy``: decides whatever a test says
``applications``                     a made-up application with simple step times, for simulations
``executor``                         ``PretendExecutor``: an executor that starts nothing and reports success at once
``launcher``                         ``PretendLauncher``: a launcher of workers that starts no process
``ray_doubles``                      what a Ray executor talks to (bridge, agents, supervisor), without Ray
``ray_cluster``                      ``LoopbackCluster``: a real Ray cluster of several nodes on this machine
``browser``                          ``chromium_program``: the browser of this machine, to drive the web page with
``service``                          ``temporary_service``: a real service in a temporary home, which leaves nothing
``processes``                        finding and cleaning up processes that a test started
``scripts/pretended_accelerator.py``  a real training job whose computation is a sleep
===================================  ===========================================================================
"""
