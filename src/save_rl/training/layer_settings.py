"""Sizes of the layers of a network; imports nothing heavy, so help pages stay fast."""

from dataclasses import dataclass

from save_rl.errors import require


@dataclass(frozen=True)
class LayerSettings:
    """Sizes of the layers of the networks `mlp`, `conv` and `dict`."""

    hidden: tuple[int, ...] = ()
    """Widths of the hidden layers: of the torso of `mlp` and `dict` (default 64 64), or after the
    convolutions of `conv` (default 128)."""
    filters: tuple[int, ...] = (16,)  # MinAtar (Young and Tian 2019)
    """Filters of each layer of 3 x 3 convolutions, in `conv` and for images in `dict`."""

    def check(self) -> None:
        """Refuse impossible sizes."""
        for option, sizes in (
            ("--network.hidden", self.hidden),
            ("--network.filters", self.filters),
        ):
            require(min(sizes, default=1) >= 1, option, min(sizes, default=1), "at least 1")
        require(len(self.filters) > 0, "--network.filters", "()", "at least one number")
