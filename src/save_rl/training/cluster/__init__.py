"""The same training with actors on a Ray cluster: one learner, many processes that act.

`settings` is what can be told, `actor` the process that acts, `crew` the actors as the learner sees
them, and `program` the learner. Acting and learning themselves are those of `training.host`.
"""
