"""What `gumshoe doctor` looks at, one function a check; none changes anything that it leaves behind."""
