"""The namespace `flow.autograd`: higher-order gradients, custom functions, gradient checks and anomaly detection."""

from jobflow.core.lazy_imports import add_aliases
from jobflow.functional.custom_functions import Function as Function
from jobflow.functional.custom_functions import backward as backward
from jobflow.functional.custom_functions import once_differentiable as once_differentiable
from jobflow.functional.gradcheck import GradcheckError as GradcheckError
from jobflow.functional.gradcheck import gradcheck as gradcheck
from jobflow.functional.gradcheck import gradgradcheck as gradgradcheck
from jobflow.functional.gradients import detect_anomaly as detect_anomaly
from jobflow.functional.gradients import enable_grad as enable_grad
from jobflow.functional.gradients import grad as grad
from jobflow.functional.gradients import inference_mode as inference_mode
from jobflow.functional.gradients import is_anomaly_enabled as is_anomaly_enabled
from jobflow.functional.gradients import is_grad_enabled as is_grad_enabled
from jobflow.functional.gradients import no_grad as no_grad
from jobflow.functional.gradients import set_detect_anomaly as set_detect_anomaly
from jobflow.functional.gradients import set_grad_enabled as set_grad_enabled
from jobflow.functional.variable import Variable as Variable

add_aliases(__name__, "jobflow.autograd")
