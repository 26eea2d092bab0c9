"""Training with actors on a Ray cluster: one learner, many actor processes.

The actors of a run on one machine are swapped for remote ones, and nothing else: acting and
learning are the parts of `training.host` and `training.r2d2`.

| file | holds |
|---|---|
| `settings.py` | the options |
| `actor.py` | an actor process: a share of the lanes, with the collector of one machine |
| `inference.py` | a process that evaluates the network for all actors, if they don't themselves |
| `actor_group.py` | the actors for the learner: requests, replies, replacements |
| `trainer.py` | the trainer: learns from an actor group |
| `learner.py` | the process that runs it |
| `run.py` | the driver: starts the learner, and shows its progress (`display.py`) |
| `local_cluster.py` | finds, starts and ends a cluster on this machine (`guard.py`) |
"""
