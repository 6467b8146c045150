"""flow.autograd: gradients of tensors, what is recorded for them, and functions that bring their own."""

from jobflow.functional.autograd import Function as Function
from jobflow.functional.autograd import backward as backward
from jobflow.functional.gradients import enable_grad as enable_grad
from jobflow.functional.gradients import grad as grad
from jobflow.functional.gradients import is_grad_enabled as is_grad_enabled
from jobflow.functional.gradients import no_grad as no_grad
from jobflow.functional.gradients import set_grad_enabled as set_grad_enabled
