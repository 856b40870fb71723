"""The control plane's service for a network: lets nobody by without a token, and translates to `Runs`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from luwu.control import control_pb2 as pb
from luwu.control.address import HostPort, parse_host_port
from luwu.control.credentials import (
    RELEASE_REQUEST,
    STATUS_REQUEST,
    TAKE_OVER_REQUEST,
    TRACE_REQUEST,
    follow_request,
    launcher_request,
    switch_request,
    worker_request,
)
from luwu.control.door import ControlDoor
from luwu.control.rpc import SESSION_METADATA
from luwu.core.aggregation import AGGREGATE, MEAN
from luwu.core.division import Share, Standing
from luwu.core.errors import AuthenticationError, ConfigError
from luwu.core.manifest import Manifest
from luwu.server.cores import StepEnding
from luwu.server.description import describe
from luwu.server.gate import Gate
from luwu.server.launchers import Launchers
from luwu.server.participants import LauncherMember, Participant, on_one_line
from luwu.server.run import ClaimStore, Run, Terms, Worker, claim_nothing
from luwu.server.runs import Runs
from luwu.server.service import Attached, ControlService, take_records, trace_of
from luwu.server.standby_link import StandbyLink
from luwu.server.topology import PacketOrigin, SwitchMember
from luwu.store.run_record import Claim, Counts


def _share_of(request: pb.AttachRequest) -> Share:
    if not request.HasField("share"):
        return Share()
    share = request.share
    return Share(share.servers, share.uuid, share.step if share.HasField("step") else None)


def _ended(ending: StepEnding | None) -> pb.CommitReply:
    end, squares = ending or (pb.ROLLED_BACK, None)
    return pb.CommitReply(end=pb.StepEnd.Name(end), squares=squares)


class NetworkService(ControlService[Any]):
    """Serves all of control.proto. A caller is gRPC's context of the call.

    Args:
        runs: the runs to serve.
        gate: decides who may join.
        door: takes connections in.
        transport: name of the data plane, which workers must use, too.
        standing: describes the server's store.
        has_store: says whether that store was made for a manifest.
        claim: gives a run the store; called with the claim and the counts, see `luwu.store.run_record.claim_store`.
        on_report: called with (rank, report) for everything a worker reports.
        launchers: what is done for launchers on other machines.
        standby: the server's way to its standby.
        aggregate: see `ControlService`.
    """

    def __init__(
        self,
        runs: Runs,
        gate: Gate,
        door: ControlDoor,
        transport: str,
        standing: Callable[[], Standing],
        has_store: Callable[[Manifest], bool],
        claim: Callable[[Claim, Counts], tuple[Counts, str]],
        on_report: Callable[[int, dict[str, Any]], None],
        launchers: Launchers,
        standby: StandbyLink,
        aggregate: str = MEAN,
    ) -> None:
        super().__init__(on_report, aggregate)
        self._launchers = launchers
        self._standby = standby
        self._runs = runs
        self._gate = gate
        self._door = door
        self._transport = transport
        self._standing = standing
        self._has_store = has_store
        self._claim = claim

    def Hello(self, request: pb.HelloRequest, caller: Any) -> pb.HelloReply:  # noqa: N802
        """Challenge a participant of the same protocol."""
        try:
            reply = super().Hello(request, caller)
        except ConfigError:
            self._gate.refusals.warning(
                "refused peer=%s why='protocol %d'", self._peer(caller), request.protocol_version
            )
            raise
        reply.nonce = self._gate.challenge(request.nonce, self._peer(caller))
        reply.asks_for_key = self._gate.asks_for_key
        return reply

    def JoinWorker(self, request: pb.JoinWorkerRequest, caller: Any) -> pb.JoinReply:  # noqa: N802
        """Let a worker in."""
        asked = worker_request(request.rank, request.workers)
        proof = self._let_in(request, asked, caller)
        self._standby.wait_for_it()
        worker = self._runs.join_worker(request.rank, request.workers, self._peer(caller))
        if not caller.is_active():  # it went while it waited, and will never watch
            self._runs.gone(worker)
        return pb.JoinReply(session=worker.token, proof=proof, transport=self._transport, job=worker.run.job)

    def JoinSwitch(self, request: pb.JoinSwitchRequest, caller: Any) -> pb.JoinReply:  # noqa: N802
        """Let a switch in."""
        asked = switch_request(request)
        proof = self._let_in(request, asked, caller)
        if on_one_line(request.name) != request.name:
            raise ConfigError(f"name: expected up to 200 printable letters, found {on_one_line(request.name)}")
        switch = SwitchMember(
            name=f"switch {request.name}",
            peer=self._peer(caller),
            address=request.address,
            port=request.port,
            fan_in=request.fan_in,
            payload_bytes=request.payload_bytes,
            parent=request.parent,
        )
        self._runs.join_switch(switch)
        return pb.JoinReply(session=switch.token, proof=proof, transport=self._transport)

    def JoinLauncher(self, request: pb.JoinLauncherRequest, caller: Any) -> pb.JoinReply:  # noqa: N802
        """Let in a launcher on another machine."""
        proof = self._let_in(request, launcher_request(request.host), caller)
        host = on_one_line(request.host)
        launcher = LauncherMember(name=f"launcher {host}", peer=self._peer(caller), host=host)
        self._runs.join_launcher(launcher)
        return pb.JoinReply(session=launcher.token, proof=proof, transport=self._transport)

    def Read(self, request: pb.ReadRequest, caller: Any) -> pb.ReadReply:  # noqa: N802
        """Read a piece of a file for a launcher."""
        self._launcher_of(caller)
        return pb.ReadReply(content=self._launchers.read(request.name, request.offset))

    def Offer(self, request: pb.OfferRequest, caller: Any) -> pb.Empty:  # noqa: N802
        """Take a launcher's offer to run workers."""
        self._launchers.offer(self._launcher_of(caller), max(1, request.workers))
        return pb.Empty()

    def Tell(self, request: pb.TellRequest, caller: Any) -> pb.TellReply:  # noqa: N802
        """Pass on what a launcher's worker reports."""
        clock = self._launchers.tell(self._launcher_of(caller), request.rank, request.report)
        return pb.TellReply(clock=clock)

    def Watch(self, request: pb.WatchRequest, caller: Any) -> Iterator[pb.Event]:  # noqa: N802
        """Send events to a participant. The end of this stream is the end of the participant."""
        participant = self._participant(caller)
        if not self._runs.watches(participant):
            raise ConfigError(f"{participant.name} watches already")
        if not caller.add_callback(lambda: self._watch_ended(participant)):
            self._watch_ended(participant)
        return self._events_of(participant)

    @staticmethod
    def _events_of(participant: Participant) -> Iterator[pb.Event]:
        yield pb.Event(watching=pb.Watching())
        while (event := participant.events.get()) is not None:
            yield event

    def _watch_ended(self, participant: Participant) -> None:
        participant.end_watch()
        self._runs.gone(participant)

    def Standing(self, request: pb.StandingRequest, caller: Any) -> pb.StandingReply:  # noqa: N802
        """Return the identity and the counts of this server's store."""
        worker = self.worker_of(caller)
        if request.jobs:
            worker.run.agree_on_jobs(tuple(request.jobs))
        standing = self._standing()
        has_model = bool(request.manifest) and self._has_store(Manifest.from_json(request.manifest))
        return pb.StandingReply(
            uuid=standing.uuid,
            steps=standing.steps,
            has_model=has_model,
            commit_points=standing.commit_points,
            under_way=standing.under_way,
        )

    def attach(self, caller: Any, request: pb.AttachRequest) -> Attached:
        """Open the store for a worker's model; return when all workers of the run have asked for the same."""
        worker = self.worker_of(caller)
        place = PacketOrigin(request.address, request.port, request.payload_bytes, request.switch)
        terms = Terms(_share_of(request), frozenset(request.kept), tuple(request.jobs))
        claim = self._claim_of(worker.run, Claim.from_json(request.run)) if request.run else claim_nothing
        return self._runs.attach(worker, Manifest.from_json(request.manifest), terms, place, claim)

    def _claim_of(self, run: Run, wanted: Claim) -> ClaimStore:
        if AGGREGATE in wanted.run.settings:  # it is this server's, and must not change from start to start
            settings = {**wanted.run.settings, AGGREGATE: self._aggregate}
            wanted = replace(wanted, run=replace(wanted.run, settings=settings))

        def claim(counts: Counts) -> tuple[Counts, str]:
            found = self._claim(wanted, counts)
            self._standby.note_run()
            run.claimant = wanted.run.id
            return found

        return claim

    def Begin(self, request: pb.BeginRequest, caller: Any) -> pb.BeginReply:  # noqa: N802
        """Start an attempt at a step."""
        worker = self.worker_of(caller)
        epoch, given_up, ended = worker.run.begin(
            worker,
            [tuple(group.values) for group in request.groups],
            request.max_grad_norm if request.HasField("max_grad_norm") else None,
            (request.loss_scale.scale, request.loss_scale.good_steps) if request.HasField("loss_scale") else None,
        )
        records, last = worker.run.trace_request
        return pb.BeginReply(epoch=epoch, given_up=given_up, ended=ended, trace_records=records, trace_last=last)

    def Commit(self, request: pb.CommitRequest, caller: Any) -> pb.CommitReply:  # noqa: N802
        """End an attempt."""
        worker = self.worker_of(caller)
        run = worker.run

        def before() -> None:
            if request.HasField("last_attempt"):
                run.last_attempt = request.last_attempt
            if request.report:
                self.pass_on(worker.rank, request.report)

        reply = _ended(run.commit(worker, request.roll_back, request.pushes, caller.is_active, before))
        if run.last_attempt is not None:
            reply.last_attempt = run.last_attempt
        return reply

    def Decide(self, request: pb.DecideRequest, caller: Any) -> pb.CommitReply:  # noqa: N802
        """Say how an attempt ends that this server has prepared, or that is void at another one."""
        worker = self.worker_of(caller)
        commits = None if request.annuls else request.commits
        squares = request.squares if request.HasField("squares") else None
        return _ended(worker.run.decide(worker, request.attempt, commits, squares, caller.is_active))

    def Progress(self, request: pb.ProgressRequest, caller: Any) -> pb.Empty:  # noqa: N802
        """Note what a worker does, or the counts of a switch."""
        participant = self._participant(caller)
        if not isinstance(participant, SwitchMember):
            return super().Progress(request, caller)
        participant.link = request.link if request.HasField("link") else None
        return pb.Empty()

    def Status(self, request: pb.StatusRequest, caller: Any) -> pb.StatusReply:  # noqa: N802
        """Describe the run to whoever has the key."""
        proof = self._let_in(request, STATUS_REQUEST, caller)
        run = self._runs.run
        reply = self._with_aggregate(describe(run, request.look))
        reply.run = run.claimant
        for switch in self._runs.present_switches():
            address = str(HostPort(switch.address, switch.port))
            reply.switches.add(name=switch.name, address=address, parent=switch.parent, link=switch.link)
        for machine in self._launchers.machines():
            reply.machines.add(host=machine.host, peer=machine.peer, ranks=machine.ranks, waits=machine.waits)
        standby = self._standby.status()
        if standby is not None:
            reply.standby.CopyFrom(standby)
        reply.proof = proof
        return reply

    def Follow(self, request: pb.FollowRequest, caller: Any) -> pb.FollowReply:  # noqa: N802
        """Tell a standby what the store is, and send it each commit."""
        asked = follow_request(request.url, request.advertise, request.port, request.token)
        proof = self._let_in(request, asked, caller, "standby")
        reply = self._standby.follow(request, parse_host_port(self._peer(caller)).host, self._runs.run.step)
        reply.proof = proof
        return reply

    def Release(self, request: pb.ReleaseRequest, caller: Any) -> pb.ReleaseReply:  # noqa: N802
        """Give the standby up."""
        proof = self._let_in(request, RELEASE_REQUEST, caller)
        return pb.ReleaseReply(proof=proof, told=self._standby.release(request.anyway))

    def TakeOver(self, request: pb.TakeOverRequest, caller: Any) -> pb.TakeOverReply:  # noqa: N802
        """Refuse: this is no standby."""
        self._let_in(request, TAKE_OVER_REQUEST, caller)
        raise ConfigError("take-over: expected a standby, found a server; give the standby's URL")

    def Trace(self, request: pb.TraceRequest, caller: Any) -> pb.TraceReply:  # noqa: N802
        """Trace the run for whoever has the key."""
        proof = self._let_in(request, TRACE_REQUEST, caller)
        reply = trace_of(self._runs.run, request, self._runs.present_switches())
        reply.proof = proof
        return reply

    def TraceRecords(self, request: pb.TraceRecordsRequest, caller: Any) -> pb.TraceRecordsReply:  # noqa: N802
        """Take the records of a worker or a switch, and tell the time."""
        participant = self._participant(caller)
        if isinstance(participant, SwitchMember):
            return take_records(self._runs.run.tracing, participant.name, request)
        return super().TraceRecords(request, caller)

    def Leave(self, request: pb.LeaveRequest, caller: Any) -> pb.Empty:  # noqa: N802
        """Let a participant leave; it may give the reason why it cannot go on."""
        self._runs.leave(self._participant(caller), on_one_line(request.failure))
        return pb.Empty()

    def worker_of(self, caller: Any) -> Worker:
        """Return the worker that makes a call; raises AuthenticationError, ConfigError, or why its session ended."""
        participant = self._participant(caller)
        if not isinstance(participant, Worker):
            raise ConfigError(f"{participant.name} is no worker and makes no steps")
        return participant

    def _launcher_of(self, caller: Any) -> LauncherMember:
        participant = self._participant(caller)
        if not isinstance(participant, LauncherMember):
            raise ConfigError(f"{participant.name} is no launcher")
        return participant

    def _peer(self, caller: Any) -> str:
        return self._door.peer(caller.peer())

    def _let_in(self, request: Any, asked: str, caller: Any, shown: str = "") -> bytes:
        proof = self._gate.check(request.nonce, request.proof, asked, self._peer(caller), shown)
        self._door.admit(caller.peer())
        return proof

    def _participant(self, caller: Any) -> Participant:
        for key, value in caller.invocation_metadata():
            if key == SESSION_METADATA:
                try:
                    found = self._runs.participants.find(bytes.fromhex(value))
                    self._door.admit(caller.peer())
                    return found
                except ValueError:
                    break
        raise AuthenticationError("session: expected its token with every call, found none; join first")
