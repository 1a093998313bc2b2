import pytest
import torch
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=50, database=None)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Tiny tensors are slower on many threads, and one thread adds in one order."""
    torch.set_num_threads(1)
