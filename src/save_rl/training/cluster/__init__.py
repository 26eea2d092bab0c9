"""Training with actors on a Ray cluster: one learner, many actor processes.

`settings` are the options, `actor` is the actor process, `crew` manages the actors for the learner,
`program` learns from them, and `learner` is the process that runs it. `run` is the driver: it finds
or starts a cluster (`here`, `guard`), starts the learner on it, and shows its progress (`display`).
Acting and learning themselves are those of `training.host` and `training.r2d2`.
"""
