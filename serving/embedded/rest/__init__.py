"""The REST API: HTTP server, JSON requests and JSON responses."""
