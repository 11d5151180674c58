"""One file per RPC, and the gRPC method around them, which turns errors into statuses."""
