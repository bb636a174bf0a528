"""The engine: a pure state machine. Events go in, commands come out; it owns no clock, thread, socket or file."""
