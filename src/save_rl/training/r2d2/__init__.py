"""Training R2D2, with and without SAVE, on simulators with frames as observations
(docs/experiments/atari.md#r2d2; Kapturowski et al. 2019; paper, appendix E).

A lock-step moves every lane by one real step, with the actor of `training.host`. The differences:
the network is recurrent, so search nodes carry its state; every lane explores with its own ε;
learning uses sequences of steps, sampled by priority at the rate of `samples_per_insert`; and the
lanes get new parameters every few lock-steps. A run trains one seed, and its arrays have a seed
axis of length 1.

| file | holds | its state |
|---|---|---|
| `setup.py` | agent, settings and network, which all parts share | none |
| `network.py` | the network: updates, and an evaluator of searches | states of the last search |
| `collector.py` | one real step of all lanes, and the sequences it completes | that of the lanes |
| `learner.py` | replay, updates beside the lanes, counters | the replay; `SequenceState` |
| `trainer.py` | the lock-step that joins them; checkpoints, tests, players | none of its own |

So the state of a run is in three places, the fields of `trainer.Saved`: a `SequenceState`, which is
passed around; the lanes, which the collector owns; and the replay, which the learner owns. A
cluster has a collector in every actor process and a learner without lanes.
"""
