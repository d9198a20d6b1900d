"""The page and the HTTP API of `aoq serve`."""
