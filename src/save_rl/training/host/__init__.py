"""Training on Python simulators, all seeds together.

| file | holds |
|---|---|
| `actor.py` | lanes of simulators: resets, searches, real steps, tests |
| `acting.py` | the final action |
| `evaluator.py` | the network as an evaluator of searches |
| `updates.py` | the updates of a lock-step, beside the simulators |
| `trainer.py` | the lock-step that joins them; replay and counters |
"""
