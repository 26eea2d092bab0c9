"""Experiments."""

from starlette.routing import BaseRoute

routes: list[BaseRoute] = []
