"""`python -m save_rl` is the command line."""

from save_rl.cli import main

if __name__ == "__main__":
    main()
