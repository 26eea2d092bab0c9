"""Constants of playing and showing Atari games; imports nothing, so it needs no ale-py."""

REPEAT = 4  # frames per step
MAX_FRAMES = 108_000  # of an episode, 30 minutes; R2D2, table 2
SIZE = 84  # width and height of a picture, in pixels
STACK = 4  # pictures per observation
