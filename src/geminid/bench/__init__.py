"""The claims about accuracy and speed, as commands that print ratios measured in the same run."""
