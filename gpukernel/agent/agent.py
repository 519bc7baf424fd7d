"""The agent's stream to the pool, opened again for as long as the agent runs."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import gpukernel.common.proto.pool_pb2 as pb
import gpukernel.common.proto.pool_pb2_grpc as rpc
from gpukernel.agent.confinement import ACCOUNTS
from gpukernel.agent.direct_slices import DirectSlices
from gpukernel.agent.health import Health
from gpukernel.agent.holders import Holders
from gpukernel.agent.inventory import Inventory, numbered, numbers_of_workers, offered_devices
from gpukernel.agent.keys import Key
from gpukernel.agent.own_identity import OwnIdentity, workers_may_live
from gpukernel.agent.process_watch import ProcessWatch
from gpukernel.agent.processes import with_account
from gpukernel.agent.validity import Wakefulness
from gpukernel.agent.workers import Workers
from gpukernel.common import messages
from gpukernel.common.address import short_directory
from gpukernel.common.connection import Connection, tls_trouble
from gpukernel.common.fork_safe_grpc import grpc
from gpukernel.common.logs import fields
from gpukernel.common.machine import machine_identity
from gpukernel.common.model import Usage
from gpukernel.common.telemetry.tracing import TRACEPARENT, received_context, traced
from gpukernel.remoting.worker import HOST_MEMORY, WorkerStartFailed, WorkerStatus

__all__ = ["Agent"]

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 2.0
RETRY_SECONDS = 1.0
VALIDITY_SECONDS = 0.5
SILENT_POOL_SECONDS = 2.0
CONNECT_SECONDS = 2.0
SPEECHLESS_SECONDS = 6.0
"""Seconds after which another pool is tried, where there is one, beside one that accepts no connection, and one that answers no heartbeats."""

LOOK_SECONDS = 0.25
POOL_SECONDS = 2.0
EMPTY_SECONDS = 1.0
"""Seconds without a worker after which a server that leaves is empty: an order to start one may have been on its way."""
UNKNOWN = -1
"""The number that no device has."""

_USAGE = tuple(Usage.__dataclass_fields__)


class Agent:
    """The agent that offers the devices of `inventory` as server `name` to the pool that `connection` leads to.

    Parameters
    ----------
    state
        State directory; workers live below it.
    tcp_host
        Address of this machine at which programs reach the workers over TCP; empty for unix sockets only.
    watchdog_seconds
        Work on a slice that does not end within this time is ended, with its program's context; 0: never.
    host_memory
        Bytes of this machine's own memory that the programs of one slice may make its worker take.
    tls
        Programs that reach the workers over TCP must speak TLS (`gpukernel.agent.data_path.tls_wanted` decides).
    confinement
        The rungs of the workers' confinement: ``auto``, ``off``, or names of `gpukernel.agent.confinement.RUNGS`.
    accounts
        The first account of workers and how many there are, where the agent may change accounts.
    direct
        Programs on this machine may use its devices themselves, and nobody else may (`gpukernel.agent.direct_slices`).
    """

    def __init__(
        self,
        connection: Connection,
        name: str,
        inventory: Inventory,
        state: Path,
        tcp_host: str = "",
        watchdog_seconds: float = 0.0,
        direct: bool = False,
        host_memory: int = HOST_MEMORY,
        tls: bool = False,
        confinement: str = "auto",
        accounts: tuple[int, int] = ACCOUNTS,
    ) -> None:
        self.name, self.attached = name, asyncio.Event()
        self._own = OwnIdentity(state)
        self._wakefulness = Wakefulness(others=workers_may_live())
        self._old_pool = True  # it knows nothing of validity, as far as is known
        self._valid_seconds = 0.0
        self._connection, self._way = connection, 0  # which of its ways
        self._refused: set[str] = set()  # addresses whose pools have refused this agent, one after the other
        self._complaints: set[str] = set()
        directory = short_directory(state)
        inventory = numbered(inventory, state, name, self._own.machine, numbers_of_workers(directory))
        self._inventory = inventory
        self._outgoing: asyncio.Queue[pb.AgentMessage | None] | None = None
        self._leaves_at: float | None = None  # by the loop's clock
        self._leaves_why = ""
        self._tasks: set[asyncio.Task[None]] = set()
        self._health = Health(inventory, state)
        self._machine = machine_identity() if direct else ""
        inventory, processes = with_account(inventory, directory) if direct else (inventory, None)
        self._holders = Holders(directory / "holders", name)
        self._workers = Workers(
            directory,
            inventory,
            tcp_host,
            self._worker_ended,
            watchdog_seconds,
            self._holders.about,
            host_memory=host_memory,
            tls=tls,
            confinement=confinement,
            accounts=accounts,
        )
        self._direct = DirectSlices(
            directory,
            self._workers.time_slicing,
            inventory,
            processes,
            self._worker_ended,
            self._lease_over,
            about=self._holders.about,
        )
        self._watch = ProcessWatch(
            inventory, processes, self._direct, self._workers.pids, about=self._holders.about
        )

    async def run(self) -> None:
        """Adopt what lives, then serve the pool until cancelled.

        Raises
        ------
        PermissionError
            When no pool accepts the token.
        """
        await self._workers.adopt()
        self._direct.adopt()
        self._holders.keep({*self._workers.endpoints(), *self._direct.endpoints()})
        beside = [asyncio.create_task(self._watch.run()), asyncio.create_task(self._keep_validity())]
        try:
            await self._speak()
        finally:
            for task in beside:
                task.cancel()

    async def _keep_validity(self) -> None:
        """Stop every worker when the pool was not heard of for so long that it may give their memory to others."""
        stopped: float | None = None
        while True:
            if self._own.validity.over() and self._own.validity.until != stopped:
                stopped = self._own.validity.until
                reason = "its GPU server has not reached the pool for too long"
                log.error("%s: every worker is stopped", reason, extra=fields(server=self.name))
                await self.stop(reason)
            self._wakefulness.wait()
            await asyncio.sleep(VALIDITY_SECONDS)

    async def _speak(self) -> None:
        said = ""
        while True:
            try:
                await self._attach()
                said = ""
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.ALREADY_EXISTS:
                    said = await self._rival(
                        error.details() or "another agent speaks for this GPU server", said
                    )
                    continue
                if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
                    self._say_once(self._refusal(error))
                else:
                    self._refused.clear()
                    self._say_once(f"the pool at {self._pool.address} is away: {error.code().name}")
                    # The leases live on; once the pool shows a good certificate, the agent attaches by itself.
                    if (trouble := await tls_trouble(self._pool)) and trouble != said:
                        log.error("%s", trouble, extra=fields(server=self.name))
                        said = trouble
            except TimeoutError:
                self._refused.clear()
                self._say_once(f"the pool at {self._pool.address} says nothing")
            self.attached.clear()
            self._way += 1
            await asyncio.sleep(RETRY_SECONDS / len(self._connection.ways))

    def _refusal(self, error: grpc.aio.AioRpcError) -> str:
        """Return why this pool refuses the agent; raise `PermissionError` with it where every other one has as well.

        A single one may be on a wrong database, and the others have the leases.
        """
        why = f"the pool at {self._pool.address} does not accept this agent's token"
        if error.code() is grpc.StatusCode.PERMISSION_DENIED:
            why = (error.details() or "the pool refuses this agent").rstrip(".")
        self._refused.add(self._pool.address)
        if len(self._refused) == len(self._connection.ways):
            raise PermissionError(why) from None
        return why

    def _say_once(self, sentence: str) -> None:
        """Log what is wrong with a pool, once until a pool admits this agent again."""
        if sentence not in self._complaints:
            self._complaints.add(sentence)
            log.warning("%s", sentence, extra=fields(server=self.name))

    @property
    def _pool(self) -> Connection:
        """The connection to the pool that it speaks with, or tries next: they take turns."""
        ways = self._connection.ways
        return ways[self._way % len(ways)]

    def use(self, connection: Connection) -> None:
        """Attach with this connection from the next time on: its certificate was renewed."""
        self._connection = connection

    async def _rival(self, sentence: str, said: str) -> str:
        """Stop the workers that an agent may not have while another one speaks for its server, and ask again soon."""
        self.attached.clear()
        if not said:
            log.error("this agent is refused: %s", sentence, extra=fields(server=self.name))
        await self.stop("another agent speaks for its GPU server")
        await asyncio.sleep(RETRY_SECONDS)
        return sentence

    async def stop(self, reason: str) -> None:
        """Stop every worker, and every program in direct mode."""
        await asyncio.gather(self._workers.stop_all(reason), self._direct.stop_all())

    async def leave(self, seconds: float, reason: str) -> None:
        """Have the pool drain this server, whose holders are told that it ends in `seconds`; return when nobody is left, or then.

        May be cancelled, and called again with another end.
        """
        loop = asyncio.get_running_loop()
        self._leaves_at, self._leaves_why = loop.time() + seconds, reason
        self._tell(self._leaving())
        empty = 0.0
        # The pool ends what is left, with the reason: it comes first.
        while empty < EMPTY_SECONDS and loop.time() < self._leaves_at + POOL_SECONDS:
            await asyncio.sleep(LOOK_SECONDS)
            left = self._workers.endpoints() or self._workers.starting() or self._direct.endpoints()
            empty = 0.0 if left else empty + LOOK_SECONDS

    def _leaving(self) -> pb.AgentMessage:
        seconds = max((self._leaves_at or 0.0) - asyncio.get_running_loop().time(), 0.0)
        return pb.AgentMessage(leaving=pb.Leaving(seconds=seconds, reason=self._leaves_why))

    async def _attach(self) -> None:
        several = bool(self._connection.others)
        async with self._pool.channel(one_of_several=several) as channel:
            self._outgoing = asyncio.Queue()
            self._own.validity.connected()
            self._own.epochs.connected()
            hearts = [asyncio.create_task(beat(self._outgoing)) for beat in (self._heartbeats, self._reports)]
            stub = rpc.AgentsStub(channel)
            call = stub.Attach(self._say(self._outgoing), metadata=self._pool.metadata)
            ready: asyncio.TimerHandle | None = None
            try:
                async with asyncio.timeout(CONNECT_SECONDS if several else None):
                    await call.wait_for_connection()
                # A pool of version 0.2 may have nothing to say for long, and later ones speak at once.
                ready = asyncio.get_running_loop().call_later(SILENT_POOL_SECONDS, self._admitted)
                while (message := await self._next_of(call, several=several)) is not grpc.aio.EOF:
                    ready.cancel()
                    if message.WhichOneof("message") == "register_again":
                        self._way -= 1  # with this pool, which tells the epoch
                    else:
                        self._admitted()
                    if not self._own.epochs.admit(message.epoch):
                        log.error(
                            "an order of epoch %d is refused; %d was seen already",
                            message.epoch,
                            self._own.epochs.highest,
                            extra=fields(server=self.name),
                        )
                        return  # this pool has been overtaken: look for the one that has not
                    self._old_pool = not message.epoch
                    self._own.save(self._valid_seconds)
                    self._obey(message)
            finally:
                if ready is not None:
                    ready.cancel()
                for heart in hearts:
                    heart.cancel()
                # The stream's task ends by itself; one that the channel's end destroys complains in the log.
                self._outgoing.put_nowait(None)
                self._outgoing = None
                await asyncio.sleep(0)

    async def _next_of(self, call: Any, *, several: bool) -> Any:
        """Return what the pool says next.  Where there are several, one that answers no heartbeats for some time is left, by `TimeoutError`."""
        limit = SPEECHLESS_SECONDS if several and not self._old_pool else None
        async with asyncio.timeout(limit):
            return await call.read()

    def _admitted(self) -> None:
        if not self.attached.is_set():
            self.attached.set()
            self._complaints.clear()
            log.info("attached to %s", self._pool.address, extra=fields(server=self.name))

    async def _say(self, outgoing: asyncio.Queue[pb.AgentMessage | None]) -> AsyncIterator[pb.AgentMessage]:
        workers = [
            pb.WorkerState(**self._names((lease_id, index)), endpoints=endpoints)
            for (lease_id, index), endpoints in (self._workers.endpoints() | self._direct.endpoints()).items()
        ]
        if not self._old_pool:  # which would take them for those that listen
            starting = self._workers.starting()
            workers += [pb.WorkerState(**self._names(key)) for key in starting]
        register = pb.Register(
            server=self.name,
            devices=[messages.device_to(d) for d in offered_devices(self._inventory, self.name)],
            workers=workers,
            direct_machine=self._machine,
            machine=self._own.machine,
            place=self._own.place,
            instance=self._own.instance,
            epoch=self._own.epochs.highest,
            proof=self._own.proof,
            rungs=map(messages.rung_to, self._workers.rungs()),
        )
        self._own.validity.sent(0)
        yield pb.AgentMessage(register=register)
        if self._leaves_at is not None:
            yield self._leaving()
        while (message := await outgoing.get()) is not None:
            yield message

    async def _heartbeats(self, outgoing: asyncio.Queue[pb.AgentMessage | None]) -> None:
        """Give signs of life, which wait for nothing: neither for a worker nor for a device."""
        for number in itertools.count(1):
            await asyncio.sleep(HEARTBEAT_SECONDS)
            self._own.validity.sent(number)
            outgoing.put_nowait(pb.AgentMessage(heartbeat=pb.Heartbeat(number=number)))

    async def _reports(self, outgoing: asyncio.Queue[pb.AgentMessage | None]) -> None:
        while True:
            message = self._heartbeat(
                {**await self._workers.statuses(until=self._own.validity.until), **self._direct.statuses()}
            )
            faults = await asyncio.to_thread(self._health.check)
            message.heartbeat.devices_checked = True
            message.heartbeat.faults.extend(
                pb.DeviceFault(device_index=index, device=self._inventory.uuid(index), sentence=sentence)
                for index, sentence in faults.items()
            )
            outgoing.put_nowait(message)
            await asyncio.sleep(HEARTBEAT_SECONDS)

    def _tell(self, message: pb.AgentMessage) -> None:
        if (
            self._outgoing is not None
        ):  # otherwise Register names the living workers when the agent attaches again
            self._outgoing.put_nowait(message)

    def _obey(self, message: pb.PoolMessage) -> None:
        kind = message.WhichOneof("message")
        if kind == "valid":
            self._valid_seconds = message.valid.seconds
            self._own.validity.answered(message.valid.number, message.valid.seconds)
            self._own.save(self._valid_seconds)
            return
        if kind == "displaced":
            reason = message.displaced.reason
            log.error("displaced: %s; every worker is stopped", reason, extra=fields(server=self.name))
            work = self.stop(reason)
        elif kind == "start_worker":
            work = self._start(message.start_worker)
        elif kind == "stop_worker":
            work = self._stop(message.stop_worker)
        elif kind == "limit_worker":
            work = self._limit(message.limit_worker)
        elif kind != "interrupt_worker":
            return  # an order that only a newer pool knows
        else:
            order = message.interrupt_worker
            work = self._workers.interrupt(self._key(order))
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self, start: pb.StartWorker) -> None:
        key = self._key(start)
        named = self._names(key) | ({"device": start.device} if start.device else {})
        self._tell(pb.AgentMessage(worker_starting=pb.WorkerStarting(**named)))
        if all(device.index != key[1] for device in self._inventory.devices):
            gone = f"its GPU server has no device {start.device or key[1]}"
            self._tell(pb.AgentMessage(worker_ended=pb.WorkerEnded(**named, reason=gone)))
            return
        self._holders.begin(key, start.person, start.course)
        about: dict[str, str | int | float | bool] = {
            "gpukernel.lease.id": key[0],
            "gpukernel.server": self.name,
        }
        about |= {
            "gpukernel.device": start.device or str(key[1]),
            "gpukernel.slice.memory": start.memory_bytes,
        }
        parent = received_context([(TRACEPARENT, start.traceparent)])
        try:
            with traced("gpukernel.worker.start", "consumer", about, parent) as call:
                endpoints = await self._start_slice(key, start, call.traceparent)
        except WorkerStartFailed as error:
            log.error("not started: %s", error, extra=self._holders.about(key))
            self._worker_ended(key, str(error))
            return
        what = "slice in direct mode" if start.direct else "worker"
        log.info("%s of %d MiB started", what, start.memory_bytes >> 20, extra=self._holders.about(key))
        self._tell(pb.AgentMessage(worker_ready=pb.WorkerReady(**named, endpoints=endpoints)))

    async def _start_slice(self, key: Key, start: pb.StartWorker, traceparent: str) -> tuple[str, ...]:
        """Start what an order says, and return its endpoints."""
        if self._own.validity.over():
            raise WorkerStartFailed("its GPU server has not reached the pool for too long")
        if start.direct:
            return await self._direct.start(key, start.memory_bytes, start.weight, start.user)
        return await self._workers.start(
            key,
            start.memory_bytes,
            start.weight,
            start.secret,
            self._own.validity.until,
            self._wakefulness.wait(),
            traceparent,
        )

    async def _stop(self, stop: pb.StopWorker) -> None:
        key = self._key(stop)
        if key[1] == UNKNOWN:  # a device that it never had: no worker can live there
            ended = pb.WorkerEnded(lease_id=key[0], device=stop.device, reason="stopped")
            self._tell(pb.AgentMessage(worker_ended=ended))
            return
        if key in self._direct:
            self._tell(self._heartbeat(self._direct.statuses([key])))
            await self._direct.stop(key)
            return
        self._tell(self._heartbeat(await self._workers.statuses([key])))  # its last figures
        await self._workers.stop(key, stop.reason)

    async def _limit(self, order: pb.LimitWorker) -> None:
        key = self._key(order)
        slices = self._direct if key in self._direct else self._workers
        allocated = await slices.limit(key, order.memory_bytes, order.weight)
        if allocated is None:
            return  # the worker is dead, which WorkerEnded reports
        outcome = f"stays: {allocated >> 20} MiB are allocated" if allocated else "is set"
        log.info("a cap of %d MiB %s", order.memory_bytes >> 20, outcome, extra=self._holders.about(key))
        answer = pb.WorkerLimited(
            **self._names(key),
            memory_bytes=order.memory_bytes,
            done=not allocated,
            allocated_bytes=allocated,
        )
        self._tell(pb.AgentMessage(worker_limited=answer))

    def _worker_ended(self, key: Key, reason: str) -> None:
        log.info("worker ended: %s", reason, extra=self._holders.about(key))
        self._holders.end(key)
        ended = pb.WorkerEnded(**self._names(key), reason=reason)
        self._tell(pb.AgentMessage(worker_ended=ended))

    def _lease_over(self, lease_id: str, reason: str) -> bool:
        self._tell(pb.AgentMessage(end_lease=pb.EndLease(lease_id=lease_id, reason=reason)))
        return self._outgoing is not None

    def _heartbeat(self, statuses: Mapping[Key, WorkerStatus | Usage]) -> pb.AgentMessage:
        workers = [
            pb.WorkerState(
                **self._names(key), usage=pb.Usage(**{name: getattr(status, name) for name in _USAGE})
            )
            for key, status in statuses.items()
        ]
        return pb.AgentMessage(heartbeat=pb.Heartbeat(workers=workers))

    # --- names of devices ---

    def _key(self, order: pb.StartWorker | pb.StopWorker | pb.LimitWorker | pb.InterruptWorker) -> Key:
        """Return the worker that an order means: by the device's UUID, or by its number where a pool of before tells none."""
        if not order.device:
            return order.lease_id, order.device_index
        number = self._inventory.number(order.device)
        return order.lease_id, UNKNOWN if number is None else number

    def _names(self, key: Key) -> dict[str, Any]:
        """Return the fields that name a worker in every message."""
        return {
            "lease_id": key[0],
            "device_index": max(key[1], 0),
            "device": self._inventory.uuid(key[1]),
        }
