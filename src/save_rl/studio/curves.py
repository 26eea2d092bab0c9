"""Curves of runs."""

from starlette.routing import BaseRoute

routes: list[BaseRoute] = []
