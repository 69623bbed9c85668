"""What a syncer keeps, so that its death at any instant loses nothing that was published: see ``run_store``."""
