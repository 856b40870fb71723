"""Text for programs that a test starts: a function of autograd whose backward pauses."""

PAUSE = """
class Pause(torch.autograd.Function):
    @staticmethod
    def forward(context, x, pause):
        context.pause = pause
        return x.clone()
    @staticmethod
    def backward(context, gradient):
        context.pause()
        return gradient, None
"""
