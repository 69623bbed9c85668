"""What is wrong between this machine and a syncer, and what would put it right."""
