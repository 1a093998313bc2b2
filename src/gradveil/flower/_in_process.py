"""A whole federation in one process, without Ray or network: for tests and first tries."""

import copy
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

_RUN = 1


def run_in_process(
    server: ServerApp,
    client: ClientApp,
    *,
    clients: int,
    config: Mapping[str, Any] | None = None,
    node_config: Mapping[str, Any] | None = None,
) -> dict[int, Context]:
    """Run a server and its clients, one after another, and return the clients' contexts by number.

    An error of a client becomes an error reply, as on a SuperNode; one of the server is raised. This uses inner parts
    of Flower 1.41, as its own tests do; other versions may need another release of GradVeil.

    Args:
        server: the app.
        client: the app of every client.
        clients: how many.
        config: the run config.
        node_config: of every client, beside `partition-id` and `num-partitions`.
    """
    run_config = dict(config or {})
    contexts = {
        number: Context(
            run_id=_RUN,
            node_id=number + 1,
            node_config={**(node_config or {}), "partition-id": number, "num-partitions": clients},
            state=RecordDict(),
            run_config=dict(run_config),
        )
        for number in range(clients)
    }
    own = Context(run_id=_RUN, node_id=0, node_config={}, state=RecordDict(), run_config=run_config)
    with _identity():
        server(LocalGrid(client, {context.node_id: context for context in contexts.values()}), own)
    return contexts


class LocalGrid(Grid):  # type: ignore[misc]
    """Passes messages to clients of the same process.

    Args:
        client: the app.
        contexts: of the clients, by node.
    """

    def __init__(self, client: Callable[[Message, Context], Message], contexts: Mapping[int, Context]) -> None:
        self.client, self.contexts = client, contexts
        self._replies: dict[str, Message] = {}
        self._numbers = itertools.count(1)

    def set_run(self, run: Run) -> None:
        """Take no other run."""

    @property
    def run(self) -> Run:
        """Return the only run."""
        return Run.create_empty(_RUN)

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Make a message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """List the clients."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Let the clients answer at once."""
        names = []
        for message in messages:
            name = str(next(self._numbers))
            message.metadata.__dict__["_message_id"] = name
            message.content = copy.deepcopy(message.content)  # clients must not share what they are sent
            self._replies[name] = self._answer(message)
            names.append(name)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Hand the answers out, each once."""
        return [self._replies.pop(name) for name in message_ids if name in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Ask one client after another; what comes later than the timeout is lost, as over a network."""
        replies: list[Message] = []
        for message in messages:
            began = time.monotonic()
            found = self.pull_messages(self.push_messages([message]))
            if timeout is None or time.monotonic() - began <= timeout:
                replies += found
        return replies

    def _answer(self, message: Message) -> Message:
        try:
            return self.client(message, self.contexts[int(message.metadata.dst_node_id)])
        except Exception as error:  # whatever a client dies of, the server hears that it failed
            return Message(Error(code=0, reason=f"{type(error).__name__}: {error}"), reply_to=message)


@contextmanager
def _identity() -> Iterator[None]:
    """Say who sends messages, and put back what was said before."""
    before = TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, _RUN, 1
    try:
        yield
    finally:
        TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id = before
