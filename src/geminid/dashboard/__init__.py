"""The web page of the service: static files that talk to its HTTP interface. Nothing is built, nothing is fetched."""
