"""Training on Python simulators, all seeds together.

| file | holds |
|---|---|
| `actor.py` | lanes of simulators: resets, searches, real steps, tests |
| `acting.py` | the final action |
| `evaluator.py` | the network as an evaluator of searches |
| `updates.py` | the updates of a lock-step, beside the simulators |
| `collector.py` | one real step of all lanes, and the transitions to learn from |
| `learner.py` | replay and updates of all seeds |
| `levels.py` | levels of simulators, and the curriculum over them |
| `ahead.py` | programs compiled before they are needed |
| `trainer.py` | the lock-step that joins them; counters, curricula, checkpoints, tests |
"""
