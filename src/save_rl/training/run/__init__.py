"""A training run: from the command to its folder.

| file | holds |
|---|---|
| `loop.py` | chunks of lock-steps, with metrics, checkpoints and signals in between |
| `trainers.py` | the trainer of a run, chosen by its environment and its agent |
| `run_directory.py` | the folder: settings, lock, metrics |
| `checkpoint.py` | checkpoints: checksummed, never half-written |
| `metrics_file.py`, `events.py` | metrics.csv and TensorBoard |
| `progress.py` | the progress display |
| `interrupt.py` | Ctrl-C and other signals as a request to save and stop |
| `lock.py` | one process at a time writes to a folder |
"""
