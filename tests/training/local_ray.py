"""A stand-in for Ray whose actors live in this process, for tests of who is asked what, and when.

What is sent is packed as Ray packs it. An actor answers when it is waited for, so a test decides
whose answer arrives first, and who dies before that.
"""

from importlib import import_module
from types import SimpleNamespace
from typing import NamedTuple

from ray.exceptions import RayActorError

_packed = import_module("ray.cloudpickle")


class Reference(NamedTuple):
    """Stands for a value that is there, or that an actor has yet to find."""

    number: int


class Handle:
    """An actor; every method of it has a `remote`."""

    def __init__(self, ray, made):
        self._ray, self.made, self.alive = ray, made, True

    def __getattr__(self, name):
        def remote(*arguments):
            sent = _packed.dumps(arguments)

            def answer():
                if not self.alive:
                    raise RayActorError
                return _packed.dumps(getattr(self.made, name)(*_packed.loads(sent)))

            return self._ray.promise(answer)

        return SimpleNamespace(remote=remote)


class LocalRay:
    """Those functions of Ray that an actor group without inference of its own uses.

    choose: takes the references that are waited for, and returns the one that arrives.
    """

    def __init__(self, choose=lambda references: references[0]):
        self._choose, self._answers, self.handles = choose, [], []

    def promise(self, answer):
        """Return a reference to what `answer` will return, packed."""
        self._answers.append(answer)
        return Reference(len(self._answers) - 1)

    def remote(self, kind):
        def make(*arguments):
            self.handles.append(Handle(self, kind(*arguments)))
            return self.handles[-1]

        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=make))

    def put(self, value):
        sent = _packed.dumps(value)
        return self.promise(lambda: sent)

    def get(self, reference):
        return _packed.loads(self._answers[reference.number]())

    def wait(self, references, num_returns, timeout):
        first = self._choose(references)
        return [first], [other for other in references if other != first]

    def kill(self, handle):
        handle.alive = False
