"""What each layer of a merged batch saw, and from it the gradients of its parameters, victim by victim."""

from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, TypeVar, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from gradveil.engine._norms import affine, batch_norm_arguments, normalize_batch
from gradveil.engine._rectified import Norm, fuses, rectified, take_sums
from gradveil.engine.convolution import convolution, factor_gradient, weight_gradient
from gradveil.engine.factors import Factored, formed, pays
from gradveil.engine.geometry import Geometry
from gradveil.types import State

T = TypeVar("T")
Rule: TypeAlias = Callable[[Tensor], Tensor]
"""From the gradient at a layer's output, (N, ...), to the (V, *shape) gradient of one of its parameters."""

FactorRule: TypeAlias = Callable[[Tensor], Factored]
"""The same, not multiplied out."""


_NO_FACTORS: Mapping[Tensor, FactorRule] = MappingProxyType({})


class NotTappableError(Exception):
    """The model uses a parameter in a way that the fast path does not know."""


class Taps(TorchFunctionMode):
    """Runs layers with constant weights and keeps a rule for the gradient of each parameter."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], buffers: State, victims: int) -> None:
        super().__init__()
        self._victims = victims
        self._parameters = {id(model.get_parameter(name)): name for name in names}
        self._statistics = {id(buffer): name for name, buffer in buffers.items()}
        self._outputs: list[Tensor] = []
        self._rules: list[dict[str, Rule]] = []
        self._factors: list[dict[str, FactorRule]] = []
        self._norms: dict[int, _Normed] = {}
        self._rectified: list[Norm] = []
        self.buffers: dict[str, Tensor] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Take over the layers; refuse a parameter in any other place, but let its shape or format be read."""
        kwargs = kwargs or {}
        layer = _LAYERS.get(func)
        if layer is not None:
            return layer(self, *args, **kwargs)
        if kwargs.get("inplace"):
            # An activation in place would overwrite the output by which the layer before it is differentiated.
            kwargs = {**kwargs, "inplace": False}
        result = func(*args, **kwargs)
        enters = any(id(leaf) in self._parameters for leaf in tree_leaves((args, kwargs)))
        if enters and any(isinstance(leaf, Tensor) for leaf in tree_leaves(result)):
            raise NotTappableError(f"a parameter enters {getattr(func, '__name__', func)}")
        return result

    def gradients(self, losses: Tensor, *, create_graph: bool) -> dict[str, Tensor]:
        """Differentiate by the output of each layer, and apply the rules."""
        found: dict[str, Tensor] = {}
        deltas = self._deltas(losses, create_graph=create_graph)
        with torch.set_grad_enabled(create_graph):
            for delta, rules in zip(deltas, self._rules, strict=True):
                for name, rule in rules.items():
                    if delta is not None:
                        gradient = rule(delta)
                        found[name] = found[name] + gradient if name in found else gradient
        self.forget()
        return found

    def factors(self, losses: Tensor, *, create_graph: bool) -> dict[str, Tensor | Factored]:
        """Differentiate likewise, with factors in place of what a single layer makes of a weight."""
        found: dict[str, Tensor | Factored] = {}
        deltas = self._deltas(losses, create_graph=create_graph)
        with torch.set_grad_enabled(create_graph):
            for delta, rules, factors in zip(deltas, self._rules, self._factors, strict=True):
                if delta is None:
                    continue
                for name, rule in rules.items():
                    if name in found:
                        found[name] = formed(found[name]) + rule(delta)
                    else:
                        found[name] = factors.get(name, rule)(delta)
        self.forget()
        return found

    def reduced(self, losses: Tensor, reduce: Callable[[Tensor | Factored], T]) -> dict[str, T]:
        """Differentiate without a graph, and keep of each gradient what is made of it before the next one is there."""
        uses = Counter(name for rules in self._rules for name in rules)
        deltas = list(self._deltas(losses, create_graph=False))
        found: dict[str, T] = {}
        sums: dict[str, Tensor] = {}
        with torch.no_grad():
            for number, (rules, factors) in enumerate(zip(self._rules, self._factors, strict=True)):
                delta, deltas[number] = deltas[number], None
                for name, rule in rules.items() if delta is not None else ():
                    assert delta is not None
                    if uses[name] > 1:
                        # A weight that two layers share has one gradient, which is the sum.
                        sums[name] = sums[name] + rule(delta) if name in sums else rule(delta)
                    else:
                        found[name] = reduce(factors.get(name, rule)(delta))
            found |= {name: reduce(total) for name, total in sums.items()}
        self.forget()
        return found

    def _deltas(self, losses: Tensor, *, create_graph: bool) -> tuple[Tensor | None, ...]:
        """Return the gradients at the layers' outputs; None where the loss does not depend on one."""
        ones = torch.ones_like(losses)
        deltas = torch.autograd.grad(losses, self._outputs, ones, create_graph=create_graph, allow_unused=True)
        for norm in self._rectified:
            norm.wanted = False
        return deltas

    def forget(self) -> None:
        """Drop what the layers saw: rules refer to the taps and these to them, so it would live until Python looks."""
        for kept in (self._outputs, self._rules, self._factors, self._norms, self._rectified):
            kept.clear()

    def stacked(self, tensor: Tensor) -> Tensor:
        """Split the merged axis: (N, ...) to (V, N / V, ...)."""
        if len(tensor) % self._victims:
            raise NotTappableError(f"a layer sees {len(tensor)} rows of {self._victims} victims")
        return tensor.reshape(self._victims, -1, *tensor.shape[1:])

    def keep(
        self, output: Tensor, rules: Mapping[Tensor | None, Rule], factors: Mapping[Tensor, FactorRule] = _NO_FACTORS
    ) -> Tensor:
        """Remember a layer's output and the rules of those of its parameters that are differentiated by."""
        owned = {self._parameters[id(p)]: rule for p, rule in rules.items() if id(p) in self._parameters}
        if owned:
            self._outputs.append(output)
            self._rules.append(owned)
            rows = output.numel() // self._victims
            self._factors.append(
                {
                    self._parameters[id(p)]: rule
                    for p, rule in factors.items()
                    if id(p) in self._parameters and pays(rows // len(p), len(p), p[0].numel())
                }
            )
        return output

    def linear(self, inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Tap a linear layer."""
        output = F.linear(inputs, _constant(weight), _constant(bias))

        def factors(delta: Tensor) -> Factored:
            seen = self.stacked(inputs).flatten(1, -2).to(delta.dtype)
            return Factored(self.stacked(delta).flatten(1, -2), seen)

        def of_weight(delta: Tensor) -> Tensor:
            return factors(delta).formed()

        def of_bias(delta: Tensor) -> Tensor:
            return self.stacked(delta).flatten(1, -2).sum(1)

        return self.keep(output, {weight: of_weight, bias: of_bias}, {weight: factors})

    def convolution(
        self,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        """Tap a two-dimensional convolution."""
        geometry = Geometry.of(weight, stride, padding, dilation, groups)
        if geometry is None:
            raise NotTappableError("a convolution is padded more on one side than on the other")
        inputs = _cast(inputs)
        output = convolution(inputs, _cast(_constant(weight)), geometry)
        if bias is not None:
            output = output + _cast(_constant(bias)).view(-1, 1, 1)

        def of_weight(delta: Tensor) -> Tensor:
            return weight_gradient(self.stacked(inputs), self.stacked(delta), geometry)

        def factors(delta: Tensor) -> Factored:
            return factor_gradient(self.stacked(inputs), self.stacked(delta), geometry)

        def of_bias(delta: Tensor) -> Tensor:
            return self.stacked(delta).sum((1, 3, 4))

        apart = {weight: factors} if geometry.groups == 1 else _NO_FACTORS
        return self.keep(output, {weight: of_weight, bias: of_bias}, apart)

    def batch_norm(self, *args: Any, **kwargs: Any) -> Tensor:
        """Tap a batch norm, by running statistics or by each victim's own."""
        call = batch_norm_arguments(*args, **kwargs)
        if call["training"]:
            normalized = normalize_batch(call, victims=self._victims, names=self._statistics, updated=self.buffers)
            return self._scaled(normalized, call["weight"], call["bias"])
        return self._by_running_statistics(call["input"], call)

    def _by_running_statistics(self, inputs: Tensor, call: Mapping[str, Any]) -> Tensor:
        """Tap an eval-mode batch norm: one multiplication and one addition per pixel."""
        weight, bias = call["weight"], call["bias"]
        mean: Tensor = call["running_mean"]
        inverse = torch.rsqrt(call["running_var"] + call["eps"])
        scale = inverse if weight is None else inverse * weight.detach()
        shift = -mean * scale if bias is None else bias.detach() - mean * scale
        shape = (1, -1, *[1] * (inputs.ndim - 2))
        output = torch.addcmul(shift.view(shape), inputs, scale.view(shape))

        def of_bias(delta: Tensor) -> Tensor:
            return self._by_channel(delta).sum((1, 3))

        def of_weight(delta: Tensor) -> Tensor:
            return (of_bias(delta * inputs) - mean * of_bias(delta)) * inverse

        if inputs.ndim == 4 and fuses(inputs):
            self._norms[id(output)] = _Normed(
                output, output._version, inputs, weight, bias, mean, inverse, scale, shift
            )
        return self.keep(output, {weight: of_weight, bias: of_bias})

    def relu(self, inputs: Tensor, inplace: bool = False) -> Tensor:  # noqa: ARG002
        """Tap a rectifier together with the eval-mode batch norm before it, if there is one."""
        found = self._norms.get(id(inputs))
        if found is None or found.version != inputs._version:  # nothing may have been added to it in place
            return F.relu(inputs)
        norm = Norm(found.inputs, found.scale, found.shift, self._victims)
        norm.wanted = id(found.weight) in self._parameters or id(found.bias) in self._parameters
        self._rectified.append(norm)
        sums: list[tuple[Tensor, ...]] = []

        def of_bias(delta: Tensor) -> Tensor:
            if not sums:
                sums.append(take_sums(norm, delta))
            return sums[0][0]

        def of_weight(delta: Tensor) -> Tensor:
            plain = of_bias(delta)
            return (sums[0][1] - found.mean * plain) * found.inverse

        return self.keep(rectified(norm), {found.weight: of_weight, found.bias: of_bias})

    def group_norm(
        self,
        inputs: Tensor,
        num_groups: int,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        """Tap a group norm."""
        return self._scaled(F.group_norm(inputs, num_groups, eps=eps), weight, bias)

    def layer_norm(
        self,
        inputs: Tensor,
        normalized_shape: list[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        """Tap a layer norm, whose parameters have the shape of the last axes."""
        normalized = F.layer_norm(inputs, normalized_shape, eps=eps)
        scaled = normalized if weight is None else normalized * _constant(weight)
        output = scaled if bias is None else scaled + _constant(bias)
        last = len(normalized_shape)

        def of_bias(delta: Tensor) -> Tensor:
            stacked = self.stacked(delta)
            return stacked.sum(tuple(range(1, stacked.ndim - last)))

        return self.keep(output, {weight: lambda delta: of_bias(delta * normalized), bias: of_bias})

    def _scaled(self, normalized: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """Scale and shift each channel, and tap both."""
        output = affine(normalized, _constant(weight), _constant(bias))

        def of_weight(delta: Tensor) -> Tensor:
            return torch.einsum("vncp,vncp->vc", self._by_channel(delta), self._by_channel(normalized).to(delta.dtype))

        def of_bias(delta: Tensor) -> Tensor:
            return self._by_channel(delta).sum((1, 3))

        return self.keep(output, {weight: of_weight, bias: of_bias})

    def _by_channel(self, tensor: Tensor) -> Tensor:
        """Bring (N, C) or (N, C, ...) to (V, N / V, C, pixels)."""
        return self.stacked(tensor)[..., None].flatten(3)


class _Normed(NamedTuple):
    """An eval-mode batch norm that a rectifier may follow: its output, what made it, and (C,) numbers."""

    output: Tensor
    version: int
    inputs: Tensor
    weight: Tensor | None
    bias: Tensor | None
    mean: Tensor
    inverse: Tensor
    scale: Tensor
    shift: Tensor


def _cast(tensor: Tensor) -> Tensor:
    """Cast as autocast would, since it does not look inside the engine's own functions."""
    device = tensor.device.type
    return tensor.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else tensor


@overload
def _constant(weight: Tensor) -> Tensor: ...
@overload
def _constant(weight: Tensor | None) -> Tensor | None: ...
def _constant(weight: Tensor | None) -> Tensor | None:
    """Detach a parameter; a weight that the model computes from its inputs passes a gradient on."""
    return weight.detach() if isinstance(weight, nn.Parameter) else weight


_LAYERS: dict[Callable[..., Any], Callable[..., Tensor]] = {
    F.linear: Taps.linear,
    F.conv2d: Taps.convolution,
    F.batch_norm: Taps.batch_norm,
    F.group_norm: Taps.group_norm,
    F.layer_norm: Taps.layer_norm,
    F.relu: Taps.relu,
}
