"""One table each; table is what a table is, and how it is written. content.TABLES lists them."""
