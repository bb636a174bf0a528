"""How processes are started, watched and ended: the same for workers, plain commands and agents."""
