"""The worker's end of a fabric over the network: what it makes of the servers' answers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from luwu.control import control_pb2 as pb
from luwu.core.division import Division
from luwu.core.errors import ServerError
from luwu.session.remote_endpoint import RemoteEndpoint


class Control:
    """A server that answers with these replies, one after the other."""

    def __init__(self, replies):
        self.replies = list(replies)

    def start(self, method, request):
        return method

    def finish(self, call):
        return self.replies.pop(0)


class Call:
    """A call, with its answer where a test gives one."""

    def __init__(self, request):
        self.request = request
        self.reply = None

    def done(self):
        return self.reply is not None


class SlowControl:
    """A server whose answers a test gives. ``asked``: its calls by method, the last of each."""

    url = "luwu://a:1"

    def __init__(self, told=None):
        self.asked = {}
        self.told = told  # another worker has told it

    def start(self, method, request, patient=True):
        call = self.asked[method] = Call(request)
        if method == "Decide":
            ended = pb.VOID if request.annuls else pb.COMMITTED if request.commits else pb.ROLLED_BACK
            call.reply = pb.CommitReply(end=ended if self.told is None else self.told)
        return call

    def finish(self, call):
        assert call.reply is not None
        return call.reply


class Link:
    """A data plane on which nothing travels."""

    def endpoint(self):
        return SimpleNamespace(count_wait=lambda begun_ns, waited_since_ns: None)

    def begin_step(self, server, epoch, given_up):
        pass

    def end_step(self):
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


def voted(*ends, told=None):
    """Vote at servers that answer so. Return the end, and the servers.

    ``told``: what another worker has told the last server.
    """
    controls = [SlowControl() for _ in ends]
    controls[-1].told = told
    endpoint = RemoteEndpoint(Link(), controls, Division((), ()))
    vote = endpoint.commit()
    for control, end in zip(controls, ends, strict=True):
        control.asked["Commit"].reply = pb.CommitReply(end=end)
    return endpoint.wait(vote), controls


def test_a_void_attempt_is_made_void_at_all_servers():
    end, servers = voted(pb.PREPARED, pb.VOID, pb.NOT_FINITE, pb.ROLLED_BACK)
    assert end == pb.VOID
    told = [server.asked.get("Decide") for server in servers]
    assert told[1] is None  # it knows
    assert all(call.request.annuls for number, call in enumerate(told) if number != 1)


def test_servers_hear_of_a_void_attempt_before_it_is_voted_on():
    """An attempt that waits there for the lost worker may hold what this worker needs for its vote."""
    controls = [SlowControl() for _ in range(3)]
    RemoteEndpoint(Link(), controls, Division((), ())).annul(7, 1)
    told = [server.asked.get("Decide") for server in controls]
    assert told[1] is None
    assert all(call.request.annuls and call.request.attempt == 7 for call in (told[0], told[2]))


def test_servers_are_told_how_an_attempt_ends_that_one_of_them_cannot_commit():
    end, servers = voted(pb.PREPARED, pb.NOT_FINITE)
    assert end == pb.NOT_FINITE
    assert [server.asked["Decide"].request.commits for server in servers] == [False, False]
    end, servers = voted(pb.PREPARED, pb.PREPARED)
    assert end == pb.COMMITTED
    assert [server.asked["Decide"].request.commits for server in servers] == [True, True]


@pytest.mark.parametrize("told", [pb.VOID, pb.ROLLED_BACK])
def test_a_step_that_one_server_did_not_commit_is_an_error(told):
    with pytest.raises(ServerError, match=r"luwu://a:1 did not end the last attempt as .* expected committed, found"):
        voted(pb.PREPARED, pb.PREPARED, told=told)


def test_a_step_that_one_server_has_committed_is_not_rolled_back_elsewhere_unseen():
    with pytest.raises(ServerError, match="expected rolled back, found committed"):
        voted(pb.NOT_FINITE, pb.PREPARED, told=pb.COMMITTED)


def test_a_single_server_is_told_nothing():
    end, (server,) = voted(pb.ROLLED_BACK)
    assert (end, list(server.asked)) == (pb.ROLLED_BACK, ["Commit"])


def test_a_worker_that_joins_makes_attempts_void_until_all_servers_are_in_the_same():
    """The second server is two attempts behind: its other workers have not told it yet."""
    begins = [[5], [3, 4, 5]]
    votes, annuls = [], []

    class Behind(SlowControl):
        def __init__(self, ended):
            super().__init__()
            self.ended = ended

        def start(self, method, request, patient=True):
            call = super().start(method, request, patient)
            if method == "Begin":
                call.reply = pb.BeginReply(ended=self.ended.pop(0))
            if method == "Decide":
                annuls.append(request.attempt)
            if method == "Commit":
                votes.append((request.roll_back, request.pushes))
                call.reply = pb.CommitReply(end=pb.VOID)
            return call

    endpoint = RemoteEndpoint(Link(), [Behind(ended) for ended in begins], Division((), ()))
    endpoint.begin([])
    assert begins == [[], []]
    assert votes == [(True, 0), (True, 0)]
    assert annuls == [3, 4]  # before the votes: no server may count them as a roll-back
