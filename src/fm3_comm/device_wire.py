"""Bodies of messages between GPUs, by NCCL, in the order of their operations.

NCCL matches what two ranks send one another by order alone, so every rank hands in its operations in the
order of their numbers. Nothing here waits for a GPU: what arrives is waited for by the stream that uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fm3_comm.message import Head, Message


class DeviceWire:
    """This rank's end of a group that takes tensors of one kind of device.

    Args:
        group: a torch.distributed group; on GPUs, making its communicator is collective, and done here.
        device_type: "cuda"; "cpu" for a group of gloo, in tests.
    """

    def __init__(self, group: Any, device_type: str = "cuda") -> None:
        """Make the communicator, in which ranks that will send nothing at first take part, too."""
        self.device_type = device_type
        self._group = group
        self._stream: torch.cuda.Stream | None = None
        if device_type == "cuda":
            dist.all_reduce(torch.zeros(1, device="cuda"), group=group)

    def prepare(
        self, outgoing: Mapping[int, Message], expected: Mapping[int, Head]
    ) -> Callable[[], Callable[[], dict[int, Message]]]:
        """Note what is to be moved and from when on.

        Returns:
            a function that starts it, to be called in the operation's turn; that returns a function to be
            called by the thread that uses what arrived, on its stream.
        """
        devices = [message.body.device for message in outgoing.values()]
        devices += [head.device for head in expected.values()]
        packed = _now(devices[0]) if devices else None

        def start() -> Callable[[], dict[int, Message]]:
            if not devices:
                return dict
            with self._working_on(devices[0]):
                if packed is not None:
                    packed.wait()
                arrived = {
                    peer: Message(head, torch.empty(head.num_elements, dtype=head.dtype, device=devices[0]))
                    for peer, head in expected.items()
                }
                self._move(
                    {peer: message.body for peer, message in outgoing.items()},
                    {peer: message.body for peer, message in arrived.items()},
                )
                done = _now(devices[0])

            def take() -> dict[int, Message]:
                if done is not None:
                    done.wait(torch.cuda.current_stream(devices[0]))
                    for message in arrived.values():
                        message.body.record_stream(torch.cuda.current_stream(devices[0]))
                return arrived

            return take

        return start

    def _move(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> None:
        moves = [
            dist.P2POp(call, body, group=self._group, group_peer=peer)
            for call, bodies in ((dist.isend, sends), (dist.irecv, receives))
            for peer, body in bodies.items()
            if body.numel()
        ]
        for work in dist.batch_isend_irecv(moves) if moves else []:
            work.wait()
        if self._stream is not None:
            for body in sends.values():
                body.record_stream(self._stream)

    def _working_on(self, device: torch.device) -> AbstractContextManager[Any]:
        """Make this thread work on the device, on a stream of this wire."""
        if device.type != "cuda":
            return nullcontext()
        if self._stream is None or self._stream.device != device:
            self._stream = torch.cuda.Stream(device)
        return torch.cuda.stream(self._stream)


def _now(device: torch.device) -> torch.cuda.Event | None:
    """Mark the place that this thread's stream has come to."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event
