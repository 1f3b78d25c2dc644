"""Where a subset's rows come from: finding, fetching, verifying and parsing its file."""
