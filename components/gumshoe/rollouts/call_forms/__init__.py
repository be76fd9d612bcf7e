"""The forms in which models write tool calls."""

from gumshoe.rollouts.call_forms.call_form import CallForm
from gumshoe.rollouts.call_forms.families import FORMS, find_form
from gumshoe.rollouts.call_forms.syntax import NoCallError, UnusableCallError

__all__ = ["FORMS", "CallForm", "NoCallError", "UnusableCallError", "find_form"]
