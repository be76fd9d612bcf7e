"""Old names of the modules that environments and rewards of users import. Each warns and returns the new one."""

import sys
import warnings
from importlib import import_module
from types import ModuleType

_MODULES = {
    "environment": "gumshoe.environments.base",
    "environments": "gumshoe.environments.registry",
    "policies": "gumshoe.inference.policy_names",
    "searching": "gumshoe.environments.search",
    "sources": "gumshoe.environments.base",
    "tools": "gumshoe.environments.tools",
    "trajectory": "gumshoe.rollouts.trajectory",
}
_NAMES = {
    "Deed": "Event",
    "ENGINE": "ENGINE_VARIABLE",
    "Record": "EpisodeState",
    "Run": "ToolFunction",
    "World": "EnvFactory",
    "open_world": "open_env",
}


class _Moved(ModuleType):
    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        old = self.__name__.rpartition(".")[2]
        module, new = import_module(_MODULES[old]), _NAMES.get(name, name)
        found: object = getattr(module, new)
        warnings.warn(
            f"{self.__name__}.{name} is now {module.__name__}.{new}; import that", DeprecationWarning, stacklevel=2
        )
        return found


for _old in _MODULES:
    sys.modules[f"{__name__}.{_old}"] = _Moved(f"{__name__}.{_old}")
