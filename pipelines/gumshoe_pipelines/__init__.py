"""Define the Kubeflow pipelines: graphs that call components of `gumshoe` and contain no logic of their own."""
