"""Is it fit: checks of the machine, its devices, its links and its site, in sentences with a remedy."""
