"""Sizes of the tensors that a computation makes."""

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class LargestTensor(TorchDispatchMode):
    """Notes the most elements that any floating-point result has had which takes memory."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.device.type != "meta":
                self.elements = max(self.elements, tensor.numel())
        return result
