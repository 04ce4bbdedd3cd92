"""The measured hit curve h(W/C): how much of a prompt is found in the prefix cache at a given working set."""

from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator

from artifact.control.profile import KNEE, DeploymentProfile, reference_hit_rate

Array = NDArray[np.float64]
_DEFAULT = DeploymentProfile()


def _numbers(value: Any) -> Any:
    if isinstance(value, bool | str) or value is None:
        raise ValueError(f"is {value!r}, not a number")
    numbers = np.asarray(value, dtype=float)
    if numbers.size == 0 or not np.all(np.isfinite(numbers)):
        raise ValueError("must be finite")
    return numbers if numbers.ndim else float(numbers)


def _positive(value: Any) -> Any:
    if not np.all(np.asarray(number := _numbers(value)) > 0):
        raise ValueError("must be above 0")
    return number


def _non_negative(value: Any) -> Any:
    if not np.all(np.asarray(number := _numbers(value)) >= 0):
        raise ValueError("must not be negative")
    return number


Positive = Annotated[Any, BeforeValidator(_positive)]
"""A float, or an array of floats that broadcasts against the model's other numbers."""
NonNegative = Annotated[Any, BeforeValidator(_non_negative)]


class HitCurve(BaseModel):
    """h(W/C), the reference curve of the deployment profile aligned with one deployment (paper A §5.1, §6.5).

    The reference, `artifact.control.profile.reference_hit_rate`, follows Fig. 6b: a slow decline from the plateau to
    about 0.8 at the knee x_k = 1.9, then a sharp drop to the floor. `kappa` scales it along W/C. Plateau and floor
    default to a healthy and a trapped run on H100 (§3.2).

    It has no memory: the hysteresis of §5.2 (low reuse at working sets that were fine before) is outside the model.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)
    plateau: Positive = _DEFAULT.plateau
    floor: NonNegative = _DEFAULT.floor
    kappa: Positive = _DEFAULT.kappa

    @model_validator(mode="after")
    def _ordered(self) -> "HitCurve":
        if not (np.all(self.floor < self.plateau) and np.all(np.asarray(self.plateau) <= 1)):
            raise ValueError(f"needs floor < plateau <= 1, has floor {self.floor} and plateau {self.plateau}")
        return self

    def __call__(self, x: ArrayLike) -> Array:
        """Hit rate (fraction of prompt tokens) at working set over cache size `x`; never rises with it."""
        return reference_hit_rate(np.asarray(x, float) / self.kappa, self.plateau, self.floor)

    @property
    def cliff(self) -> Any:
        """W_c/C = kappa x_k (§6.1)."""
        return self.kappa * KNEE
