"""What the master, the trainers and the pservers say to each other."""
