"""The same training with actors on a Ray cluster: one learner, many processes that act.

`settings` is what can be told, `actor` the process that acts, `crew` the actors as the learner sees
them, `program` what learns from them, and `learner` the process that does. `run` is for whoever
asks for a run: it finds or starts a cluster (`here`) and the learner on it, and shows how it goes
(`display`). Acting and learning themselves are those of `training.host`.
"""
