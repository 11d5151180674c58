"""The RPCs, and the gRPC method around them, which turns errors into statuses."""
