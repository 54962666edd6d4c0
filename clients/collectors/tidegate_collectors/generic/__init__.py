"""The generic collector: HTTP JSON, response headers and Prometheus pages, mapped to facts by configuration alone."""
