"""One Ray cluster for all tests that can share it."""

import pytest

from tests.training.ray_cluster import environment, shared_cluster


@pytest.fixture(scope="session")
def shared_ray():
    """The cluster, started by the first test that needs it."""
    with shared_cluster() as shared:
        yield shared


@pytest.fixture(scope="module")
def cluster(shared_ray):
    """Its address and its process; this process and those it starts can join it."""
    with environment(shared_ray.variables):
        yield shared_ray.address, shared_ray.process


@pytest.fixture(scope="module")
def joined(cluster):
    """This process is part of the cluster."""
    import ray

    ray.init(cluster[0], namespace="tests", log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()
