"""A worker that never speaks to its supervisor: a test speaks in its place, with its token."""

import time

time.sleep(600)
