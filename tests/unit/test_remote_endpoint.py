"""The worker's end of a fabric over the network: what it makes of the servers' answers."""

from __future__ import annotations

from types import SimpleNamespace

from luwu.control import control_pb2 as pb
from luwu.core.division import Division
from luwu.session.remote_endpoint import RemoteEndpoint


class Control:
    """A server that answers with these replies, one after the other."""

    def __init__(self, replies):
        self.replies = list(replies)

    def start(self, method, request):
        return method

    def finish(self, call):
        return self.replies.pop(0)


class Link:
    """A data plane on which nothing travels."""

    def endpoint(self):
        return SimpleNamespace(count_wait=lambda begun_ns, waited_since_ns: None)

    def begin_step(self, server, epoch, given_up):
        pass


def answers(*servers):
    """Return what `begin` says, attempt by attempt, for (epoch, given up) of each server's replies."""
    controls = [Control(pb.BeginReply(epoch=epoch, given_up=given_up) for epoch, given_up in told) for told in servers]
    endpoint = RemoteEndpoint(Link(), controls, Division((), ()))
    return [endpoint.begin([]) for _ in servers[0]]


def test_no_order_of_pulls_is_expected_in_the_first_attempt_of_an_epoch():
    assert answers([(1, False), (1, False), (2, False), (2, False)]) == [False, False, True, False]
    assert answers([(1, False), (1, False)], [(1, False), (2, False)]) == [False, True]


def test_workers_agree_on_it_whether_or_not_they_heard_of_a_new_epoch_before_they_began():
    """An attempt is given up, before one worker has begun it and after another has."""
    early = answers([(1, False), (1, False), (2, False), (2, False)])
    late = answers([(1, False), (2, True), (2, False), (2, False)])
    assert early == late == [False, False, True, False]


def test_over_tcp_there_are_no_epochs():
    assert answers([(0, False)] * 3) == [False] * 3
