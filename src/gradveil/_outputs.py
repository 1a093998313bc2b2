"""What a model gives out, seen before anything is trained."""

import torch
from torch import Tensor, nn

from gradveil.engine.runtime import is_out_of_memory
from gradveil.errors import DataError


def outputs_of(model: nn.Module, inputs: Tensor) -> Tensor:
    """Run the model once on (B, C, H, W), in eval mode, and leave its modes as they were."""
    training = {module: module.training for module in model.modules()}
    try:
        with torch.no_grad():
            outputs: Tensor = model.eval()(inputs)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        if is_out_of_memory(error):
            raise
        came = f"{tuple(inputs.shape)} of {inputs.dtype} on {inputs.device}"
        raise DataError(f"the model does not take inputs {came}: {str(error).splitlines()[0]}") from error
    finally:
        for module, was in training.items():
            module.training = was
    if not isinstance(outputs, Tensor) or outputs.ndim < 2 or len(outputs) != len(inputs):
        came = f"shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
        raise DataError(
            f"the model must return one tensor, (batch, classes), got {came} for {len(inputs)} inputs; "
            "wrap it in a module that returns the class scores alone"
        )
    return outputs


def see_that_labels_fit(labels: Tensor, classes: int) -> None:
    """Refuse class labels that a model has no output for."""
    if int(labels.max()) >= classes:
        raise DataError(
            f"labels must be below the model's {classes} outputs, got {int(labels.max())}; "
            "a model gives one output per class, also where there are two classes"
        )
