"""The checks of `gumshoe doctor`, one function each. None leaves a change behind."""
