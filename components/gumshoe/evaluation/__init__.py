"""Whether a policy is better than another, and why."""
