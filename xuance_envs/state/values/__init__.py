"""Values that environments hold: their parts, comparison and reduction."""
