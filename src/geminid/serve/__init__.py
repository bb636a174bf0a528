"""The live scheduler: a service around the engine, its store, its interface and its executors."""
