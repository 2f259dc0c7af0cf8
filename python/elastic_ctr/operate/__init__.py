"""The command line, all roles as processes of one machine, and the page of a run."""
