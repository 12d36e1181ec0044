"""Published architectures, one file each."""
