"""The algebra of R-GAP: what enters a layer, from what leaves it and from its weight gradient."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradveil.errors import UnsupportedModelError

_INSIDE = 1e-6  # how far from their ends bounded activations are taken to stay
_RIDGE = 1e-13  # of the mean square of a system's columns


@dataclass(frozen=True, slots=True)
class Solved:
    """What entered a layer.

    Args:
        inputs: (V, *shape).
        residual: (V,) relative error of the equations.
    """

    inputs: Tensor
    residual: Tensor


def enter_linear(gradient: Tensor, slope: Tensor) -> Solved:
    """Divide the weight gradient of one sample, (V, m, d), by the (V, m) slope at the layer's outputs."""
    squares = slope.square().sum(1, keepdim=True).clamp_min(1e-30)
    inputs = (gradient * slope[:, :, None]).sum(1) / squares
    left = (gradient - slope[:, :, None] * inputs[:, None]).flatten(1).norm(dim=1)
    return Solved(inputs, left / gradient.flatten(1).norm(dim=1).clamp_min(1e-30))


def enter_convolution(
    layer: nn.Conv2d, weight: Tensor, gradient: Tensor, outputs: Tensor, slope: Tensor, shape: tuple[int, ...]
) -> Solved:
    """Solve for the (V, C, H, W) that entered a convolution.

    Its weight gives one equation for each output, its weight gradient one for each entry: the slopes at the outputs
    are the coefficients.

    Args:
        layer: for its geometry.
        weight: (V, O, C, kh, kw).
        gradient: (V, O, C, kh, kw).
        outputs: (V, O, P) without the bias.
        slope: (V, O, P) of the loss at the outputs.
        shape: (C, H, W) of what entered.
    """
    places = _places(layer, shape).to(weight)
    forward = torch.einsum("vock,kpn->vopcn", weight.flatten(3), places).flatten(3).flatten(1, 2)
    backward = torch.einsum("vop,kpn->vokn", slope, places).flatten(1, 2)
    one = torch.eye(shape[0], dtype=weight.dtype, device=weight.device)
    backward = torch.einsum("cd,vrn->vcrdn", one, backward).flatten(3).flatten(1, 2)
    sides = outputs.flatten(1), gradient.flatten(3).transpose(1, 2).flatten(1)
    solved = _least_squares((forward, backward), sides)
    return Solved(solved.inputs.view(-1, *shape), solved.residual)


def slope_before(layer: nn.Conv2d, weight: Tensor, slope: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the (V, C, H, W) slope of the loss at what entered a convolution."""
    places = _places(layer, shape).to(weight)
    return torch.einsum("vock,vop,kpn->vcn", weight.flatten(3), slope, places).view(len(slope), *shape)


def undo(activation: nn.Module, values: Tensor) -> Tensor:
    """Return what entered an activation that can be inverted.

    Example:
        >>> undo(nn.LeakyReLU(0.5), torch.tensor([2.0, -1.0]))
        tensor([ 2., -2.])
    """
    if isinstance(activation, nn.Sigmoid):
        return values.clamp(_INSIDE, 1 - _INSIDE).logit()
    if isinstance(activation, nn.Tanh):
        return values.clamp(_INSIDE - 1, 1 - _INSIDE).atanh()
    if isinstance(activation, nn.LeakyReLU) and activation.negative_slope > 0:
        return torch.where(values < 0, values / activation.negative_slope, values)
    if isinstance(activation, nn.Identity | nn.Dropout):
        return values
    raise UnsupportedModelError(
        f"r-gap cannot go back through {type(activation).__name__}; it takes convolutions, linear layers, LeakyReLU, "
        "sigmoid and tanh, so use an attack that matches gradients"
    )


def derivative(activation: nn.Module, entered: Tensor) -> Tensor:
    """Return the slope of an activation at what entered it."""
    leaf = entered.detach().requires_grad_()
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(activation.eval()(leaf).sum(), leaf)
    return slope


def _places(layer: nn.Conv2d, shape: tuple[int, ...]) -> Tensor:
    """Return (kernel, P, H·W), 1 where an entry of the kernel meets a pixel at an output; rows of padding are 0."""
    if layer.groups != 1 or layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        raise UnsupportedModelError("r-gap takes convolutions of one group with zeros for padding; use another attack")
    height, width = shape[1:]
    number = torch.arange(1, height * width + 1, dtype=torch.double).view(1, 1, height, width)
    geometry = (layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    met = F.unfold(number, *geometry)[0].long()
    return F.one_hot(met, height * width + 1)[..., 1:]


def _least_squares(systems: tuple[Tensor, ...], sides: tuple[Tensor, ...]) -> Solved:
    """Solve (V, r, n) systems together, each scaled to the same size, in double precision."""
    sizes = [system.flatten(1).norm(dim=1).clamp_min(1e-30) for system in systems]
    system = torch.cat([s / size[:, None, None] for s, size in zip(systems, sizes, strict=True)], 1)
    side = torch.cat([s / size[:, None] for s, size in zip(sides, sizes, strict=True)], 1)
    normal = system.transpose(1, 2) @ system
    ridge = _RIDGE * normal.diagonal(dim1=1, dim2=2).mean(1).clamp_min(1e-30)
    normal = normal + ridge[:, None, None] * torch.eye(normal.shape[1], dtype=normal.dtype, device=normal.device)
    inputs = torch.linalg.solve(normal, system.transpose(1, 2) @ side[:, :, None])
    left = (system @ inputs).squeeze(2) - side
    return Solved(inputs.squeeze(2), left.norm(dim=1) / side.norm(dim=1).clamp_min(1e-30))
