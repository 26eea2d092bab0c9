"""`python -m save_rl` is the command line."""

import sys


def _forget_current_folder() -> None:
    """Take the current folder, where Python looks first with -m, off the path.

    A file there must not take the place of a module of the same name.
    """
    import os

    try:
        here = os.getcwd()
    except FileNotFoundError:  # deleted
        return
    if not sys.flags.safe_path and sys.path[0] == here:
        del sys.path[0]
        home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        if home not in sys.path:  # the package itself lies in this folder; workers look for it
            sys.path.append(home)


if __name__ == "__main__":
    try:
        _forget_current_folder()
        from save_rl.cli import main
    except KeyboardInterrupt:
        print("save-rl: interrupted.", file=sys.stderr)
        raise SystemExit(130) from None
    main()
