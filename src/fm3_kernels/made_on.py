"""`MadeOn`: the stream that fills an object's tensors, for others that want to read them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fm3_kernels.device_mask import may_keep


@dataclass(frozen=True, eq=False)
class MadeOn:
    """When what the current stream was given until now will be done; nothing where nothing can be kept.

    Args:
        device: of the tensors.
    """

    device: torch.device
    stream: torch.cuda.Stream | None = None
    event: torch.cuda.Event | None = None

    @classmethod
    def now(cls, device: torch.device) -> MadeOn:
        """Mark this moment of the device's current stream."""
        if device.type != "cuda" or not may_keep(device):
            return cls(device)
        stream = torch.cuda.current_stream(device)
        return cls(device, stream, stream.record_event())

    def wait(self) -> None:
        """Let the current stream wait for that moment, if it is another stream's.

        Nothing is done while a graph is captured or compiled: the capture starts with the device idle.
        """
        if self.event is None or not may_keep(self.device):
            return
        stream = torch.cuda.current_stream(self.device)
        if stream != self.stream:
            stream.wait_event(self.event)
