"""Episodes of a run, step by step, with their searches."""

from starlette.routing import BaseRoute

routes: list[BaseRoute] = []
