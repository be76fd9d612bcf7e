"""Everything that talks to Kubernetes: deployments, TrainJobs, the adapter loader, the doctor, and notifications."""
