"""What stands on every machine that runs jobs: an agent that starts processes, watches them and passes logs on."""
