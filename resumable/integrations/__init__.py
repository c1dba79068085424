"""Other frameworks' loops that drive a Loader; none is imported before it is used."""
