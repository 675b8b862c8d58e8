"""Other people's results: the library of published rows, and readers, writers and audits of the forms they come in."""
