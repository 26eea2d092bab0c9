"""The studio: runs, episodes and experiments below a folder, as pages in a browser.

It reads run directories as they are (docs/run-directory.md) and changes none.

| file | holds |
|---|---|
| `serve.py` | the server process: address, browser, Ctrl-C |
| `server.py` | the application: routes of all parts, pages, static files |
| `answers.py` | JSON that can hold any name of a file |
| `security.py` | Host, Origin and token of a request; headers of an answer |
| `folder.py` | finds runs and experiments; no path leads out of the folder |
| `reading.py` | JSON and CSV files that may be broken; whether a run is training |
| `metrics.py` | metrics.csv, read on as it grows |
| `runs.py`, `stream.py` | a line for every run; changes of these lines as they happen |
| `details.py` | one run: settings, provenance, tests, checkpoints |
| `curves.py` | curves over seeds, thinned out for a screen |
| `experiments.py` | figure, claims and runs of an experiment |
| `episodes.py` | episodes of a run, step by step, with their searches |
| `wishes.py` | what an episode page may ask for, and what is refused |
| `episode_store.py` | played episodes in memory |
| `jobs.py`, `player_process.py` | the queue of what is to be played, and the processes that play |
| `player.py` | the program of such a process |
| `acting.py`, `remembering.py` | in it, the agent of a run; recurrent agents |
| `places.py`, `records.py`, `watched.py` | its states, what is told of them, its simulator |
| `static/` | one HTML page, its style, and a JavaScript module per page |

A part exports `routes`, which `server.py` gathers. Its functions find the folder in
`request.app.state.folder` (a `Folder`) and `request.app.state.trust`.
"""
