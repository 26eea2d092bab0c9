"""The rows of the progress table of a run on a cluster."""

_ROWS = {
    "actors": "{actors_alive:.0f} of {actors:.0f} alive",
    "steps": "{steps_per_second:,.0f} a second",
    "replay ratio": "{replay_ratio:.2f}",
    "parameters": "{parameter_age:.1f} rounds old",
    "answers": "{answers_waiting:.0f} waiting, {answers_owed:.0f} asked for",
    "restarts": "{actor_restarts:.0f} of actors, {learner_restarts:.0f} of the learner",
    "memory": "learner {learner_megabytes:,.0f} MB, largest actor {actor_megabytes:,.0f} MB",
    "object store": "{stored_megabytes:,.1f} of {store_megabytes:,.0f} MB",
}


def rows(figures: dict[str, float]) -> dict[str, str]:
    """Return the text of each row by its name."""
    return {name: text.format(**figures) for name, text in _ROWS.items()} if figures else {}
