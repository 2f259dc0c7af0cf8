"""Names, manifests, donefiles and paths of model versions."""
