"""The Kubeflow pipelines: graphs that call the components of `gumshoe` and hold no logic of their own."""
