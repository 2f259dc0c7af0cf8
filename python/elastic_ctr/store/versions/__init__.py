"""Names, manifests, donefiles and places of model versions."""
