"""The command line: one file per role or verb; load the config, build, run."""
