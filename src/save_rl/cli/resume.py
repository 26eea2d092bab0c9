"""`save-rl train --resume DIR`: a flag that may also name the folder of the run."""

from pathlib import Path

from save_rl.envs import ENVIRONMENTS, FAMILIES


def split_resume(options: list[str]) -> tuple[list[str], str | None]:
    """Return the options of `train` without `--resume DIR`, and DIR; None if there is none.

    `--resume` alone is a flag. A word after it is a folder if it holds a run, or if it is not the
    name of an environment.
    """
    for i, option in enumerate(options):
        flag, equals, word = option.partition("=")
        if flag != "--resume":
            continue
        follows = [] if equals else options[i + 1 : i + 2]
        word = word or next(iter(follows), "-")
        if word.startswith("-") or (_names_environment(word) and not _holds_run(word)):
            return options, None
        return options[:i] + options[i + 1 + len(follows) :], word
    return options, None


def _holds_run(word: str) -> bool:
    return (Path(word) / "config.json").exists()


def _names_environment(word: str) -> bool:
    families = {name.partition("/")[0] for name in FAMILIES}
    return word in ENVIRONMENTS or ":" in word or word.partition("/")[0] in families
