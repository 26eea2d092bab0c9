"""Training on JAX environments: one jitted program for all seeds.

| file | holds |
|---|---|
| `trainer.py` | the lock-step: act, search, replay, learn; the trainer around it |
| `acting.py` | search and the final action, shared by training and tests |
"""
