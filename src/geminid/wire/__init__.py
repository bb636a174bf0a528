"""How processes of ours talk: typed messages as lines of JSON, one connection class, one loop that serves them."""
